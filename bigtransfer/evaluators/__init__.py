"""Evaluators: each module has a class `Evaluator`.

  Evaluator(config, *, predict, batches, data)
      predict: (params, model_state, batch) -> outputs of the model
      batches: () -> iterable of global batches with `mask`, every example of
          the evaluation split exactly once over all processes
      data: of the phase, see program.Phase; for its `class_names` and the like
  run(params, model_state) -> dict[str, float]
  tables() -> dict of file name -> text, for the workdir

Sums and counts stay on the devices until all batches have been seen.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any

import jax


class EvaluationError(ValueError):
  """The data or the config cannot be evaluated as asked."""


def load(name: str) -> Any:
  """Returns the `Evaluator` class of module `name`.

  Raises:
    ValueError: no such module; lists those there are.
  """
  names = [m.name for m in pkgutil.iter_modules(__path__)]
  if name not in names:
    raise ValueError(
        f'config.evaluators: {name!r} is not one of {", ".join(sorted(names))}'
    )
  return importlib.import_module(f'{__name__}.{name}').Evaluator


def add_up(
    add: Callable[[Any, Any], Any], totals: Any, batches: Iterable[Any]
) -> Any:
  """Returns, on the host, what `totals = add(totals, batch)` comes to.

  The devices compute one batch while the next one waits for them, and no more:
  `batches` may end it by an exception, and all queued would still be computed.
  """
  before = totals
  for batch in batches:
    jax.block_until_ready(before)
    before, totals = totals, add(totals, batch)
  return jax.device_get(totals)
