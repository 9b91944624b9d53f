"""Trust ratios per layer, for LAMB and LARS, and the norms they come from."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bigtransfer import trees


class Norms(NamedTuple):
  """Of the last update, per parameter: float32 of shape [], or [layers].

  Fields:
    trust_ratio: what the direction was multiplied by.
    weight_norm: of the parameter before the update.
    update_norm: of the direction before the ratio (LAMB), or of the gradient
      (LARS).
  """

  trust_ratio: Any
  weight_norm: Any
  update_norm: Any


assert Norms._fields == trees.LAYER_STATISTICS


def zeros(params) -> Norms:
  """Returns what stands in the state before the first update."""

  def zero(path, leaf):
    return jnp.zeros(leaf.shape[:1] if trees.is_stacked(path) else ())

  return Norms(*(trees.map_with_path(zero, params) for _ in Norms._fields))


def ratio(numerator, denominator, minimum=None, maximum=None):
  """Returns numerator / denominator within bounds; 1 where either is 0.

  A layer that starts at zero, or whose update is zero, has no scale to keep:
  it takes the plain step, as in all published implementations, and that 1 is
  not clipped.
  """
  good = (numerator > 0) & (denominator > 0)
  quotient = numerator / jnp.where(good, denominator, 1.0)
  return jnp.where(good, clip(quotient, minimum, maximum), 1.0)


def clip(x, minimum, maximum):
  """Keeps x within bounds, of which None is none."""
  if minimum is None and maximum is None:
    return x
  return jnp.clip(x, minimum, maximum)


def norms(opt_state) -> dict[str, dict[str, jax.Array]] | None:
  """Finds the norms of the last update in an optimizer state.

  Args:
    opt_state: the state of `factory.make`, `lamb.lamb`, `lars.lars` or of a
      chain with one of them.

  Returns:
    {'trust_ratio' | 'weight_norm' | 'update_norm': {parameter path: array of
    shape [], or [layers] where stacked}}; None under another optimizer. All
    are 0 before the first update.
  """

  def is_norms(node):
    return isinstance(node, Norms)

  nodes = jax.tree.leaves(opt_state, is_leaf=is_norms)
  found = next(filter(is_norms, nodes), None)
  if found is None:
    return None
  return {k: dict(trees.flatten(v)) for k, v in found._asdict().items()}


def by_path(scale_by, weight_decay, decay_rules, adapt_rules):
  """Returns a transformation that knows its paths once it sees parameters.

  Args:
    scale_by: (path -> decay, path -> adapted) -> transformation.
    weight_decay: times the value that `decay_rules` give.
    decay_rules: (regular expression, factor) pairs or None, see `_by_rules`.
    adapt_rules: the same for the trust ratio.
  """

  def core(params):
    factors = _by_rules(decay_rules, params, 'decay_rules')
    adapts = _by_rules(adapt_rules, params, 'adapt_rules')
    return scale_by(
      lambda path: weight_decay * factors[path], adapts.__getitem__
    )

  return optax.GradientTransformation(
    lambda params: core(params).init(params),
    lambda grads, state, params: core(params).update(grads, state, params),
  )


def _by_rules(rules, params, what):
  """Returns path -> value, None being the default: no biases, no scales."""
  paths = [path for path, _ in trees.flatten(params)]
  if rules is None:
    names = ('bias', 'scale')
    return {p: float(p.rpartition('/')[2] not in names) for p in paths}
  return trees.match_rules(rules, paths, what=what)


def check_bounds(options, pairs):
  """Refuses bounds that are negative or cross, by name and value.

  Args:
    options: a NamedTuple with the fields of `pairs`.
    pairs: of names of a lower and an upper bound.

  Raises:
    ValueError: a bound that is not accepted.
  """
  for low_name, high_name in pairs:
    low, high = getattr(options, low_name), getattr(options, high_name)
    if low is not None and not low >= 0:
      raise ValueError(
        f'optimizer.{low_name}={low!r}; accepted: None or 0 or more.'
      )
    if high is not None and not high > (low or 0):
      raise ValueError(
        f'optimizer.{high_name}={high!r}; accepted: None or above '
        f'{low_name}={low!r}.'
      )
