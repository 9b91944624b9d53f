"""Objectives: a task turns a batch into a loss and its metrics.

A module of this package has `build(config, model) -> task`, where a task has

  loss(params, model_state, batch, rng, train)
      -> (loss_sum, weight_sum, metrics, model_state)
  prepare(batch, rng) -> batch

`metrics` is name -> (sum, weight). Sums and weights are added over devices and
micro-batches and divided once, so that padding, accumulation and any number
of devices leave the result exact. `prepare` sees the global batch before it
is split into micro-batches: what mixes examples belongs there. `loss` gets
`row` [b] with the batch, see `train_step`: randomness goes by it.
"""

import importlib
import pkgutil
from typing import Any


def build(name: str, config: Any, model: Any) -> Any:
  """Returns the task of module `name`.

  Raises:
    ValueError: no such module; lists those there are.
  """
  names = [m.name for m in pkgutil.iter_modules(__path__)]
  if name not in names:
    raise ValueError(
        f'config.task={name!r}: accepted are the modules of'
        f' {__name__}: {", ".join(sorted(names))}'
    )
  return importlib.import_module(f'{__name__}.{name}').build(config, model)
