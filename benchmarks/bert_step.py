"""Seconds of a pretraining step of BERT on the CPU, beside transformers.

python -m benchmarks.bert_step --torch_python PYTHON

Length 128, 20 predictions gathered before the output layer, float32, AdamW,
dropout as given. transformers runs in a process of PYTHON, which has torch too,
once as it is and once with freed memory kept, as training with bigtransfer on
the CPU keeps it. Contenders take turns, so ratios are those of the same
minutes.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import time

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from benchmarks import harness
from bigtransfer import host_memory
from bigtransfer.models import bert

LENGTH, PREDICTIONS, VOCAB = 128, 20, 30522
# What host_memory.keep_freed sets, for a process that is yet to start.
KEEP = {
    'MALLOC_ARENA_MAX': '1',
    'MALLOC_MMAP_MAX_': '0',
    'MALLOC_TRIM_THRESHOLD_': str(2**40),
}
MODELS = {
    'base': {'layers': 12, 'hidden': 768, 'batch': 8},
    'L4_H256': {'layers': 4, 'hidden': 256, 'batch': 32},
}


def make_batch(size):
  rng = np.random.default_rng(0)
  b, s, p = size, LENGTH, PREDICTIONS
  return jax.tree.map(jnp.asarray, {
      'input_ids': rng.integers(0, VOCAB, (b, s)),
      'input_mask': np.ones((b, s), int),
      'segment_ids': np.tile(np.arange(s) > s // 2, (b, 1)).astype(int),
      'masked_lm_positions': rng.integers(0, s, (b, p)),
      'masked_lm_ids': rng.integers(0, VOCAB, (b, p)),
      'next_sentence_labels': rng.integers(0, 2, b),
      'row': np.arange(b),
  })


def ours(name, batch, **changes):
  """Model, loss and optimizer as one compiled step."""
  model = bert.build(ml_collections.ConfigDict({
      'variant': name, 'vocab_size': VOCAB, 'vocab_multiple': 1,
      'max_position': 512, 'mixing': 'attention', 'head': 'pretraining',
      'gelu': 'tanh', 'num_classes': 0, 'remat': 'none', 'scan': True,
      'layers': 0, 'hidden': 0, 'heads': 0, 'ffn': 0, 'dtype': 'float32',
      **changes,
  }))  # fmt: skip
  tx = optax.adamw(1e-4)
  params, _ = jax.jit(model.init)(jax.random.key(0), batch)
  state = params, tx.init(params)

  def loss(params, batch, rng):
    out, _ = model.apply(params, {}, batch, train=True, rng=rng)
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    words = cross_entropy(out['mlm_logits'], batch['masked_lm_ids'])
    following = cross_entropy(out['nsp_logits'], batch['next_sentence_labels'])
    return jnp.mean(words) + jnp.mean(following)

  @functools.partial(jax.jit, donate_argnums=0)
  def update(state, batch, number):
    params, opt_state = state
    rng = jax.random.fold_in(jax.random.key(0), number)
    value, grads = jax.value_and_grad(loss)(params, batch, rng)
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), value

  number = 0

  def step():
    nonlocal state, number
    state, value = update(state, batch, number)
    number += 1
    value.block_until_ready()

  def read():
    begin, busy = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - begin, time.process_time() - busy

  step()
  step()
  return read


def transformers(sizes, dropout, python, keep):
  """A process that takes a step per line it reads and answers its times."""
  sizes = sizes | {
      'length': LENGTH, 'predictions': PREDICTIONS, 'dropout': dropout
  }
  child = subprocess.Popen(
      [python, pathlib.Path(__file__).with_name('transformers_step.py'),
       json.dumps(sizes)],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
      env=os.environ | (KEEP if keep else {}),
  )

  def read():
    child.stdin.write('step\n')
    return tuple(map(float, child.stdout.readline().split()))

  read()
  read()
  return read


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--torch_python', metavar='PYTHON')
  parser.add_argument('--models', nargs='*', default=list(MODELS))
  parser.add_argument('--dropout', type=float, default=0.1)
  parser.add_argument('--repeats', type=int, default=5)
  args = parser.parse_args()
  host_memory.keep_freed()
  for name in args.models:
    sizes, python = MODELS[name], args.torch_python
    batch = make_batch(sizes['batch'])
    rates = {'dropout': args.dropout, 'attention_dropout': args.dropout}
    contenders = {
        'bigtransfer': ours(name, batch, **rates),
        'bigtransfer, layers unrolled': ours(name, batch, scan=False, **rates),
        'bigtransfer, fourier': ours(name, batch, mixing='fourier', **rates),
        'transformers': python and transformers(
            sizes, args.dropout, python, keep=False
        ),
        'transformers, memory kept': python and transformers(
            sizes, args.dropout, python, keep=True
        ),
    }
    readings = harness.in_turn(contenders, args.repeats)
    print(f'BERT {name}, batch {sizes["batch"]} x {LENGTH}, '
          f'dropout {args.dropout}\n')
    harness.print_table(
        ['network', 'seconds per step', 'times ours', 'processor seconds',
         'times ours'],
        [[contender, *columns(values, readings['bigtransfer'])]
         for contender, values in readings.items()],
    )


def columns(values, base):
  """Both times of a contender, each with its ratio to `base`."""
  if not values:
    return ['not given'] * 4
  return [
      text
      for own, ours in zip(zip(*values, strict=True), zip(*base, strict=True),
                           strict=True)
      for text in (harness.spread(own, '.3f'),
                   harness.spread(harness.ratios(own, ours), '.2f'))
  ]


if __name__ == '__main__':
  main()
