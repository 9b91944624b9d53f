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
  over `warmup` updates from `warmup_start` on and then follows the shape
  `config.schedule.name`; without a warm-up the first rate is the peak. From
  `total_steps` on it stays at its end (rsqrt and exponential fall on).

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
      ramp = (t - schedule.warmup_start) / schedule.warmup
      fraction = jnp.where(t < _warm_at(schedule), ramp, fraction)
    return jnp.asarray(peak * fraction, jnp.float32)

  return learning_rate


def _warm_at(schedule):
  """Returns the step at which the warm-up is over; not below 0.

  MLPerf's BERT runs start from a checkpoint in the middle of a warm-up, at a
  `warmup_start` below 0, while the decay counts from 0.
  """
  return max(schedule.warmup + schedule.warmup_start, 0)


def batch_rule(rule, base_lr, base_batch, batch_size):
  """Scales a rate meant for `base_batch` examples to `batch_size` of them.

  'linear' keeps the rate per example (Goyal et al., arXiv 1706.02677), 'sqrt'
  the variance of an update, 'constant' the rate. 'lamb_epoch_warmup' is 'sqrt'
  with the warm-up of `batch_rule_warmup`.
  """
  _check_rule(rule)
  return base_lr * (batch_size / base_batch) ** BATCH_RULES[rule]


def batch_rule_warmup(rule, base_fraction, base_batch, batch_size):
  """Scales a warm-up meant for `base_batch` examples to `batch_size` of them.

  Under 'lamb_epoch_warmup' the number of epochs of warm-up, and with epochs
  fixed the fraction of the run, grows with the batch (You et al., arXiv
  1904.00962: untuned LAMB has 1/320 of the run at 512 examples and 1/5 at
  32768, which is 3125 updates at any batch). Other rules keep the fraction.

  Args:
    rule: a name of BATCH_RULES.
    base_fraction: of the updates of the run, at `base_batch`.
    base_batch: examples per update.
    batch_size: examples per update.

  Returns:
    The fraction of the updates of the run.

  Raises:
    ValueError: an unknown rule, or a warm-up as long as the run.
  """
  _check_rule(rule)
  if rule != 'lamb_epoch_warmup':
    return base_fraction
  fraction = base_fraction * batch_size / base_batch
  _require(
    fraction < 1,
    'batch_size',
    batch_size,
    f'below {base_batch / base_fraction:g} with '
    f"optimizer.batch_rule='lamb_epoch_warmup', as the warm-up grows with the "
    'batch and would take the whole run',
  )
  return fraction


def _check_rule(rule):
  _require(
    rule in BATCH_RULES, 'optimizer.batch_rule', rule, ', '.join(BATCH_RULES)
  )


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
  return 1.0 / jnp.sqrt(1.0 + _since(t, schedule) / schedule.timescale)


def _since(t, schedule):
  return jnp.maximum(t - _warm_at(schedule), 0.0)


def _exponential(t, schedule, total_steps):
  # DeepSpeed's BERT: 0.9 ^ (updates since the warm-up / 1000).
  del total_steps
  return schedule.factor ** (_since(t, schedule) / schedule.timescale)


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
  start = _warm_at(schedule) if schedule.decay_from == 'warmup' else 0
  return jnp.clip((t - start) / (total_steps - start), 0.0, 1.0)


def _to_end(fraction, schedule):
  return schedule.end + (1.0 - schedule.end) * fraction


SHAPES = {
  'constant': _constant,
  'cosine': _cosine,
  'exponential': _exponential,
  'linear': _linear,
  'polynomial': _polynomial,
  'rsqrt': _rsqrt,
  'stair': _stair,
}
BATCH_RULES = {  # the exponents
  'constant': 0.0,
  'lamb_epoch_warmup': 0.5,
  'linear': 1.0,
  'sqrt': 0.5,
}


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
    s.warmup_start <= 0, 'schedule.warmup_start', s.warmup_start, '0 or below'
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
