r"""The tables of docs/plans.md: what fits on which slice, by the TPU compiler.

python -m benchmarks.plan_tables --minutes 600 > docs/plans.md

Takes hours on two cores, most of them for the widest networks. What is compiled
is kept (~/.cache/bigtransfer/plans), so that the same command goes on; what is
not there after so many minutes is left open in the tables.
"""

import argparse
import importlib.metadata
import sys
import time

from bigtransfer import (
    chips,
    plan_cache,
    plan_data,
    plan_search,
    plan_table,
    planning,
    topologies,
)
from bigtransfer import config as config_lib

VARIANTS = ('R50x1', 'R101x1', 'R50x3', 'R101x3', 'R152x2', 'R152x4')
LAMB = 'configs/bert_pretrain.py:large,recipe=lamb_64k_32k'
OPEN = '?'
INTRO = '''# Plans

What jobs need on TPU slices, by the compiler of the TPU (libtpu {libtpu}, JAX
{jax}) on a machine without one. `python -m benchmarks.plan_tables` made this
page. A device is a chip, but half of one on v2, v3 and TPU7x. GiB are of one
device; a program may use
{usable}.
*tight*: the compiler accepts it, as parts of the state make room before others
are needed; all of the state and the temporaries together would be more.
Milliseconds, hours and MFU are bounds: the longest of arithmetic, HBM and links
at their peaks. A real step takes longer.
'''


class Timeout(Exception):
  """No time is left to compile what is not there yet."""


class Planner:
  """Plans until a deadline, and what is in the cache after it too."""

  def __init__(self, minutes):
    self._deadline = time.time() + 60 * minutes

  def jobs(self, spec, **values):
    config = config_lib.load(spec)
    jobs = planning.jobs(config, plan_data.Asked())
    return [plan_search.changed(job, **values) for job in jobs]

  def plan(self, job, topology):
    built = planning.build(job, topology)
    key = plan_cache.key(built.config, topology)
    if time.time() > self._deadline and not plan_cache.has(key):
      raise Timeout
    start = time.time()
    plan = planning.plan([built])[0]
    if time.time() - start > 5:
      print(f'{job.name} {topology.name} {time.time() - start:.0f} s',
            file=sys.stderr, flush=True)
    return plan

  def estimate(self, job, topology):
    return plan_search.estimate(job, topology, self.plan)


def row(*cells):
  return '| ' + ' | '.join(map(str, cells)) + ' |'


def header(*cells):
  return '\n'.join([row(*cells), '|' + '---|' * len(cells)])


COLUMNS = (
    'HBM: state', 'activations', 'peak', 'fits', 'ms', 'MFU', 'steps',
    'chip-hours',
)


def numbers(plan):
  """The cells of `COLUMNS`."""
  gib = 2**30
  state = f'{plan["state_bytes"] / gib:.2f}'
  if not plan['fits']:
    needed = f'{plan["needed_bytes"] / gib:.2f}'
    return state, '', needed, 'no', '', '', f'{plan["steps"]:,}', ''
  return (
      state,
      f'{plan["activation_bytes"] / gib:.2f}',
      f'{plan["peak_bytes"] / gib:.2f}',
      plan_table.verdict(plan),
      plan_table.milliseconds(plan['step_seconds']),
      f'{100 * plan["mfu_bound"]:.0f} %',
      f'{plan["steps"]:,}',
      f'{plan["chip_hours"]:,.3g}',
  )


def tried(planner, job, topology):
  try:
    return numbers(planner.plan(job, topology))
  except Timeout:
    return (OPEN,) * len(COLUMNS)


def lamb(planner):
  """The paper's job, and the batches at which its memory ends."""
  topology = topologies.parse('v3-2048')
  yield '''
## BERT-Large with LAMB on 1,024 chips of v3

`python -m bigtransfer.plan --config configs/bert_pretrain.py:large,\\
recipe=lamb_64k_32k --topology v3-2048`, and with other remat policies. You et
al. report 65,536 at length 128 and 32,768 at 512, and that memory ends at
131,072 and 32,768.
'''
  yield header(
      'length', 'batch', 'remat', 'accumulation', 'per device and pass',
      *COLUMNS
  )
  for index, batch, passes in (
      (0, 65536, 1), (0, 131072, 1), (0, 131072, 2), (1, 32768, 1),
      (1, 32768, 4), (1, 65536, 1),
  ):
    for remat in ('none', 'dots', 'layer'):
      if passes > 1 and remat != 'none':
        continue
      job = planner.jobs(
          LAMB, batch_size=batch, accum_steps=passes, remat=remat
      )[index]
      yield row(
          (128, 512)[index], f'{batch:,}', remat, passes,
          batch // 2048 // passes, *tried(planner, job, topology)
      )


def bit(planner):
  topology = topologies.parse('v3-512')
  yield '''
## BiT at batch 4,096 on v3-512, 8 images per core

Images of 224 pixels, bfloat16, 90 epochs of ILSVRC-2012.
'''
  yield header('network', 'remat', *COLUMNS)
  for variant in VARIANTS:
    for remat in ('none', 'unit'):
      job = planner.jobs(f'configs/bit_pretrain.py:{variant}', remat=remat)[0]
      numbers = tried(planner, job, topology)
      yield row(variant, remat, *numbers)
      if 'no' not in numbers:
        break


def smallest(planner):
  """Largest batches of a device, and the slices that follow."""
  yield '''
## The smallest slice of each generation

The first number is how many examples one pass on one device holds, from sizes
that do not fit (memory is a line); the slice is the smallest that then takes
the batch at once; with accumulation the one in brackets does. Batch 4,096 for
BiT, 65,536 at length 128 and 32,768 at 512 for BERT-Large; state on every
device, `remat` none for BiT and dots for BERT.
'''
  yield header('network', *chips.CHIPS)
  cases = [
      (f'BERT-Large, {128 if i == 0 else 512}', LAMB, 'dots', i)
      for i in (0, 1)
  ]
  cases += [
      (v, f'configs/bit_pretrain.py:{v}', 'none', 0) for v in VARIANTS
  ]
  for name, spec, remat, index in cases:
    job = planner.jobs(spec, remat=remat)[index]
    yield row(name, *(fitting(planner, job, g) for g in chips.CHIPS))


def fitting(planner, job, generation):
  """'28: v3-512 (v3-8)': see `smallest`."""
  slices = topologies.slices(generation)
  host = next(t for t in slices if t.num_chips >= 4)
  try:
    line = planner.estimate(job, host)
  except Timeout:
    return OPEN
  if line is None:
    return 'none: split the state'
  largest, batch = line.largest(False), job.config.batch_size
  once = next(
      (t.name for t in slices
       if t.num_devices * largest >= batch and batch % t.num_devices == 0),
      'no slice',
  )
  some = f' ({host.name})' if line.largest(True) and once != host.name else ''
  return f'{largest}: {once}{some}'


SECTIONS = {'lamb': lamb, 'smallest': smallest, 'bit': bit}


def main():
  parser = argparse.ArgumentParser('python -m benchmarks.plan_tables',
                                   description=__doc__)
  parser.add_argument('--minutes', type=float, default=60,
                      help='after which nothing new is compiled')
  parser.add_argument('--only', nargs='+', default=list(SECTIONS),
                      choices=SECTIONS, help='sections')
  args = parser.parse_args()
  planner = Planner(args.minutes)
  usable = ', '.join(
      f'{c.usable / chips.GIB:.2f} on {c.name}' for c in chips.CHIPS.values()
  )
  print(INTRO.format(
      libtpu=importlib.metadata.version('libtpu'),
      jax=importlib.metadata.version('jax'),
      usable=usable,
  ), end='')
  for name in args.only:
    for line in SECTIONS[name](planner):
      print(line, flush=True)


if __name__ == '__main__':
  main()
