"""Seconds per training step of R50x1 on the CPU, beside its peers.

python -m benchmarks.train_step --big_vision DIR --torch_python PYTHON

Batch 8, 1,000 classes, float32, momentum SGD. big_vision's `bit_paper` runs in
this process; timm's networks run in a process of PYTHON, which has torch and
timm. Contenders take turns, so ratios are those of the same minutes.
"""

import argparse
import functools
import pathlib
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import harness
from bigtransfer import config as config_lib
from bigtransfer import mesh as mesh_lib
from bigtransfer import prefetch, program
from configs import common

BATCH, CLASSES = 8, 1000
RNG = np.random.default_rng(0)


def make_batch(size):
  return {
      'image': RNG.normal(size=(BATCH, size, size, 3)).astype(np.float32),
      'label': RNG.integers(0, CLASSES, BATCH).astype(np.int32),
      'mask': np.ones(BATCH, np.float32),
  }


def timed(step):
  """Returns a function that takes one step and returns its seconds."""

  def read():
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin

  read()  # Compiles.
  read()
  return read


def ours(batch, **model):
  """The real step of the real loop, on the real model."""
  config = common.base()
  config.batch_size = BATCH
  config.total_steps = 1000
  config.model.num_classes = CLASSES
  config.optimizer.learning_rate = 0.01
  for key, value in model.items():
    config.model[key] = value
  mesh = mesh_lib.make(config.mesh, jax.devices()[:1])
  spec = {k: (v.shape, v.dtype) for k, v in batch.items()}
  built = program.build(config_lib.resolve(config, 1000), spec, mesh)
  state = built.init()
  on_mesh = prefetch.to_mesh(batch, built.batch_sharding)

  def step():
    nonlocal state
    state, metrics = built.step(state, on_mesh)
    jax.block_until_ready(metrics)

  return timed(step)


def big_vision(batch, folder):
  sys.path.insert(0, str(folder))
  from big_vision.models import bit_paper

  model = bit_paper.Model(CLASSES, width=1, depth=50)
  tx = optax.sgd(0.01, momentum=0.9)
  image = jnp.asarray(batch['image'])
  label = jnp.asarray(batch['label'])
  params = jax.jit(model.init)(jax.random.key(0), image)['params']
  state = params, tx.init(params)

  @functools.partial(jax.jit, donate_argnums=0)
  def update(state, image, label):
    params, opt_state = state

    def loss(params):
      logits, _ = model.apply({'params': params}, image)
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
      return jnp.mean(losses)

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), value

  def step():
    nonlocal state
    state, value = update(state, image, label)
    value.block_until_ready()

  return timed(step)


def timm(name, size, python):
  """A process that takes a step per line it reads and answers its seconds."""
  child = subprocess.Popen(
      [python, pathlib.Path(__file__).with_name('timm_step.py'), name,
       str(size), str(BATCH), str(CLASSES)],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
  )

  def read():
    child.stdin.write('step\n')
    return float(child.stdout.readline())

  read()
  read()
  return read


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--big_vision', type=pathlib.Path, metavar='DIR')
  parser.add_argument('--torch_python', metavar='PYTHON')
  parser.add_argument('--sizes', type=int, nargs='*', default=[128, 224])
  parser.add_argument('--repeats', type=int, default=7)
  args = parser.parse_args()
  for size in args.sizes:
    batch = make_batch(size)
    folder, python = args.big_vision, args.torch_python
    contenders = {
        'bigtransfer, GN+WS': ours(batch),
        'bigtransfer, BN': ours(batch, norm='bn', weight_standardization=False),
        'big_vision bit_paper, GN+WS': folder and big_vision(batch, folder),
        'timm resnetv2_50x1_bit, GN+WS': python
        and timm('resnetv2_50x1_bit', size, python),
        'timm resnetv2_50, BN': python and timm('resnetv2_50', size, python),
    }
    readings = harness.in_turn(contenders, args.repeats)
    base = readings['bigtransfer, GN+WS']
    print(f'R50x1, {size} px, batch {BATCH}\n')
    harness.print_table(
        ['network', 'seconds per step', 'times ours'],
        [
            [name, harness.spread(seconds, '.3f'),
             harness.spread(harness.ratios(seconds, base), '.2f')
             if seconds else 'not given']
            for name, seconds in readings.items()
        ],
    )


if __name__ == '__main__':
  main()
