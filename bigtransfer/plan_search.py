"""What fits: the largest batch of a device, accumulation, remat, sharding."""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from bigtransfer import config as config_lib
from bigtransfer import out_of_memory, planning

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
      for remat in out_of_memory.REMAT[job.config.model.name]
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
  is compiled for minutes. A far too large one tells where to look. (BERT-Large
  at 128 and R50x1 are on one line from there to twice what fits, to 0.2 %, at
  512 to 1.2 %.)

  Args:
    job: to be planned.
    topology: the slice.
    plan: (job, topology) -> plan.
  """
  far = refused(job, topology, plan, FAR)
  line = through_far(far, topology)
  if far is None:
    return line
  near = max(1, line.largest(False))
  for size in (2 * near, 4 * near):
    found = refused(job, topology, plan, size)
    if found:
      need = found['needed_bytes']
      slope = (far['needed_bytes'] - need) / (FAR - size)
      line = line._replace(base=need - slope * size, slope=slope)
      break
  return line if line.largest(False) else None


def through_far(far: dict[str, Any] | None, topology: Any) -> Line:
  """Returns the Line through the state and a plan of FAR that does not fit.

  Without an example there would be the state and gradients; by this line 2 to
  5 % more examples fit than by two sizes. `far` is None where FAR fits: the
  line then ends there.
  """
  if far is None:
    return Line(0, topology.chip.usable / FAR, topology.chip.usable, 0)
  gradients = 4 * far['parameters']
  base = far['state_bytes'] + gradients
  slope = (far['needed_bytes'] - base) / FAR
  return Line(base, slope, far['usable_bytes'], gradients)


def refused(
    job: planning.Job,
    topology: Any,
    plan: Callable[..., dict[str, Any]],
    size: int,
) -> dict[str, Any] | None:
  """Returns the plan of so many examples of a pass, None if they fit."""
  parts = planning.build(job, topology).parts
  tried = changed(job, batch_size=size * parts, accum_steps=1)
  if job.num_examples:
    # As many steps as before, so that the schedule goes on to fit.
    examples = job.num_examples * size * parts // job.config.batch_size
    tried = tried._replace(num_examples=examples)
  found = plan(tried, topology)
  return found if not found['fits'] else None


def _divisors(n):
  return [d for d in range(1, n + 1) if n % d == 0]
