"""Schedules at their edges, against the published rules."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from bigtransfer.optim import schedules

NAMES = (
  'constant',
  'cosine',
  'exponential',
  'linear',
  'polynomial',
  'rsqrt',
  'stair',
)


def make(total_steps, peak=1.0, **schedule):
  defaults = dict(
    name='constant',
    warmup=0,
    warmup_start=0,
    power=1.0,
    end=0.0,
    decay_from='warmup',
    boundaries=(),
    factor=0.1,
    timescale=10000,
  )
  config = ml_collections.ConfigDict(
    dict(optimizer=dict(learning_rate=peak), schedule=defaults | schedule)
  )
  return schedules.make(config, total_steps)


def rates(f, steps):
  return np.asarray(jax.jit(jax.vmap(f))(jnp.asarray(steps)))


def hyperrule(step, warmup, boundaries, base):
  """The released rule: strictly later than a boundary is a tenth."""
  if step < warmup:
    return base * step / warmup
  return base * 0.1 ** sum(boundary < step for boundary in boundaries)


@pytest.mark.parametrize(
  ('warmup', 'boundaries', 'total'),
  [
    (100, (200, 300, 400), 500),
    (500, (3000, 6000, 9000), 10_000),
    (500, (6000, 12_000, 18_000), 20_000),
  ],
  ids=['small', 'medium', 'large'],
)
def test_stair_is_the_bit_hyperrule_at_every_step(warmup, boundaries, total):
  f = make(total, 0.003, name='stair', warmup=warmup, boundaries=boundaries)
  expected = [hyperrule(k, warmup, boundaries, 0.003) for k in range(total)]
  np.testing.assert_allclose(rates(f, range(total)), expected, rtol=1e-6)


def test_stair_edges_of_the_medium_rule():
  f = make(
    10_000, 0.003, name='stair', warmup=500, boundaries=(3000, 6000, 9000)
  )
  steps = [0, 250, 499, 500, 3000, 3001, 6000, 6001, 9000, 9001, 9999]
  expected = 0.003 * np.array(
    [0, 0.5, 0.998, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
  )
  np.testing.assert_allclose(rates(f, steps), expected, rtol=1e-6)


def test_bert_decays_from_step_zero_and_jumps_where_the_warmup_ends():
  f = make(10, name='polynomial', warmup=4, decay_from='zero')
  expected = [0, 0.25, 0.5, 0.75, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0]
  np.testing.assert_allclose(rates(f, range(12)), expected, atol=1e-7)


@pytest.mark.parametrize(
  ('total', 'warmup', 'jump'), [(7038, 2000, 0.846), (1563, 200, 0.934)]
)
def test_nvidia_phases_jump_by_the_root_of_what_is_left(total, warmup, jump):
  # LAMB phases 1 and 2 of NVIDIA's BERT-large, polynomial of degree 0.5.
  f = make(
    total,
    6e-3,
    name='polynomial',
    warmup=warmup,
    power=0.5,
    decay_from='zero',
  )
  before, after = rates(f, [warmup - 1, warmup])
  assert before == pytest.approx(6e-3 * (warmup - 1) / warmup, rel=1e-6)
  assert after == pytest.approx(6e-3 * jump, abs=6e-6)


@pytest.mark.parametrize(
  ('name', 'middle'),
  [
    ('linear', 0.1 + 0.9 * 0.75),
    ('cosine', 0.1 + 0.9 * (0.5 + 0.5 * np.cos(np.pi / 4))),
    ('polynomial', 0.1 + 0.9 * 0.75**2),
  ],
)
def test_decay_starts_at_the_end_of_the_warmup_and_ends_at_the_end(
  name, middle
):
  f = make(110, 2.0, name=name, warmup=10, end=0.1, power=2.0)
  steps = [0, 5, 9, 10, 35, 110, 500]
  expected = 2.0 * np.array([0, 0.5, 0.9, 1, middle, 0.1, 0.1])
  np.testing.assert_allclose(rates(f, steps), expected, rtol=1e-6)


def test_rsqrt_falls_to_a_half_after_three_timescales():
  f = make(1000, 0.2, name='rsqrt', warmup=10, timescale=100)
  expected = 0.2 * np.array([0.9, 1, 2**-0.5, 0.5, (1 + 99.9) ** -0.5])
  np.testing.assert_allclose(
    rates(f, [9, 10, 110, 310, 10_000]), expected, rtol=1e-6
  )


def test_deepspeed_decays_by_a_tenth_in_a_thousand_updates():
  # Phase 1 of its BERT-large: 11e-3, warm-up 2 % of 7500 updates.
  f = make(7500, 11e-3, name='exponential', warmup=150, factor=0.9,
           timescale=1000)
  expected = 11e-3 * np.array([0, 0.5, 1, 0.9**0.5, 0.9, 0.9**7.35, 0.9**9])
  np.testing.assert_allclose(
    rates(f, [0, 75, 150, 650, 1150, 7500, 9150]), expected, rtol=1e-6
  )


@pytest.mark.parametrize('decay_from', ['warmup', 'zero'])
@pytest.mark.parametrize('name', NAMES)
def test_without_a_warmup_the_first_rate_is_the_peak(name, decay_from):
  f = make(8, 0.3, name=name, boundaries=(4,), decay_from=decay_from)
  assert f(0) == np.float32(0.3)


@pytest.mark.parametrize('name', NAMES)
def test_a_warmup_starts_at_zero_and_rises_linearly(name):
  f = make(12, 0.4, name=name, warmup=4, boundaries=(4,))
  np.testing.assert_allclose(rates(f, range(4)), [0, 0.1, 0.2, 0.3], rtol=1e-6)


@pytest.mark.parametrize('name', NAMES)
def test_any_kind_of_step_gives_a_finite_float32_scalar(name):
  f = make(8, 0.3, name=name, warmup=2, boundaries=(4,), end=0.5)
  for step in (0, 1, 2, 5, 8, 100):
    results = [f(step), f(np.int64(step)), jax.jit(f)(jnp.int32(step))]
    for rate in results:
      assert rate.shape == () and rate.dtype == jnp.float32
      np.testing.assert_allclose(rate, results[0], rtol=1e-6)
      assert np.isfinite(rate)


def test_one_step_is_a_schedule():
  assert make(1, 0.5, name='cosine')(0) == np.float32(0.5)


@pytest.mark.parametrize(
  ('field', 'changes', 'accepted'),
  [
    ('total_steps=0', dict(total_steps=0), '1 or more'),
    ('optimizer.learning_rate=-1.0', dict(peak=-1.0), '0 or more'),
    ('optimizer.learning_rate=nan', dict(peak=float('nan')), '0 or more'),
    ("schedule.name='stairs'", dict(name='stairs'), 'constant, cosine, exp'),
    ('schedule.warmup=10', dict(warmup=10), 'from 0 to below total_steps=10'),
    ('schedule.warmup=-1', dict(warmup=-1), 'from 0 to below'),
    ("schedule.decay_from='0'", dict(decay_from='0'), 'warmup, zero'),
    ('schedule.end=1.5', dict(end=1.5), 'from 0 to 1'),
    ('schedule.power=0.0', dict(power=0.0), 'above 0'),
    ('schedule.factor=10.0', dict(factor=10.0), 'between 0 and 1'),
    ('schedule.timescale=0', dict(timescale=0), 'above 0'),
  ],
)
def test_impossible_values_are_refused_by_name(field, changes, accepted):
  with pytest.raises(ValueError) as error:
    make(**(dict(total_steps=10) | changes))
  assert str(error.value).startswith(f'{field}; accepted: ')
  assert accepted in str(error.value)


@pytest.mark.parametrize('boundaries', [(), (5, 3), (4, 4), (8, 10), (1, 6)])
def test_stairs_need_rising_boundaries_within_the_run(boundaries):
  with pytest.raises(ValueError) as error:
    make(10, name='stair', warmup=2, boundaries=boundaries)
  assert f'schedule.boundaries={boundaries}' in str(error.value)
  assert 'from warmup=2 to below total_steps=10' in str(error.value)


@pytest.mark.parametrize(
  ('rule', 'expected'), [('constant', 0.1), ('linear', 1.6), ('sqrt', 0.4)]
)
def test_batch_rules(rule, expected):
  # big_vision's BiT recipe: 0.1 per 256 examples, batch 4096.
  rate = schedules.batch_rule(rule, 0.1, 256, 4096)
  assert rate == pytest.approx(expected)


def test_the_square_root_rule_gives_the_untuned_lamb_rates():
  # You et al., arXiv 1904.00962: 5e-3 at 32768 examples.
  published = {512: 6.25e-4, 2048: 1.25e-3, 8192: 2.5e-3}
  for batch, rate in published.items():
    scaled = schedules.batch_rule('sqrt', 5e-3, 32768, batch)
    assert scaled == pytest.approx(rate)


# Batch, rate, warm-up and updates of untuned LAMB: the paper's table.
UNTUNED = [
  (512, 5 / (2**3.0 * 1e3), 1 / 320, 1_000_000),
  (1024, 5 / (2**2.5 * 1e3), 1 / 160, 500_000),
  (2048, 5 / (2**2.0 * 1e3), 1 / 80, 250_000),
  (4096, 5 / (2**1.5 * 1e3), 1 / 40, 125_000),
  (8192, 5 / (2**1.0 * 1e3), 1 / 20, 62_500),
  (16384, 5 / (2**0.5 * 1e3), 1 / 10, 31_250),
  (32768, 5 / 1e3, 1 / 5, 15_625),
]


@pytest.mark.parametrize(('batch', 'rate', 'warmup', 'steps'), UNTUNED)
def test_untuned_lamb_is_the_published_table(batch, rate, warmup, steps):
  rule = 'lamb_epoch_warmup'
  assert schedules.batch_rule(rule, 5e-3, 32768, batch) == pytest.approx(rate)
  fraction = schedules.batch_rule_warmup(rule, 0.2, 32768, batch)
  assert fraction == pytest.approx(warmup)
  assert fraction * steps == pytest.approx(3125)


def test_other_batch_rules_keep_the_warmup():
  for rule in ('constant', 'linear', 'sqrt'):
    assert schedules.batch_rule_warmup(rule, 0.2, 256, 8192) == 0.2


def test_a_warmup_that_takes_the_run_is_refused():
  with pytest.raises(ValueError, match='batch_size=163840; .*below 163840'):
    schedules.batch_rule_warmup('lamb_epoch_warmup', 0.2, 32768, 163840)


@pytest.mark.parametrize('f', [
  schedules.batch_rule, schedules.batch_rule_warmup
])
def test_unknown_batch_rules_are_refused(f):
  with pytest.raises(ValueError, match="batch_rule='cubic'; .*linear, sqrt"):
    f('cubic', 0.1, 256, 512)


def test_a_warmup_may_be_under_way_at_the_first_step():
  """MLPerf, batch 8192: start -76, 287 steps of warm-up, 600 in all."""
  f = make(
    600, 2.88293e-3, name='polynomial', decay_from='zero', warmup=287,
    warmup_start=-76,
  )
  np.testing.assert_allclose(f(0), 2.88293e-3 * 76 / 287, rtol=1e-6)
  np.testing.assert_allclose(f(210), 2.88293e-3 * 286 / 287, rtol=1e-6)
  np.testing.assert_allclose(f(211), 2.88293e-3 * (1 - 211 / 600), rtol=1e-6)
