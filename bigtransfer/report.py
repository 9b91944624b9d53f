"""Draws the curves of one or several runs from what their workdirs hold.

python -m bigtransfer.report WORKDIR... [--output DIR]
"""

import argparse
import io
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bigtransfer import files, goodput, norms

# Title, and the series that it shows: (file, kind, name of the value).
PANELS = (
    ('loss', (('metrics', 'train', 'loss'), ('metrics', 'eval', 'loss'))),
    (
        'accuracy',
        (('metrics', 'train', 'accuracy'), ('metrics', 'eval', 'accuracy')),
    ),
    *(
        (
            title,
            (('metrics', 'train', name), ('metrics', 'eval', name)),
        )
        for title, name in (
            ('masked-word loss', 'mlm_loss'),
            ('masked-word accuracy', 'mlm_accuracy'),
            ('next-sentence accuracy', 'nsp_accuracy'),
            ('F1', 'f1'),
        )
    ),
    ('learning rate', (('metrics', 'train', 'lr'),)),
    ('examples/s', (('timing', None, 'examples_per_second'),)),
    ('model FLOPs utilization', (('timing', None, 'mfu'),)),
    ('share of time waiting for data', (('timing', None, 'data_wait'),)),
)
# Paul Tol's bright scheme: told apart by colour-blind readers and in print.
COLORS = (
    '#4477AA',
    '#EE6677',
    '#228833',
    '#CCBB44',
    '#66CCEE',
    '#AA3377',
    '#777777',
)
# A longer curve is drawn as the means of this many stretches.
POINTS = 200


class Run(NamedTuple):
  """The curves of a workdir: steps and values by panel series."""

  name: str
  series: dict[tuple, tuple[np.ndarray, np.ndarray]]
  phases: list[tuple[int, str]]  # (step before its first one, name)
  norms: dict[str, Any] | None  # norms.curves, where they were logged


def load(workdir: str, name: str | None = None) -> Run:
  """Reads a workdir's metrics and timing.

  A last line that was cut off by a kill is left out.

  Raises:
    ValueError: there is no such folder, it holds no metrics, or a line other
      than the last is broken.
    OSError: it cannot be read.
  """
  if not files.is_folder(workdir):
    raise ValueError(f'{workdir}: there is no such workdir')
  metrics = _read(os.path.join(workdir, 'metrics.jsonl'))
  if not metrics:
    raise ValueError(f'{workdir}: metrics.jsonl is missing or holds no metrics')
  timing = _read(os.path.join(workdir, 'timing.jsonl'))
  series = {}
  for record in metrics:
    if record['kind'] == 'norms':
      continue
    for key, value in record['values'].items():
      curve = series.setdefault(('metrics', record['kind'], key), [])
      curve.append((record['step'], value))
  for record in timing:
    for key in record.keys() - {'step'}:
      curve = series.setdefault(('timing', None, key), [])
      curve.append((record['step'], record[key]))
  phases, last = [], 0
  for record in metrics:
    if not phases or record['phase'] != phases[-1][1]:
      phases.append((last, record['phase']))
    last = record['step']
  return Run(
      name or os.path.basename(os.path.abspath(workdir)),
      {key: tuple(np.array(curve).T) for key, curve in series.items()},
      phases,
      norms.curves(metrics)
      if any(record['kind'] == 'norms' for record in metrics)
      else None,
  )


def _read(path):
  if not files.exists(path):
    return []
  lines = files.read(path).split(b'\n')[:-1]  # what has no end was cut off
  records = []
  for number, line in enumerate(lines, 1):
    try:
      records.append(json.loads(line))
    except ValueError as e:
      raise ValueError(f'{path}:{number}: not a line of metrics: {e}') from e
  return records


def draw(workdirs: Sequence[str], output: str) -> list[str]:
  """Draws `curves.png` into the folder `output`; returns what was written.

  Raises:
    ValueError: a workdir cannot be read, see `load`.
    OSError: the picture cannot be written.
  """
  names = [os.path.basename(os.path.abspath(path)) for path in workdirs]
  if len(set(names)) < len(names):
    names = workdirs
  runs = [load(*pair) for pair in zip(workdirs, names, strict=True)]
  files.make_folder(output)
  written = [os.path.join(output, 'curves.png')]
  _write(picture(runs), written[0])
  for run in runs:
    if run.norms:
      name = 'norms.png' if len(runs) == 1 else f'norms_{run.name}.png'
      written.append(os.path.join(output, name.replace(os.sep, '_')))
      _write(norms.picture(run.norms, run.name), written[-1])
  return written


def _write(figure, path):
  content = io.BytesIO()
  figure.savefig(content, format='png')
  files.write(path, content.getvalue())


def picture(runs: Sequence[Run]) -> Any:
  """Returns a figure with a panel for each series that any run has."""
  # Imported late, as a run needs it at its end only; without pyplot, so that
  # no figure of the caller's is touched.
  from matplotlib import figure

  present = set().union(*(run.series for run in runs))
  panels = [panel for panel in PANELS if present & set(panel[1])]
  rows, columns = (len(panels) + 1) // 2, min(len(panels), 2)
  result = figure.Figure(
      figsize=(5.5 * columns, 3.6 * rows + 0.4), layout='constrained', dpi=120
  )
  for i, panel in enumerate(panels):
    _draw_panel(result.add_subplot(rows, columns, i + 1), panel, runs)
  _draw_legend(result, runs)
  return result


def _draw_panel(axes, panel, runs):
  title, keys = panel
  for i, run in enumerate(runs):
    for key in keys:
      if key not in run.series:
        continue
      color = COLORS[i % len(COLORS)]
      steps, values = run.series[key]
      if key[1] == 'eval':
        # A run alone has two colours to itself; one of several has one.
        color = COLORS[1] if len(runs) == 1 else color
        axes.plot(steps, values, 'o-', color=color, markersize=3.5)
        continue
      if len(steps) > 2 * POINTS:
        axes.plot(steps, values, color=color, alpha=0.2, linewidth=0.5)
        steps, values = (_means(array) for array in (steps, values))
      axes.plot(steps, values, color=color, alpha=0.7, linewidth=1.3)
  axes.set_title(title, fontsize=11)
  axes.set_xlabel('step')
  axes.xaxis.set_major_formatter('{x:,.0f}')
  if keys[0][0] == 'timing':
    axes.set_ylim(bottom=0)
  if title == 'examples/s':
    axes.yaxis.set_major_formatter('{x:,.0f}')
  axes.grid(alpha=0.25)
  axes.spines[['top', 'right']].set_visible(False)
  for step, name in sorted({p for r in runs if r.phases[1:] for p in r.phases}):
    axes.axvline(step, color='0.4', linestyle=':', linewidth=1)
    axes.annotate(
        name,
        (step, 1),
        xycoords=('data', 'axes fraction'),
        xytext=(3, -3),
        textcoords='offset points',
        va='top',
        fontsize=8,
        color='0.3',
    )


def _means(array):
  return [part.mean() for part in np.array_split(array, POINTS)]


def _draw_legend(result, runs):
  from matplotlib import lines

  def line(label, color, **style):
    return lines.Line2D([], [], color=color, label=label, **style)

  if len(runs) == 1:
    result.suptitle(runs[0].name, fontsize=12)
    train, evaluation, entries = COLORS[0], COLORS[1], []
  else:
    train = evaluation = '0.4'
    entries = [
        line(run.name, COLORS[i % len(COLORS)], linewidth=4)
        for i, run in enumerate(runs)
    ]
  entries.append(line('train', train, linewidth=1.3, alpha=0.7))
  if any(key[1] == 'eval' for run in runs for key in run.series):
    entries.append(line('eval', evaluation, marker='o', markersize=3.5))
  result.legend(
      handles=entries, loc='outside lower center', ncols=min(len(entries), 4)
  )


def main(argv: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
      prog='python -m bigtransfer.report',
      description='Draws loss, accuracy, learning rate and speed over steps.',
  )
  parser.add_argument(
      'workdirs',
      nargs='+',
      metavar='WORKDIR',
      help='the --workdir of a run; several are drawn over one another',
  )
  parser.add_argument(
      '--output',
      metavar='DIR',
      help='for curves.png (default: WORKDIR/plots, or plots here for several)',
  )
  args = parser.parse_args(argv)
  alone = args.workdirs[0] if len(args.workdirs) == 1 else ''
  output = args.output or os.path.join(alone, 'plots')
  try:
    for path in (*args.workdirs, output):
      files.check(path, 'WORKDIR' if path in args.workdirs else '--output')
    print(*draw(args.workdirs, output), sep='\n')
    for workdir in args.workdirs:
      if files.exists(os.path.join(workdir, 'ledger.jsonl')):
        print(f'{workdir}: {goodput.text(goodput.of_workdir(workdir))}')
  except (OSError, ValueError) as e:
    parser.error(str(e))


if __name__ == '__main__':
  main()
