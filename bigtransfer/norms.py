"""Trust ratios and norms of every layer: how they are logged and drawn."""

from collections.abc import Mapping
from typing import Any

import numpy as np

QUANTITIES = ('trust_ratio', 'weight_norm', 'update_norm')


def flat(norms: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
  """Flattens {quantity: {path: array}} into names for `metrics.jsonl`.

  An array [layers] of a stacked parameter gives a name for each layer:
  'trust_ratio/encoder/layers/query/kernel/07'.
  """
  values = {}
  for quantity, of_path in norms.items():
    for path, array in of_path.items():
      array = np.asarray(array)
      if not array.ndim:
        values[f'{quantity}/{path}'] = float(array)
        continue
      for layer, value in enumerate(array.tolist()):
        values[f'{quantity}/{path}/{layer:02}'] = value
  return values


def curves(records: list[dict[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
  """Collects the lines of kind 'norms' of `metrics.jsonl`.

  Returns:
    {quantity: {path: [steps, layers]}} and the steps under 'step', [steps].
  """
  lines = [r for r in records if r['kind'] == 'norms']
  result = {quantity: {} for quantity in QUANTITIES}
  result['step'] = np.array([line['step'] for line in lines])
  names = sorted({name for line in lines for name in line['values']})
  for name in names:
    quantity, path = name.split('/', 1)
    stem, _, layer = path.rpartition('/')
    path = stem if layer.isdigit() else path
    column = [line['values'].get(name, np.nan) for line in lines]
    result[quantity].setdefault(path, []).append(column)
  for quantity in QUANTITIES:
    result[quantity] = {
        path: np.array(columns).T for path, columns in result[quantity].items()
    }
  return result


def picture(found: Mapping[str, Any], title: str) -> Any:
  """Draws `curves`: a line per parameter, over a band from layer to layer."""
  from matplotlib import colormaps, figure

  result = figure.Figure(figsize=(15, 5.2), layout='constrained', dpi=120)
  axes = result.subplots(1, len(QUANTITIES))
  paths = sorted(set().union(*(found[q] for q in QUANTITIES)))
  colors = colormaps['turbo'](np.linspace(0.05, 0.95, max(len(paths), 2)))
  handles = {}
  for axis, quantity in zip(axes, QUANTITIES, strict=True):
    for color, path in zip(colors, paths, strict=False):
      if path not in found[quantity]:
        continue
      values = found[quantity][path]
      [handles[path]] = axis.plot(
          found['step'], np.median(values, 1), color=color, linewidth=1.2
      )
      axis.fill_between(
          found['step'], values.min(1), values.max(1), color=color, alpha=0.12
      )
    axis.set_title(quantity.replace('_', ' '), fontsize=11)
    axis.set_xlabel('step')
    axis.set_yscale('log')
    axis.grid(alpha=0.25)
    axis.spines[['top', 'right']].set_visible(False)
  result.suptitle(f'{title}: median over layers, band from least to most')
  result.legend(
      handles.values(), handles.keys(), loc='outside right center', fontsize=7
  )
  return result
