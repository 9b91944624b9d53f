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
import types

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
  from bigtransfer import main, prefetch, program
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
  compiled = program.compile_step(phase)
  state = phase.program.init()
  jax.block_until_ready(state)
  clock.lap('start of state')
  batches = prefetch.Prefetcher(
      phase.data.train(phase.config), phase.program.batch_sharding)
  jax.block_until_ready(compiled.result()(state, next(batches)))
  clock.lap('first step')
  clock.report()


def big_vision(cache, folder):
  """Its own trainer, from a source in memory, for a run of one step."""
  clock = Clock()
  sys.path.insert(0, folder)
  import jax
  jax.config.update('jax_compilation_cache_dir', cache)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
  import big_vision.train as trainer
  import ml_collections
  import numpy as np
  import tensorflow as tf
  from absl import flags
  from big_vision import utils
  from big_vision.datasets import core
  clock.lap('imports')
  utils.sync = lambda: None  # At its end, by a name that JAX has dropped.

  class Source(core.DataSource):
    total_examples = 1000

    def get_tfdata(self, ordered, **unused):
      return tf.data.Dataset.from_tensor_slices({
          'image': np.zeros((1000, 28, 28, 3), np.uint8),
          'label': np.zeros(1000, np.int64)})

    def num_examples_per_process(self):
      return [1000]

  sys.modules['big_vision.datasets.memory'] = types.SimpleNamespace(
      DataSource=Source)
  config = ml_collections.ConfigDict({
      'seed': 0, 'total_steps': 1, 'num_classes': 10, 'loss': 'softmax_xent',
      'model_name': 'bit_paper', 'model': {'depth': 50, 'width': 1},
      'pp_modules': ['ops_general', 'ops_image'],
      'input': {
          'data': {'name': 'bv:memory'}, 'batch_size': 8,
          'shuffle_buffer_size': 100,
          'pp': 'resize(32)|value_range(-1, 1)'
                '|onehot(10, key="label", key_result="labels")'
                '|keep("image", "labels")'},
      'optax_name': 'big_vision.momentum_hp', 'grad_clip_norm': 1.0,
      'wd': 1e-4, 'lr': 0.1, 'schedule': {'decay_type': 'cosine'},
      'log_training_steps': 50, 'evals': {}})
  flags.FLAGS(['train'])
  flags.FLAGS.config = config
  trainer.main([])
  clock.lap('its trainer, one step')
  clock.report()


def _spread(readings, part):
  if part not in readings[0]:
    return ''
  return harness.spread([reading[part] for reading in readings], '.1f')


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
    parts = [part for name in names for part in readings[name][0]]
    harness.print_table(
        ['part', *names],
        [[part, *(_spread(readings[name], part) for name in names)]
         for part in dict.fromkeys(parts)])
    for cache in caches.values():
      shutil.rmtree(cache, ignore_errors=True)


if __name__ == '__main__':
  main()
