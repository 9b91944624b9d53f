"""A training step of a timm network per line of standard input.

Started by train_step.py with a Python that has torch and timm; answers each
line with the seconds that the step took.
"""

import sys
import time

import timm
import torch


def main():
  name, size, batch, classes = sys.argv[1], *map(int, sys.argv[2:5])
  torch.manual_seed(0)
  model = timm.create_model(name, pretrained=False, num_classes=classes)
  model.train()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
  image = torch.randn(batch, 3, size, size)
  label = torch.randint(0, classes, (batch,))
  for _ in sys.stdin:
    begin = time.perf_counter()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(image), label)
    loss.backward()
    optimizer.step()
    print(time.perf_counter() - begin, flush=True)


if __name__ == '__main__':
  main()
