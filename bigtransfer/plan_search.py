"""What fits: the largest batch of a device, accumulation, remat, sharding."""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from bigtransfer import config as config_lib
from bigtransfer import planning

# What costs least time first: a layer or unit that is computed twice adds a
# third to the arithmetic, products kept less.
POLICIES = {'bert': ('none', 'dots', 'layer'), 'bit': ('none', 'unit', 'stage')}
# Examples of a pass that no device holds, of any but the smallest models; more
# are not looked for.
FAR = 4096


class Found(NamedTuple):
  """What fits with one remat policy.

  Attributes:
    remat: the policy.
    largest: examples of one pass on one device, estimated; memory is all but
      linear in it. None if nothing fits.
    plan: of the config's batch with the least accumulation that fits, or None.
  """

  remat: str
  largest: int | None
  plan: dict[str, Any] | None


def search(
    job: planning.Job, topology: Any, cache: bool = True
) -> list[Found]:
  """Returns what fits for each remat policy, the cheapest policy first.

  Where nothing does, the presets of sharding that split the state are tried,
  unless the config names one.
  """
  found = _policies(job, topology, cache)
  for preset in ('zero1', 'fsdp'):
    if any(f.plan for f in found) or job.config.sharding.preset:
      break
    found = _policies(changed(job, preset=preset), topology, cache)
  return found


def _policies(job, topology, cache):
  return [
      _policy(job, topology, remat, cache)
      for remat in POLICIES[job.config.model.name]
  ]


def best(found: list[Found]) -> dict[str, Any] | None:
  """Returns the plan with the shortest step; of equals, the first."""
  plans = [f.plan for f in found if f.plan]
  return min(plans, key=lambda p: p['step_seconds'], default=None)


def changed(job: planning.Job, **values: Any) -> planning.Job:
  """Returns a job with other values.

  They are `remat`, `preset` of sharding, and keys of the config itself, such
  as `accum_steps`.
  """
  config = copy.deepcopy(job.config)
  preset, remat = values.pop('preset', None), values.pop('remat', None)
  if preset:
    config.sharding.preset = preset
    config_lib.fill_layout(config)
  if remat:
    config.model.remat = remat
  for key, value in values.items():
    config[key] = value
  return job._replace(config=config)


def _policy(job, topology, remat, cache):
  job = changed(job, remat=remat)
  per_device = job.config.batch_size // planning.build(job, topology).parts

  def plan(job, topology):
    return planning.plan([planning.build(job, topology)], cache)[0]

  line = estimate(job, topology, plan)
  if line is None:
    return Found(remat, None, None)
  fits = None
  for passes in _divisors(per_device):
    if per_device // passes > line.largest(passes > 1):
      continue
    tried = plan(changed(job, accum_steps=passes), topology)
    if tried['fits']:
      fits = tried
      break
  return Found(remat, line.largest(False) or None, fits)


class Line(NamedTuple):
  """Bytes of a device as a line over the examples of a pass."""

  base: float
  slope: float
  usable: int
  gradients: int

  def largest(self, accumulated: bool) -> int:
    """Examples of a pass; with accumulation, more gradients are kept."""
    extra = self.gradients if accumulated else 0
    return max(
        0, math.floor((self.usable - self.base - extra) / self.slope)
    )


def estimate(
    job: planning.Job, topology: Any, plan: Callable[..., dict[str, Any]]
) -> Line | None:
  """Returns the Line of a job, or None if not even one example fits.

  Through two sizes that do not fit: those fail in seconds, where one that fits
  is compiled for minutes. A far too large one tells where to look.

  Args:
    job: to be planned.
    topology: the slice.
    plan: (job, topology) -> plan.
  """
  parts = planning.build(job, topology).parts

  def need(size):
    tried = changed(job, batch_size=size * parts, accum_steps=1)
    if job.num_examples:
      # As many steps as before, so that the schedule goes on to fit.
      examples = job.num_examples * size * parts // job.config.batch_size
      tried = tried._replace(num_examples=examples)
    found = plan(tried, topology)
    return found if not found['fits'] else None

  far = need(FAR)
  if far is None:
    return Line(0, topology.chip.usable / FAR, topology.chip.usable, 0)
  room = max(0, far['usable_bytes'] - far['state_bytes'])
  each = (far['needed_bytes'] - far['state_bytes']) / FAR
  near, points = max(1, math.floor(room / each)), [(FAR, far['needed_bytes'])]
  for size in (2 * near, 4 * near):
    tried = need(size)
    if tried:
      points.append((size, tried['needed_bytes']))
  (a, need_a), (b, need_b) = sorted(points)[:2]
  slope = (need_b - need_a) / (b - a)
  line = Line(
      need_a - slope * a, slope, far['usable_bytes'], 4 * far['parameters']
  )
  return line if line.largest(False) else None


def _divisors(n):
  return [d for d in range(1, n + 1) if n % d == 0]
