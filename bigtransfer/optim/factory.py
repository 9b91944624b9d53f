"""One factory for all optimizers, from config to an optax chain."""

import jax
import jax.numpy as jnp
import optax

from bigtransfer import trees
from bigtransfer.optim import schedules

DECAYS = ('coupled', 'decoupled', 'independent')


def make(config, params):
  """Builds the optimizer of `config` for parameters with the paths of `params`.

  In order: clip by the global norm, core and weight decay (the optimizer's
  entry in OPTIMIZERS says which is first), minus the scheduled rate, and the
  multipliers of `optimizer.lr_rules`. With g the clipped gradient, w the
  parameter, d = weight_decay times its `decay_rules` value, and lr the rate
  times its multiplier, `optimizer.decay` is

    'coupled'      g + d * w enters the core (L2 regularisation);
    'decoupled'    w -= lr * d * w beside the core's step;
    'independent'  w -= (rate / peak rate) * d * w: it has the schedule's shape
                   but no part in the choice of the rate or the multiplier;
    None           the optimizer's own: coupled for sgd and adam, else
                   decoupled.

  A multiplier of 0 freezes: no step, no decay, no moments. The clipping norm
  is over trained parameters only, because a gradient that moves nothing must
  not shorten the steps of the others: freezing a layer trains the rest as if
  it were a constant.

  Args:
    config: the whole config, resolved (steps, final learning rate).
    params: the parameters or their shapes; only the paths are used.

  Returns:
    An `optax.GradientTransformation`, whose state holds moments under paths
    that end with their parameter's. `update` needs the parameters.

  Raises:
    ValueError: a dead rule, a parameter without a rule, or a value that is
      not accepted; names the field, the value and what is accepted.
  """
  optimizer = config.optimizer
  paths = [path for path, _ in trees.flatten(params)]
  multipliers = trees.match_rules(
    optimizer.lr_rules, paths, what='optimizer.lr_rules'
  )
  decays = trees.match_rules(
    optimizer.decay_rules, paths, what='optimizer.decay_rules'
  )
  _check(config, multipliers)
  rate = schedules.make(config, config.total_steps)
  decay = _decay(optimizer, decays, multipliers)
  trained = optax.chain(
    _clip(config.clip_norm),
    *OPTIMIZERS[optimizer.name](optimizer, decay),
    optax.scale_by_schedule(lambda step: -rate(step)),
    _scale(multipliers),
  )
  labels = trees.map_with_path(
    lambda path, _: 'trained' if multipliers[path] else 'frozen', params
  )
  return optax.partition(
    {'trained': trained, 'frozen': optax.set_to_zero()}, labels
  )


def at_update(opt_state, updates):
  """Sets the clock of the schedule to `updates`, for a state made anew."""

  def is_clock(node):
    return isinstance(node, optax.ScaleByScheduleState)

  def wind(node):
    if not is_clock(node):
      return node
    return node._replace(count=jax.device_put(updates, node.count.sharding))

  return jax.tree.map(wind, opt_state, is_leaf=is_clock)


def _sgd(optimizer, decay):
  """Momentum as in PyTorch: buffer = momentum * buffer + g, no damping."""
  if not optimizer.momentum:
    core = optax.identity()
  else:
    trace = optax.trace(optimizer.momentum, optimizer.nesterov)
    core = _narrow(trace, 'trace', optimizer.moment_dtype)
  return _in_order(core, decay, optimizer)


def _adam(optimizer, decay):
  return _in_order(_adam_core(optimizer), decay, optimizer)


def _adamw(optimizer, decay):
  if optimizer.decay == 'coupled':
    _refuse(
      'optimizer.decay',
      optimizer.decay,
      "None, decoupled or independent with name='adamw'; coupled is 'adam'",
    )
  return _adam_core(optimizer), decay


def _adam_core(optimizer):
  # The second moment stays float32: a step changes it by (1 - b2) = 0.1 %,
  # which the 8 significant bits of bfloat16 would round away.
  core = optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.eps)
  return _narrow(core, 'mu', optimizer.moment_dtype)


def _in_order(core, decay, optimizer):
  coupled = optimizer.decay in (None, 'coupled')
  return (decay, core) if coupled else (core, decay)


# Name -> f(optimizer section, decay transformation) -> transformations from
# the clipped gradient to the step before the rate.
OPTIMIZERS = {'sgd': _sgd, 'adam': _adam, 'adamw': _adamw}


def _narrow(core, field, dtype):
  """Stores a moment of `core` in `dtype` and computes with it in float32."""

  def cast(state, to):
    moment = jax.tree.map(lambda m: m.astype(to), getattr(state, field))
    return state._replace(**{field: moment})

  def init(params):
    return cast(core.init(params), dtype)

  def update(updates, state, params=None):
    # optax raises Python floats to integer counts, which strict promotion
    # refuses; everything else here is float32.
    with jax.numpy_dtype_promotion('standard'):
      updates, state = core.update(updates, cast(state, jnp.float32), params)
    return updates, cast(state, dtype)

  return optax.GradientTransformation(init, update)


def _clip(norm):
  return optax.identity() if norm is None else optax.clip_by_global_norm(norm)


def _decay(optimizer, decays, multipliers):
  """Adds strength * w; the steps that follow turn it into its named kind."""

  def add(path, update, param):
    strength = optimizer.weight_decay * decays[path]
    if optimizer.decay == 'independent':
      # The rate that follows multiplies by peak * multiplier again.
      strength /= optimizer.learning_rate * multipliers[path]
    return update + strength * param if strength else update

  return optax.stateless(
    lambda updates, params: trees.map_with_path(add, updates, params)
  )


def _scale(multipliers):
  return optax.stateless(
    lambda updates, _: trees.map_with_path(
      lambda path, update: multipliers[path] * update, updates
    )
  )


def _check(config, multipliers):
  """Refuses, by name and value, what is not accepted."""
  o = config.optimizer
  types = ('float32', 'bfloat16')
  if o.name not in OPTIMIZERS:
    _refuse('optimizer.name', o.name, ', '.join(OPTIMIZERS))
  if o.decay not in (None, *DECAYS):
    _refuse('optimizer.decay', o.decay, f'None, {", ".join(DECAYS)}')
  if o.decay == 'independent' and not o.learning_rate > 0:
    _refuse(
      'optimizer.learning_rate',
      o.learning_rate,
      "above 0 with decay='independent', which is relative to the peak",
    )
  if not 0 <= o.momentum < 1:
    _refuse('optimizer.momentum', o.momentum, 'from 0 to below 1')
  if o.moment_dtype not in types:
    _refuse('optimizer.moment_dtype', o.moment_dtype, ', '.join(types))
  if not any(multipliers.values()):
    _refuse('optimizer.lr_rules', o.lr_rules, 'rules that train something')
  if config.clip_norm is not None and not config.clip_norm > 0:
    _refuse('clip_norm', config.clip_norm, 'None or above 0')


def _refuse(field, value, accepted):
  raise ValueError(f'{field}={value!r}; accepted: {accepted}.')
