r"""The tables of docs/sharding.md: what a step of each preset sends and holds.

python -m benchmarks.sharding_table [--job small|large]

By the compiler of the TPU, without one. Each layout takes half a minute to two
on two cores; what is compiled is kept (~/.cache/bigtransfer/plans).
"""

import argparse
import collections
import importlib.metadata

from bigtransfer import config as config_lib
from bigtransfer import plan_data, plan_search, planning, topologies

# Of a job: config, slice, what is changed, and the sizes of data, fsdp and
# model of each preset.
JOBS = {
    'small': (
        'configs/bert_pretrain.py:L4_H256', 'v5e:2x4',
        {'batch_size': 256, 'accum_steps': 2},
        {'replicate': (8, 1, 1), 'zero1': (8, 1, 1), 'fsdp': (1, 8, 1),
         'tensor': (4, 1, 2)},
    ),
    'large': (
        'configs/bert_pretrain.py:large,recipe=lamb_64k_32k', 'v4:2x4x4',
        {'batch_size': 2048, 'accum_steps': 2},
        {'replicate': (32, 1, 1), 'zero1': (32, 1, 1), 'fsdp': (1, 32, 1),
         'tensor': (8, 1, 4)},
    ),
}
LEAST = 0.005  # Of the bytes that a step sends; less is left out.


def plan(spec, topology, values, preset, sizes):
  """Returns the plan of the first phase under a preset."""
  job = planning.jobs(config_lib.load(spec), plan_data.Asked())[0]
  mesh = job.config.mesh
  mesh.data, mesh.fsdp, mesh.model = sizes
  # One remat for all, so that only the layout differs.
  job = plan_search.changed(job, preset=preset, remat='layer', **values)
  built = planning.build(job, topologies.parse(topology))
  return planning.plan([built])[0]


def rows(result):
  """Yields kind, type, MB of one and how often a step sends it."""
  counts = collections.Counter()
  for c in result['collectives']:
    counts[c['kind'], c['dtype'], c['bytes']] += c['times']
  total = sum(size * times for (*_, size), times in counts.items())
  for (kind, dtype, size), times in counts.items():
    if size * times >= LEAST * total:
      yield kind, dtype, f'{size / 1e6:.2f}', times


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--job', choices=JOBS, default='small')
  args = parser.parse_args()
  spec, topology, values, layouts = JOBS[args.job]
  print(f'{spec}, {topology}, {values}; '
        f'libtpu {importlib.metadata.version("libtpu")}\n')
  print('| preset, data x fsdp x model | arguments MB | peak MB | sent MB '
        '| kind | type | MB each | times |')
  print('|' + '---|' * 8)
  for preset, sizes in layouts.items():
    result = plan(spec, topology, values, preset, sizes)
    head = (
        f'`{preset}` {" x ".join(map(str, sizes))}',
        *(f'{result[key] / 1e6:,.1f}' for key in
          ('argument_bytes', 'peak_bytes', 'collective_bytes')),
    )
    for row in rows(result):
      print('| ' + ' | '.join(map(str, (*head, *row))) + ' |', flush=True)
      head = ('',) * len(head)


if __name__ == '__main__':
  main()
