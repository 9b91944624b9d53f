"""Draws where the memory of a planned job goes."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use('agg')
from matplotlib import pyplot as plt  # noqa: E402

from bigtransfer import trees  # noqa: E402


def by_layer(tree: Any) -> dict[str, float]:
  """Bytes on one device of each part of a tree of shardings and shapes.

  A part is what the first two names of a path say: encoder/layers, block1/...
  """
  parts = {}
  for path, leaf in trees.flatten(tree):
    shape = leaf.sharding.shard_shape(leaf.shape)
    name = '/'.join(path.split('/')[:2])
    size = math.prod(shape) * leaf.dtype.itemsize
    parts[name] = parts.get(name, 0) + size
  return parts


def draw(planned: Sequence[tuple[Any, dict[str, Any]]], path: str):
  """Writes a PNG with a bar per phase and slice.

  Args:
    planned: pairs of what `planning.build` and `planning.plan` return.
    path: of the picture.
  """
  figure, axes = plt.subplots(
      figsize=(9, 1.6 + 1.1 * len(planned)), layout='constrained'
  )
  names = {}
  for row, (built, plan) in enumerate(planned):
    left = 0.0
    for name, size in _pieces(built, plan):
      color = names.setdefault(name, plt.cm.tab20(len(names) % 20))
      axes.barh(row, size / 2**30, left=left / 2**30, color=color)
      left += size
    usable = plan['usable_bytes'] / 2**30
    axes.plot([usable] * 2, [row - 0.45, row + 0.45], color='black')
  axes.set_yticks(
      range(len(planned)),
      [f'{plan["phase"]}\n{plan["topology"]}' for _, plan in planned],
  )
  axes.invert_yaxis()
  axes.set_xlabel('GiB of HBM on one device; the black line is what it has')
  handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in names.values()]
  axes.legend(
      handles, names, fontsize='small', ncols=2, loc='upper left',
      bbox_to_anchor=(0, -0.25),
  )
  figure.savefig(path, dpi=120, bbox_inches='tight')
  plt.close(figure)


def _pieces(built, plan):
  """Parameters by layer, the optimizer, and what a step needs beside them."""
  state = built.program.abstract
  parts = by_layer(state.params)
  yield from sorted(parts.items(), key=lambda item: -item[1])
  rest = plan['state_bytes'] - sum(parts.values())
  yield 'optimizer and average', rest
  if plan['fits']:
    yield 'activations, gradients', plan['activation_bytes']
