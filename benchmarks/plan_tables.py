r"""The tables of docs/plans.md: what fits on which slice, by the TPU compiler.

python -m benchmarks.plan_tables --minutes 600 > docs/plans.md

Takes hours on two cores, most of them for the widest networks. What is compiled
is kept (~/.cache/bigtransfer/plans), so that the same command goes on; what is
not there after so many minutes is left open in the tables, or follows from what
is there and has a ~.
"""

import argparse
import datetime
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
OPEN = 'not compiled'
# What is compiled first; v2 has the layouts of v3 to the byte.
ORDER = ('v3', 'v5e', 'v4', 'v5p', 'v6e', 'tpu7x')
INTRO = '''# Plans

What jobs need on TPU slices, by the compiler of the TPU (libtpu {libtpu}, JAX
{jax}, {date}) on a machine without one. `python -m benchmarks.plan_tables`
made this page; the model may have become lighter since. A device is a chip, but
half of one on v2, v3 and TPU7x. GiB are of one device; a program may use
{usable}.

- *tight*: the compiler accepts it, as parts of the state make room before
  others are needed; all of the state and the temporaries would be more.
- Milliseconds, hours and MFU are bounds: the longest of arithmetic, HBM and
  links at their peaks. A real step takes longer.
- A program that does not fit is refused in seconds with what it would need, and
  memory is a line over the examples of a pass, to 1 %. *~* is by a line
  through one size, to 5 %; *not compiled* waits for the command to go on.
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

  def line(self, job, generation):
    """Returns the plan_search.Line of a chip, None if nothing fits."""
    return plan_search.estimate(job, host(generation), self.plan)

  def rough(self, job, generation):
    """Returns a Line from one size."""
    topology = host(generation)
    far = plan_search.refused(job, topology, self.plan, plan_search.FAR)
    return plan_search.through_far(far, topology)


def host(generation):
  """Returns the smallest slice of four chips or more."""
  return next(t for t in topologies.slices(generation) if t.num_chips >= 4)


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
    return (OPEN, *[''] * (len(COLUMNS) - 1))


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
      cells = tried(planner, job, topology)
      if OPEN in cells:
        cells = by_line(planner, job, topology)
      yield row(variant, remat, *cells)
      if not {'no', '~no'} & set(cells):
        break


def by_line(planner, job, topology):
  """The cells of `COLUMNS` that follow from sizes that do not fit."""
  generation = topology.chip.name
  line = None
  for get in (planner.rough, planner.line):
    try:
      line = get(job, generation)
    except Timeout:
      break
  if line is None:
    return (OPEN, *[''] * (len(COLUMNS) - 1))
  built = planning.build(job, topology)
  state = planning.held(built.program.abstract)
  peak = line.base + line.slope * job.config.batch_size / built.parts
  return (
      f'{state / 2**30:.2f}', f'~{(peak - state) / 2**30:.2f}',
      f'~{peak / 2**30:.2f}', '~yes' if peak <= line.usable else '~no',
      OPEN, '', f'{built.config.total_steps:,}', '',
  )


CASES = (
    ('BERT-Large, 128', LAMB, 'dots', 0),
    ('BERT-Large, 512', LAMB, 'dots', 1),
    *((v, f'configs/bit_pretrain.py:{v}', 'none', 0) for v in VARIANTS),
)


def smallest(planner):
  """Largest batches of a device, and the slices that follow."""
  yield '''
## The smallest slice of each generation

The first number is how many examples one pass on one device holds, from sizes
that do not fit; the slice is the smallest that then takes the batch at once;
with accumulation the one in brackets does. Batch 4,096 for BiT, 65,536 at
length 128 and 32,768 at 512 for BERT-Large; state on every device, `remat` none
for BiT and dots for BERT.
'''
  yield header('network', *chips.CHIPS)
  found = lines(planner)
  for name, spec, remat, index in CASES:
    job = planner.jobs(spec, remat=remat)[index]
    yield row(name, *(fitting(job, g, found[name]) for g in chips.CHIPS))


def lines(planner):
  """Returns {case: {generation: (Line, rough)}}, as far as there is time.

  A rough one of each first.
  """
  found = {name: {} for name, *_ in CASES}
  for rough, get in ((True, planner.rough), (False, planner.line)):
    for generation in ORDER:
      for name, spec, remat, index in CASES:
        job = planner.jobs(spec, remat=remat)[index]
        try:
          found[name][generation] = get(job, generation), rough
        except Timeout:
          continue
  return found


def fitting(job, generation, found):
  """'28: v3-512 (v3-8)': see `smallest`."""
  own = 'v3' if generation == 'v2' else generation
  # v5e has the memory of an example that the others have, to some per cent.
  other = next((g for g in (own, 'v5e', 'v3') if g in found), None)
  if other is None:
    return OPEN
  line, rough = found[other]
  about = '~' if rough or other != own else ''
  line = line and line._replace(usable=chips.CHIPS[generation].usable)
  if not (line and line.largest(False)):
    return f'{about}none: split the state'
  largest, batch = line.largest(False), job.config.batch_size
  once = next(
      (t.name for t in topologies.slices(generation)
       if t.num_devices * largest >= batch and batch % t.num_devices == 0),
      'no slice',
  )
  least = host(generation).name
  some = f' ({least})' if line.largest(True) and once != least else ''
  return f'{about}{largest}: {once}{some}'


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
      date=datetime.date.today().isoformat(),
      usable=usable,
  ), end='')
  for name in args.only:
    for line in SECTIONS[name](planner):
      print(line, flush=True)


if __name__ == '__main__':
  main()
