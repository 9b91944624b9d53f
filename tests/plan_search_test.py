"""The search, with a compiler whose memory is a line."""

import pytest

from bigtransfer import config as config_lib
from bigtransfer import plan_data, plan_search, planning, topologies
from configs import bit_pretrain

GIB = 2**30
STEPS = 1000  # of an epoch
# GiB of the state, and of an example, by remat policy; and seconds of a step.
COSTS = {'none': (2, 0.5, 1.0), 'unit': (2, 0.25, 1.3), 'stage': (2, 0.3, 1.3)}


@pytest.fixture
def compiled(monkeypatch):
  """Replaces the compiler, and lists what it was asked for."""
  asked = []

  def build(job, topology):
    # The schedule is in steps and must go on to fit.
    assert job.num_examples // job.config.batch_size == STEPS
    return planning.Built(job, job.config, topology, None)

  def plan(builts, cache):
    c = builts[0].config
    size = c.batch_size // 8 // c.accum_steps
    base, slope, seconds = COSTS[c.model.remat]
    base += 1 if c.accum_steps > 1 else 0
    base /= 2 if c.sharding.preset else 1
    need = round((base + slope * size) * GIB)
    asked.append((c.model.remat, size, c.accum_steps, c.sharding.preset))
    plan = {
        'remat': c.model.remat, 'per_device': size, 'needed_bytes': need,
        'accum_steps': c.accum_steps, 'usable_bytes': 16 * GIB,
        'parameters': GIB // 4, 'state_bytes': GIB, 'fits': need <= 16 * GIB,
        'step_seconds': seconds,
    }
    return [plan]

  monkeypatch.setattr(planning, 'build', build)
  monkeypatch.setattr(planning, 'plan', plan)
  monkeypatch.setattr(planning.Built, 'parts', 8)
  return asked


def job(batch_size):
  config = config_lib.phases(bit_pretrain.get_config('R50x1'))[0][1]
  plan_data.fill(config, plan_data.Asked())
  config.batch_size = batch_size
  return planning.Job('train', config, STEPS * batch_size)


def test_largest_batch_and_least_accumulation_are_found(compiled):
  found = plan_search.search(job(8 * 64), topologies.parse('v3-8'))
  # (16 - 2) / 0.5 = 28 at once, and 16, which divides 64, with accumulation.
  assert [(f.remat, f.largest) for f in found] == [
      ('none', 28), ('unit', 56), ('stage', 46)
  ]
  assert [f.plan['accum_steps'] for f in found] == [4, 2, 2]
  assert plan_search.best(found)['remat'] == 'none'
  # Two sizes that fail in seconds and one that is compiled, of each policy.
  assert len(compiled) == 9


def test_a_state_that_does_not_fit_is_split(compiled, monkeypatch):
  monkeypatch.setitem(COSTS, 'none', (30, 0.5, 1.0))
  monkeypatch.setitem(COSTS, 'unit', (30, 0.5, 1.3))
  monkeypatch.setitem(COSTS, 'stage', (30, 0.5, 1.3))
  found = plan_search.search(job(8 * 2), topologies.parse('v3-8'))
  assert plan_search.best(found)['accum_steps'] == 1
  assert {preset for *_, preset in compiled} == {None, 'zero1'}


def test_nothing_is_found_where_nothing_fits(compiled, monkeypatch):
  for remat in COSTS:
    monkeypatch.setitem(COSTS, remat, (100, 0.5, 1.0))
  found = plan_search.search(job(8 * 2), topologies.parse('v3-8'))
  assert plan_search.best(found) is None
  assert {f.largest for f in found} == {None}


def test_two_sizes_that_do_not_fit_make_a_line(compiled, monkeypatch):
  def plan(job, topology):
    return planning.plan([planning.build(job, topology)], False)[0]

  slice_ = topologies.parse('v3-8')

  def largest():
    line = plan_search.estimate(job(64), slice_, plan)
    return line.largest(False), line.largest(True)

  # With accumulation the gradients, 1 GiB, are kept besides.
  assert largest() == (28, 26)
  assert len(compiled) == 2
  far = plan_search.refused(job(64), slice_, plan, plan_search.FAR)
  # By the state and the gradients alone, 2 GiB, where the compiler has 2.
  assert plan_search.through_far(far, slice_).largest(False) == 28
  # As on a large chip with a small network: no more are looked for.
  assert plan_search.through_far(None, slice_).largest(True) == plan_search.FAR
  # Far more state than the shapes tell: what is far away says too much.
  monkeypatch.setitem(COSTS, 'none', (10, 0.5, 1.0))
  assert largest() == (12, 10)
