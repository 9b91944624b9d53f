"""Learning rate against step.

Steps are counted from 0: f(k) is the rate of the update that has k updates
before it, so the first update uses f(0), which is 0 under a warm-up. This is
how the released BiT code (`bit_jax/train.py` passes step - 1) and the original
BERT code (`global_step` before it is incremented) count.
"""

import itertools

import jax.numpy as jnp


def make(config, total_steps):
  """Returns the float32 learning rate as a function of the step.

  The rate grows linearly to the peak, `config.optimizer.learning_rate`,
  over `warmup` updates and then follows the shape `config.schedule.name`;
  without a warm-up the first rate is the peak. From `total_steps` on it stays
  at its end (rsqrt falls on).

  Args:
    config: the whole config, durations in steps.
    total_steps: number of updates of the run or phase.

  Returns:
    A function of an integer step, a number or a traced scalar.

  Raises:
    ValueError: a schedule that cannot be, such as a warm-up that outlasts the
      run.
  """
  schedule, peak = config.schedule, config.optimizer.learning_rate
  _check(schedule, peak, total_steps)
  shape = SHAPES[schedule.name]

  def learning_rate(step):
    t = jnp.asarray(step, jnp.float32)
    fraction = shape(t, schedule, total_steps)
    if schedule.warmup:
      ramp = t / schedule.warmup
      fraction = jnp.where(t < schedule.warmup, ramp, fraction)
    return jnp.asarray(peak * fraction, jnp.float32)

  return learning_rate


def batch_rule(rule, base_lr, base_batch, batch_size):
  """Scales a rate meant for `base_batch` examples to `batch_size` of them.

  'linear' keeps the rate per example (Goyal et al., arXiv 1706.02677), 'sqrt'
  the variance of an update, 'constant' the rate.
  """
  if rule not in BATCH_RULES:
    raise ValueError(
      f'optimizer.batch_rule={rule!r}; accepted: {", ".join(BATCH_RULES)}.'
    )
  return base_lr * (batch_size / base_batch) ** BATCH_RULES[rule]


def _constant(t, schedule, total_steps):
  del schedule, total_steps
  return jnp.ones_like(t)


def _stair(t, schedule, total_steps):
  # Strictly later: update 3000 still has the rate from before boundary 3000.
  del total_steps
  fraction = jnp.ones_like(t)
  for boundary in schedule.boundaries:
    fraction *= jnp.where(t > boundary, schedule.factor, 1.0)
  return fraction


def _rsqrt(t, schedule, total_steps):
  del total_steps
  since = jnp.maximum(t - schedule.warmup, 0.0)
  return 1.0 / jnp.sqrt(1.0 + since / schedule.timescale)


def _cosine(t, schedule, total_steps):
  progress = _progress(t, schedule, total_steps)
  return _to_end(0.5 + 0.5 * jnp.cos(jnp.pi * progress), schedule)


def _linear(t, schedule, total_steps):
  return _to_end(1.0 - _progress(t, schedule, total_steps), schedule)


def _polynomial(t, schedule, total_steps):
  left = 1.0 - _progress(t, schedule, total_steps)
  return _to_end(left**schedule.power, schedule)


def _progress(t, schedule, total_steps):
  """Returns 0 at the start of the decay and 1 at the end of the run.

  From 'zero' the clock runs during the warm-up too, and the rate jumps down
  where the warm-up ends: BERT's and NVIDIA's published recipes do this.
  """
  start = schedule.warmup if schedule.decay_from == 'warmup' else 0
  return jnp.clip((t - start) / (total_steps - start), 0.0, 1.0)


def _to_end(fraction, schedule):
  return schedule.end + (1.0 - schedule.end) * fraction


SHAPES = {
  'constant': _constant,
  'cosine': _cosine,
  'linear': _linear,
  'polynomial': _polynomial,
  'rsqrt': _rsqrt,
  'stair': _stair,
}
BATCH_RULES = {'constant': 0.0, 'linear': 1.0, 'sqrt': 0.5}  # the exponents


def _check(s, peak, total_steps):
  """Refuses, by name and value, what cannot be a schedule."""
  _require(total_steps >= 1, 'total_steps', total_steps, '1 or more')
  _require(peak >= 0, 'optimizer.learning_rate', peak, '0 or more')
  _require(s.name in SHAPES, 'schedule.name', s.name, ', '.join(SHAPES))
  _require(
    0 <= s.warmup < total_steps,
    'schedule.warmup',
    s.warmup,
    f'from 0 to below total_steps={total_steps}',
  )
  _require(
    s.decay_from in ('warmup', 'zero'),
    'schedule.decay_from',
    s.decay_from,
    'warmup, zero',
  )
  _require(0 <= s.end <= 1, 'schedule.end', s.end, 'a fraction from 0 to 1')
  _require(s.power > 0, 'schedule.power', s.power, 'above 0')
  _require(s.timescale > 0, 'schedule.timescale', s.timescale, 'above 0')
  _require(0 < s.factor < 1, 'schedule.factor', s.factor, 'between 0 and 1')
  if s.name == 'stair':
    edges = (s.warmup - 1, *s.boundaries, total_steps)
    _require(
      s.boundaries and all(a < b for a, b in itertools.pairwise(edges)),
      'schedule.boundaries',
      s.boundaries,
      f'one or more rising steps from warmup={s.warmup} to below '
      f'total_steps={total_steps}',
    )


def _require(good, field, value, accepted):
  if not good:
    raise ValueError(f'{field}={value!r}; accepted: {accepted}.')
