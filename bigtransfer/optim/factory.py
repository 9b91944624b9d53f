"""One factory for all optimizers, from config to an optax chain."""

import jax
import jax.numpy as jnp
import optax

from bigtransfer import trees
from bigtransfer.optim import adam, lamb, lars, schedules

DECAYS = ('coupled', 'decoupled', 'independent')


def make(config, params):
  """Builds the optimizer of `config` for parameters with the paths of `params`.

  In order: clip by the global norm, core and weight decay (the optimizer's
  entry in OPTIMIZERS says which is first), minus the scheduled rate, the
  multipliers of `optimizer.lr_rules`, and the momentum of LARS if it is the
  paper's. With g the clipped gradient, w the parameter, d = weight_decay times
  its `decay_rules` value, and lr the rate times its multiplier,
  `optimizer.decay` is

    'coupled'      g + d * w enters the core (L2 regularisation);
    'decoupled'    w -= lr * d * w beside the core's step;
    'independent'  w -= (rate / peak rate) * d * w: it has the schedule's shape
                   but no part in the choice of the rate or the multiplier;
    None           the optimizer's own: coupled for sgd and adam, else
                   decoupled.

  lamb and lars have a decay of their own, inside the trust ratio: lamb.py,
  lars.py. `optimizer.adapt_rules` say which parameters have a ratio.

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
  _check(config, multipliers)
  rate = schedules.make(config, config.total_steps)
  before, after = OPTIMIZERS[optimizer.name](
    _Parts(optimizer, paths, multipliers)
  )
  trained = optax.chain(
    _clip(config.clip_norm),
    *before,
    optax.scale_by_schedule(lambda step: -rate(step)),
    _scale(multipliers),
    *after,
  )
  labels = trees.map_with_path(
    lambda path, _: 'trained' if multipliers[path] else 'frozen', params
  )
  return optax.partition(
    {'trained': trained, 'frozen': optax.set_to_zero()}, labels
  )


def _is_clock(node):
  return isinstance(node, optax.ScaleByScheduleState)


def clock(opt_state):
  """Returns how many updates of the schedule were made."""
  nodes = jax.tree.leaves(opt_state, is_leaf=_is_clock)
  [count] = [node.count for node in nodes if _is_clock(node)]
  return count


def at_update(opt_state, updates):
  """Sets the clock of the schedule to `updates`."""

  def wind(node):
    if not _is_clock(node):
      return node
    return node._replace(count=jax.device_put(updates, node.count.sharding))

  return jax.tree.map(wind, opt_state, is_leaf=_is_clock)


class _Parts:
  """What the entries of OPTIMIZERS are made from.

  Attributes:
    optimizer: the section of the config.
    strengths: path -> weight decay.
    decay: the step that adds the decay.
  """

  def __init__(self, optimizer, paths, multipliers):
    self._paths = paths
    self.optimizer = optimizer
    factors = self._match('decay_rules')
    self.strengths = {k: optimizer.weight_decay * v for k, v in factors.items()}
    self.decay = _decay(optimizer, self.strengths, multipliers)

  def _match(self, field):
    rules = self.optimizer[field]
    return trees.match_rules(rules, self._paths, what=f'optimizer.{field}')

  def options(self, kind):
    """Returns the section's values of the fields of a NamedTuple."""
    return kind(**{k: self.optimizer[k] for k in kind._fields})

  def adapts(self):
    """Returns path -> 0 or 1, whether it has a trust ratio."""
    adapts = self._match('adapt_rules')
    if not set(adapts.values()) <= {0, 1}:
      _refuse(
        'optimizer.adapt_rules',
        self.optimizer.adapt_rules,
        'rules with the values 0 and 1',
      )
    return adapts


def _sgd(parts):
  """Momentum as in PyTorch: buffer = momentum * buffer + g, no damping."""
  optimizer = parts.optimizer
  if not optimizer.momentum:
    core = optax.identity()
  else:
    trace = optax.trace(optimizer.momentum, optimizer.nesterov)
    core = _narrow(trace, 'trace', optimizer.moment_dtype)
  return _in_order(core, parts)


def _adam(parts):
  return _in_order(_adam_core(parts.optimizer), parts)


def _adamw(parts):
  _refuse_decay(parts.optimizer, (None, 'decoupled', 'independent'), 'adam')
  return (_adam_core(parts.optimizer), parts.decay), ()


def _adam_core(optimizer):
  # The second moment stays float32: a step changes it by (1 - b2) = 0.1 %,
  # which the 8 significant bits of bfloat16 would round away.
  make_core = (
    optax.scale_by_adam if optimizer.bias_correction else adam.uncorrected
  )
  core = make_core(optimizer.b1, optimizer.b2, optimizer.eps)
  return _narrow(core, 'mu', optimizer.moment_dtype)


def _lamb(parts):
  optimizer = parts.optimizer
  _refuse_decay(optimizer, (None, 'decoupled'))
  core = lamb.scale_by_lamb(
    parts.strengths.__getitem__,
    parts.adapts().__getitem__,
    lamb.check(parts.options(lamb.Options)),
  )
  return (_narrow(core, 'mu', optimizer.moment_dtype),), ()


def _lars(parts):
  optimizer = parts.optimizer
  _refuse_decay(optimizer, (None, 'coupled'))
  options = lars.check(parts.options(lars.Options))
  core = lars.scale_by_lars(
    parts.strengths.__getitem__, parts.adapts().__getitem__, options
  )
  momentum = lars.momentum_after_rate(options)
  core = _narrow(core, 'trace', optimizer.moment_dtype)
  if options.momentum and options.momentum_after_rate:
    momentum = _narrow(momentum, 'trace', optimizer.moment_dtype)
  return (core,), (momentum,)


def _in_order(core, parts):
  coupled = parts.optimizer.decay in (None, 'coupled')
  before = (parts.decay, core) if coupled else (core, parts.decay)
  return before, ()


# Name -> f(parts) -> (transformations from the clipped gradient to the step
# before the rate, those after the rate).
OPTIMIZERS = {
  'sgd': _sgd,
  'adam': _adam,
  'adamw': _adamw,
  'lamb': _lamb,
  'lars': _lars,
}


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


def _clip(limit):
  if limit is None:
    return optax.identity()

  # optax selects and divides for each element, and the compiler would store
  # the result; a product with a scalar it computes anew where it is read.
  def clip(grads, _):
    scale = limit / jnp.maximum(trees.global_norm(grads), limit)
    return jax.tree.map(lambda g: scale * g, grads)

  return optax.stateless(clip)


def _decay(optimizer, strengths, multipliers):
  """Adds strength * w; the steps that follow turn it into its named kind."""

  def add(path, update, param):
    strength = strengths[path]
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


def _refuse_decay(optimizer, accepted, other=None):
  if optimizer.decay not in accepted:
    names = ' or '.join(str(kind) for kind in accepted)
    hint = f"; {optimizer.decay} is '{other}'" if other else ''
    _refuse(
      'optimizer.decay',
      optimizer.decay,
      f'{names} with name={optimizer.name!r}{hint}',
    )


def _refuse(field, value, accepted):
  raise ValueError(f'{field}={value!r}; accepted: {accepted}.')
