"""Plans a job for a TPU slice that is not there: does it fit, what is it worth?

python -m bigtransfer.plan --topology v3-2048 \\
    --config configs/bert_pretrain.py:large,recipe=lamb_64k_32k

Compiles the real step of each phase with the compiler of the TPU (pip install
'bigtransfer[plan]'), on any Linux machine. The data need not be there. Times
are bounds: arithmetic, memory and links at their peaks.

Exit codes: 0 all phases fit, 1 one does not, 2 wrong use.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

# Only the compiler is wanted of the TPU, and its chatter is not.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TPU_MIN_LOG_LEVEL', '2')

from bigtransfer import (  # noqa: E402
  command_line,
  plan_cache,
  plan_data,
  plan_search,
  plan_table,
  planning,
  topologies,
)
from bigtransfer import config as config_lib  # noqa: E402


def parse_args(argv: Sequence[str]):
  """Returns the flags and the (key, text) overrides."""
  overrides, rest = command_line.split(argv)
  parser = argparse.ArgumentParser(
      'python -m bigtransfer.plan',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  add = parser.add_argument
  add('--config', required=True, metavar='FILE.py[:ARGS]',
      help='recipe; --config.KEY=VALUE overrides a key')
  add('--topology', metavar='SLICE', help='v3-2048, v5litepod-256, ... or a'
      ' shape in chips, v3:32x32; by default config.target')
  add('--search', action='store_true', help='find the largest batch per'
      ' device, and the accumulation and remat that fit')
  add('--compare', nargs='+', default=[], metavar='X', help='side by side:'
      ' slices, or other arguments (ARGS) of the recipe')
  add('--json', metavar='FILE', help='write all numbers')
  add('--picture', metavar='FILE.png', help='draw where the memory goes')
  add('--no_cache', action='store_true', help='compile even what was compiled'
      f' before ({plan_cache.FOLDER})')
  for name, meaning in (
      ('num_examples', 'of the training set, where it counts in epochs'),
      ('num_classes', 'of the training set'),
      ('vocab_size', 'words of the data; by default those of uncased BERT'),
  ):
    add(f'--{name}', type=int, metavar='N', help=meaning)
  return parser.parse_args(rest), overrides


def main(argv: Sequence[str] | None = None) -> int:
  args, overrides = parse_args(sys.argv[1:] if argv is None else argv)
  try:
    return run(args, overrides)
  except (ValueError, TypeError, KeyError, AttributeError, OSError) as e:
    command_line.say_error(e)
    return 2


def run(args, overrides) -> int:
  """Plans, prints and writes; returns the exit code."""
  asked = plan_data.Asked(args.num_examples, args.num_classes, args.vocab_size)
  columns = _columns(args, overrides, asked)
  builts = [planning.build(job, topology) for job, topology in columns]
  plans = planning.plan(builts, not args.no_cache)
  print(plan_table.table(plans))
  found = {}
  for (job, topology), plan in zip(columns, plans, strict=True):
    if args.search or not plan['fits']:
      found[f'{plan["phase"]} {plan["topology"]}'] = _search(
          job, topology, plan, not args.no_cache
      )
  if args.picture:
    from bigtransfer import plan_picture

    plan_picture.draw(list(zip(builts, plans, strict=True)), args.picture)
    print(f'picture: {args.picture}')
  if args.json:
    with open(args.json, 'w', encoding='utf-8') as f:
      json.dump({'plans': plans, 'search': found}, f, indent=2)
  refused = [plan for plan in plans if not plan['fits']]
  for plan in refused:
    print(f'error: {plan_table.refused(plan)}', file=sys.stderr)
  return 1 if refused else 0


def _columns(args, overrides, asked):
  """Returns (job, topology) of each column of the table."""
  recipe = args.config.partition(':')[0]
  specs, names = [args.config], []
  for item in args.compare:
    if re.fullmatch(r'(v\d\w*|tpu7x)[-:][\dx]+', item):
      names.append(item)
    else:
      specs.append(f'{recipe}:{item}')
  columns = []
  for spec in specs:
    config = config_lib.load(spec, overrides)
    first = args.topology or config.target
    if not (first or names):
      raise ValueError(
          f'--topology is missing, and {spec} names no slice as config.target'
      )
    for name in [*([first] if first else []), *names]:
      topology = topologies.parse(name)
      columns += [(job, topology) for job in planning.jobs(config, asked)]
  return columns


def _search(job, topology, plan, cache):
  """Prints what fits, and returns it for JSON."""
  print(f'\nphase {job.name} on {topology}: what fits')
  found = plan_search.search(job, topology, cache)
  for f in found:
    most = 'nothing' if f.largest is None else f'about {f.largest:,} at most'
    if f.largest == plan_search.FAR:
      most = f'{f.largest:,} or more'
    print(f'  remat={f.remat!r}: {most} per device and pass')
    if f.plan:
      print(f'    batch {job.config.batch_size:,}:'
            f' {plan_table.settings(f.plan)}')
  best = plan_search.best(found)
  print('  best: ' + (plan_table.settings(best) if best else 'none of these'))
  return [f._asdict() for f in found]


if __name__ == '__main__':
  sys.exit(main())
