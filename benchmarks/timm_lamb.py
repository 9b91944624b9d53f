"""An update of timm's Lamb per line of standard input.

Started by optimizers.py with a Python that has torch and timm, and with the
shapes of the parameters as JSON; answers each line with the seconds that the
update took.
"""

import json
import sys
import time

import torch
from timm.optim import Lamb


def main():
  torch.manual_seed(0)
  params = []
  for shape in json.loads(sys.argv[1]):
    param = torch.nn.Parameter(0.02 * torch.randn(shape))
    param.grad = 1e-3 * torch.randn(shape)
    params.append(param)
  optimizer = Lamb(params, lr=1e-3, weight_decay=0.01, max_grad_norm=None)
  for _ in sys.stdin:
    begin = time.perf_counter()
    optimizer.step()
    print(time.perf_counter() - begin, flush=True)


if __name__ == '__main__':
  main()
