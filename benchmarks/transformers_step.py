"""A pretraining step of transformers' BERT per line of standard input.

Started by bert_step.py with a Python that has torch and transformers; answers
each line with the seconds and the processor seconds that the step took. Words
are predicted at the masked positions only, as bigtransfer does; transformers by
itself predicts all.
"""

import json
import sys
import time

import torch
import transformers
from torch.nn.functional import cross_entropy


def main():
  sizes = json.loads(sys.argv[1])
  dropout = sizes['dropout']
  torch.manual_seed(0)
  model = transformers.BertForPreTraining(transformers.BertConfig(
      num_hidden_layers=sizes['layers'],
      hidden_size=sizes['hidden'],
      num_attention_heads=sizes['hidden'] // 64,
      intermediate_size=4 * sizes['hidden'],
      hidden_act='gelu_pytorch_tanh',
      hidden_dropout_prob=dropout,
      attention_probs_dropout_prob=dropout,
  ))
  model.train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
  b, s, p = sizes['batch'], sizes['length'], sizes['predictions']
  ids = torch.randint(0, 30522, (b, s))
  segments = (torch.arange(s) > s // 2).long().repeat(b, 1)
  mask = torch.ones(b, s, dtype=torch.long)
  positions = torch.randint(0, s, (b, p))
  words, following = torch.randint(0, 30522, (b, p)), torch.randint(0, 2, (b,))
  rows = torch.arange(b)[:, None]
  for _ in sys.stdin:
    begin, busy = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    sequence, pooled = model.bert(
        ids, attention_mask=mask, token_type_ids=segments, return_dict=False
    )
    words_logits = model.cls.predictions(sequence[rows, positions])
    loss = cross_entropy(words_logits.flatten(0, 1), words.flatten())
    loss += cross_entropy(model.cls.seq_relationship(pooled), following)
    loss.backward()
    optimizer.step()
    took = time.perf_counter() - begin, time.process_time() - busy
    print(*took, flush=True)


if __name__ == '__main__':
  main()
