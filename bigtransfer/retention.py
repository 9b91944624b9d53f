"""Which checkpoints stay, as pure functions and as an Orbax policy."""

import math
from collections.abc import Mapping
from typing import Any

from orbax.checkpoint import checkpoint_managers


def best(values: Mapping[int, float], mode: str) -> int | None:
  """The step of the best finite value, the latest of equals."""
  finite = {k: v for k, v in values.items() if math.isfinite(v)}
  sign = 1 if mode == 'max' else -1
  return max(finite, key=lambda k: (sign * finite[k], k), default=None)


def kept(metrics: Mapping[int, Mapping[str, float]], config: Any) -> set[int]:
  """Which checkpoints stay, by the `checkpoint` section of the config.

  Always the newest; the newest whose metrics are all finite, which a bad
  one must not displace; the last `keep`; multiples of `keep_every`; the best
  by `best_metric`, where NaN never counts.

  Args:
    metrics: step -> evaluation at that step, {} where there was none.
    config: with `keep`, `keep_every`, `best_metric`, `best_mode`.
  """
  steps = sorted(metrics)
  stay = set(steps if config.keep is None else steps[-config.keep :])
  good = [s for s in steps if all(map(math.isfinite, metrics[s].values()))]
  stay |= set(steps[-1:]) | set(good[-1:])
  if config.keep_every:
    stay |= {s for s in steps if s % config.keep_every == 0}
  if config.best_metric is not None:
    name = config.best_metric
    values = {s: m[name] for s, m in metrics.items() if name in m}
    stay |= {best(values, config.best_mode)} - {None}
  return stay


class Policy(checkpoint_managers.PreservationPolicy):
  """`kept` as an Orbax policy."""

  def __init__(self, config):
    self._config = config

  def should_preserve(self, checkpoints, *, context):
    del context
    stay = kept({c.step: c.metrics or {} for c in checkpoints}, self._config)
    return [c.step in stay for c in checkpoints]
