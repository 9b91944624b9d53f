"""Draws what fills the memory of a device, phase by phase."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import matplotlib
import matplotlib.figure

from bigtransfer import planning, trees

# Layers that are drawn; the smaller ones are one bar.
_BARS = 14
_KINDS = ('parameters', 'moments', 'average', 'activations')
_REST = 'gradients, the rest'
_COLORS = ('#33608c', '#7ca6c9', '#b9a3c6', '#e0a458')


def draw(planned: Sequence[tuple[planning.Built, dict[str, Any]]], path: str):
  """Writes a PNG with a bar for each layer.

  Args:
    planned: phases with their plans, those that do not fit left out.
    path: of the picture.

  Raises ValueError where nothing fits and there is nothing to draw.
  """
  planned = [(built, plan) for built, plan in planned if plan['fits']]
  if not planned:
    raise ValueError('--picture: no phase fits, so none has a layout to draw')
  figure = matplotlib.figure.Figure(
      (8 * len(planned), 6), layout='constrained'
  )
  for i, (built, plan) in enumerate(planned):
    axes = figure.add_subplot(1, len(planned), i + 1)
    _bars(axes, breakdown(built, plan))
    axes.set_title(
        f'{plan["phase"]} on {plan["topology"]}: peak'
        f' {plan["peak_bytes"] / 2**30:.2f} of'
        f' {plan["usable_bytes"] / 2**30:.2f} GiB, {plan["per_device"]} per'
        ' device and pass',
        fontsize=10,
    )
  figure.savefig(path, dpi=120)


def breakdown(
    built: planning.Built, plan: dict[str, Any]
) -> dict[str, dict[str, float]]:
  """Returns {layer: {kind: bytes}} of a device at the peak.

  Activations are all temporaries. Gradients that wait for their sum over
  devices belong to no layer, like what the compiler has more than the layers
  add up to.
  """
  state = built.program.abstract
  parameters = dict(trees.flatten(state.params))
  result = {}

  def add(name, kind, size):
    result.setdefault(name, Counter())[kind] += size

  for kind, tree in zip(
      _KINDS, (state.params, state.opt_state, state.ema), strict=False
  ):
    for name, leaf in trees.flatten(tree):
      parts = name.split('/')
      # A moment is named like its parameter, after what the optimizer adds.
      while parts and '/'.join(parts) not in parameters:
        parts = parts[1:]
      add(_layer(parts) or _REST, kind, planning.held(leaf))
  for name, size in plan['layers'].items():
    add(_REST if name == 'step' else name, 'activations', size)
  missing = plan['activation_bytes'] - sum(plan['layers'].values())
  add(_REST, 'activations', max(0, missing))
  return result


def _layer(parts):
  """The first two parts of a path, without the leaf."""
  parts = [p for p in parts[:-1] if p != 'layers']
  return '/'.join(parts[:2])


def _bars(axes, layers):
  order = sorted(layers, key=lambda name: -sum(layers[name].values()))
  rest = [n for n in order if n != _REST][_BARS:]
  others = Counter()
  for name in rest:
    others.update(layers[name])
  shown = {n: layers[n] for n in order if n not in rest}
  if rest:
    shown[f'{len(rest)} smaller layers'] = others
  names = list(reversed(shown))
  left = [0.0] * len(names)
  for kind, color in zip(_KINDS, _COLORS, strict=True):
    sizes = [shown[name].get(kind, 0) / 2**20 for name in names]
    if any(sizes):
      axes.barh(names, sizes, left=left, color=color, label=kind)
    left = [a + b for a, b in zip(left, sizes, strict=True)]
  axes.set_xlabel('MiB of a device at the peak')
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False, loc='lower right')
