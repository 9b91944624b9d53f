"""From process start to the first finished step, by part.

python -m benchmarks.startup --big_vision DIR

R50x1 at 32 px, batch 8, from images in memory, in a process of its own each
time; first with an empty compilation cache and then with the one it left.
big_vision's trainer runs the same network through its own start: imports, mesh,
input pipeline, initialisation, and its `update_fn` shape of a step.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from benchmarks import harness


def run(contender, cache, folder):
  """Returns seconds by part, and `total` from outside the process."""
  command = [sys.executable, '-m', 'benchmarks.startup', '--child', contender,
             '--cache', str(cache)]
  if folder:
    command += ['--big_vision', str(folder)]
  begin = time.time()
  out = subprocess.run(command, capture_output=True, text=True, check=True)
  parts = json.loads(out.stdout.splitlines()[-1])
  return parts | {'total': parts.pop('end') - begin}


class Clock:

  def __init__(self):
    self._last, self.parts = time.time(), {}

  def lap(self, part):
    now = time.time()
    self.parts[part] = now - self._last
    self._last = now

  def report(self):
    print(json.dumps(self.parts | {'end': time.time()}))


def ours(cache):
  clock = Clock()
  import jax

  from bigtransfer import config as config_lib
  from bigtransfer import main, prefetch
  from configs import common
  clock.lap('imports')
  config = common.base()
  config.batch_size = 8
  config.total_steps = 10
  config.model.stem = 'imagenet'
  config.data.train_ops = 'resize(32)|value_range(-1, 1)'
  config.data.eval_ops = 'resize(32)|value_range(-1, 1)'
  config.compilation_cache = cache
  [phase] = main.prepare(config, config_lib.phases(config))
  clock.lap('data and building')
  state = phase.program.init()
  jax.block_until_ready(state)
  clock.lap('start of state')
  batches = prefetch.Prefetcher(
      phase.data.train(phase.config), phase.program.batch_sharding)
  jax.block_until_ready(phase.program.step(state, next(batches)))
  clock.lap('first step')
  clock.report()


def big_vision(cache, folder):
  clock = Clock()
  sys.path.insert(0, folder)
  import big_vision.pp.ops_general  # noqa: F401, I001
  import big_vision.pp.ops_image  # noqa: F401
  import jax
  import jax.numpy as jnp
  import numpy as np
  import optax
  import tensorflow as tf
  from big_vision import input_pipeline, utils  # noqa: F401
  from big_vision.models import bit_paper
  from big_vision.pp import builder
  clock.lap('imports')
  jax.config.update('jax_compilation_cache_dir', cache)
  pp = builder.get_preprocess_fn('resize(32)|value_range(-1, 1)')
  images = np.zeros((1000, 28, 28, 3), np.uint8)
  data = tf.data.Dataset.from_tensor_slices({'image': images}).repeat()
  data = data.map(pp).batch(8).prefetch(2).as_numpy_iterator()
  model = bit_paper.Model(10, width=1, depth=50)
  tx = optax.sgd(0.01, momentum=0.9)
  clock.lap('data and building')

  @jax.jit
  def init():
    params = model.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)))['params']
    return params, tx.init(params)

  @jax.jit
  def step(params, opt_state, image):
    def loss(params):
      logits, _ = model.apply({'params': params}, image)
      return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(
          logits, jnp.zeros(8, jnp.int32)))

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value

  state = jax.block_until_ready(init())
  clock.lap('start of state')
  jax.block_until_ready(step(*state, next(data)['image']))
  clock.lap('first step')
  clock.report()


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--big_vision', metavar='DIR')
  parser.add_argument('--repeats', type=int, default=3)
  parser.add_argument('--child')
  parser.add_argument('--cache')
  args = parser.parse_args()
  if args.child == 'bigtransfer':
    return ours(args.cache)
  if args.child == 'big_vision':
    return big_vision(args.cache, args.big_vision)
  for warm in (False, True):
    names = ['bigtransfer'] + (['big_vision'] if args.big_vision else [])
    caches = {name: pathlib.Path(tempfile.mkdtemp()) for name in names}

    def contender(name, warm=warm, caches=caches):
      if not warm:
        shutil.rmtree(caches[name], ignore_errors=True)
      return run(name, caches[name], args.big_vision)

    if warm:
      for name in names:
        contender(name)
    readings = harness.in_turn(
        {name: lambda name=name: contender(name) for name in names},
        args.repeats)
    print(f'{"warm" if warm else "empty"} compilation cache\n')
    harness.print_table(
        ['part', *names],
        [[part, *(harness.spread([r[part] for r in readings[name]], '.1f')
                  for name in names)]
         for part in readings['bigtransfer'][0]])
    for cache in caches.values():
      shutil.rmtree(cache, ignore_errors=True)


if __name__ == '__main__':
  main()
