"""What fits: the largest batch of a device, accumulation, remat, sharding."""

import copy
import math
from typing import Any, NamedTuple

from bigtransfer import planning

# What costs least time first: a layer or unit that is computed twice adds a
# third to the arithmetic, products kept less.
POLICIES = {'bert': ('none', 'dots', 'layer'), 'bit': ('none', 'unit', 'stage')}
# Micro-batches of a device that are tried in search of one that does not fit.
_LARGEST = 2**14


class Found(NamedTuple):
  """What fits with one remat policy.

  Attributes:
    remat: the policy.
    largest: examples of one pass on one device, estimated from two sizes that
      do not fit; memory is all but linear in it. None if nothing fits.
    plan: of the config's batch with the least accumulation that fits, or None.
  """

  remat: str
  largest: int | None
  plan: dict[str, Any] | None


def search(
    job: planning.Job, topology: Any, cache: bool = True
) -> list[Found]:
  """Returns what fits for each remat policy, the cheapest policy first."""
  return [
      _policy(job, topology, remat, cache)
      for remat in POLICIES[job.config.model.name]
  ]


def best(found: list[Found]) -> dict[str, Any] | None:
  """Returns the plan with the shortest step; of equals, the first."""
  plans = [f.plan for f in found if f.plan]
  return min(plans, key=lambda p: p['step_seconds'], default=None)


def changed(job: planning.Job, **values: Any) -> planning.Job:
  """Returns a job with other values: `remat`, `batch_size`, `accum_steps`."""
  config = copy.deepcopy(job.config)
  remat = values.pop('remat', None)
  if remat:
    config.model.remat = remat
  for key, value in values.items():
    config[key] = value
  return job._replace(config=config)


def _policy(job, topology, remat, cache):
  job = changed(job, remat=remat)
  per_device = max(1, job.config.batch_size // topology.num_devices)
  estimate = _estimate(job, topology, per_device, cache)
  if estimate is None:
    return Found(remat, None, None)
  plan = None
  for passes in _divisors(per_device):
    if per_device // passes > estimate.largest(passes > 1):
      continue
    tried = _plan(changed(job, accum_steps=passes), topology, cache)
    if tried['fits']:
      plan = tried
      break
  return Found(remat, max(0, estimate.largest(False)) or None, plan)


class _Estimate(NamedTuple):
  """Bytes of a device as a line over the examples of a pass."""

  base: float
  slope: float
  usable: int
  gradients: int

  def largest(self, accumulated: bool) -> int:
    """With accumulation, a second tree of gradients is kept."""
    extra = self.gradients if accumulated else 0
    return math.floor((self.usable - self.base - extra) / self.slope)


def _estimate(job, topology, start, cache):
  """Draws a line through two sizes that do not fit: those fail in seconds."""
  size, failures, last = start, [], None
  while len(failures) < 2 and size <= _LARGEST:
    last = _plan(
        changed(job, batch_size=size * topology.num_devices, accum_steps=1),
        topology, cache,
    )
    if not last['fits']:
      failures.append((size, last['needed_bytes']))
    size *= 2 if failures else 4
  if len(failures) < 2:
    return None
  (a, need_a), (b, need_b) = failures
  slope = (need_b - need_a) / (b - a)
  return _Estimate(
      need_a - slope * a, slope, last['usable_bytes'], 4 * last['parameters']
  )


def _plan(job, topology, cache):
  return planning.plan([planning.build(job, topology)], cache)[0]


def _divisors(n):
  return [d for d in range(1, n + 1) if n % d == 0]
