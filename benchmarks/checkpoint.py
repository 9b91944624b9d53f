"""How long the loop stands still for a save, beside a synchronous one.

python -m benchmarks.checkpoint

The state of R50x1 with momentum and a moving average, on this machine's disk.
'Blocked' is what `save` takes to return; the synchronous save returns when the
checkpoint is complete.
"""

import argparse
import pathlib
import shutil
import tempfile
import time

import jax
import numpy as np
import orbax.checkpoint as ocp

from benchmarks import harness
from bigtransfer import checkpoint, program
from bigtransfer import config as config_lib
from bigtransfer import mesh as mesh_lib
from configs import common


def make_state():
  config = common.base()
  config.batch_size = 8
  config.total_steps = 10
  config.ema_decay = 0.9
  config.model.num_classes = 1000
  spec = {'image': ((8, 32, 32, 3), np.float32), 'label': ((8,), np.int32),
          'mask': ((8,), np.float32)}
  mesh = mesh_lib.make(config.mesh, jax.devices()[:1])
  resolved = config_lib.resolve(config, 1000)
  return program.build(resolved, spec, mesh).init(), resolved.checkpoint


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--repeats', type=int, default=7)
  args = parser.parse_args()
  state, section = make_state()
  size = sum(x.nbytes for x in jax.tree.leaves(state)) / 2**20
  folder = pathlib.Path(tempfile.mkdtemp())
  steps = iter(range(1, 10_000))
  complete = []
  with checkpoint.CheckpointManager(str(folder / 'a'), section) as manager:

    def asynchronous():
      begin = time.perf_counter()
      manager.save(next(steps), state, {})
      blocked = time.perf_counter() - begin
      manager.wait()
      complete.append(time.perf_counter() - begin)
      return blocked

    def synchronous():
      begin = time.perf_counter()
      with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(
            folder / 'b' / str(next(steps)), args=ocp.args.StandardSave(state)
        )
      return time.perf_counter() - begin

    contenders = {'blocked': asynchronous, 'synchronous save': synchronous}
    harness.in_turn(contenders, 1)
    complete.clear()
    readings = harness.in_turn(contenders, args.repeats)
  shutil.rmtree(folder)
  base = readings['synchronous save']
  readings['complete, in the background'] = complete
  print(f'R50x1 with momentum and moving average, {size:.0f} MiB\n')
  harness.print_table(
      ['what', 'seconds', 'of the synchronous save'],
      [
          [name, harness.spread(values, '.3f'),
           harness.spread(harness.ratios(values, base), '.1%')]
          for name, values in readings.items()
      ],
  )


if __name__ == '__main__':
  main()
