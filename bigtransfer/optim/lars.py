"""LARS (You et al., arXiv 1708.03888).

With g the gradient, w a layer of a parameter, d its weight decay:

  ratio = coefficient * |w| / (|g| + d * |w| + eps)

or 1 if |w| or |g| is 0. The momentum is either the paper's,

  buffer = momentum * buffer + rate * ratio * (g + d * w)    w -= buffer

or the scaled one of MLPerf's reference (Kumar et al., arXiv 1909.09756),

  buffer = momentum * buffer + g + d * w    w -= rate * ratio * buffer

which differ where the rate or the ratio changes. A parameter under `layers`
has a ratio for each entry of its first axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bigtransfer import trees
from bigtransfer.optim import trust_ratio


class Options(NamedTuple):
  """Fields of the config that LARS reads.

  Fields:
    trust_coefficient: of the ratio, eta in the paper.
    eps: added to the denominator of the ratio.
    momentum: decay of the buffer, 0 = none.
    nesterov: whether the step looks ahead by one momentum.
    momentum_after_rate: True for the paper's momentum, False for MLPerf's.
    ratio_min: lower bound of the trust ratio, None = none.
    ratio_max: upper bound of the trust ratio.
  """

  trust_coefficient: float = 0.001
  eps: float = 0.0
  momentum: float = 0.9
  nesterov: bool = False
  momentum_after_rate: bool = True
  ratio_min: float | None = None
  ratio_max: float | None = None


class LarsState(NamedTuple):
  """MLPerf's momentum, if it is that; `trust_ratio.Norms`."""

  trace: Any
  norms: trust_ratio.Norms


def lars(
  learning_rate: optax.ScalarOrSchedule,
  weight_decay: float = 0.0,
  *,
  decay_rules=None,
  adapt_rules=None,
  **options,
) -> optax.GradientTransformation:
  """Returns the whole optimizer, outside of a config.

  Args:
    learning_rate: a number or a function of the step, from 0.
    weight_decay: d, times the value that `decay_rules` give.
    decay_rules: (regular expression on the path, factor) pairs, the first
      that matches wins; None = 0 for biases and scales and 1 for the rest.
    adapt_rules: the same for the trust ratio: 1 = adapted, 0 = a ratio of 1.
    **options: fields of `Options`.

  Raises:
    ValueError: an option that is not accepted, or a dead rule.
    TypeError: an unknown option.
  """
  options = check(Options(**options))
  core = trust_ratio.by_path(
    lambda decay, adapt: scale_by_lars(decay, adapt, options),
    weight_decay,
    decay_rules,
    adapt_rules,
  )
  return optax.chain(
    core,
    optax.scale_by_learning_rate(learning_rate),
    momentum_after_rate(options),
  )


def scale_by_lars(
  decay: Callable[[str], float],
  adapt: Callable[[str], float],
  options: Options = Options(),  # noqa: B008, immutable
) -> optax.GradientTransformation:
  """Returns gradient -> step before the rate.

  Args:
    decay: path of a parameter -> d, its weight decay.
    adapt: path -> whether it has a trust ratio other than 1.
    options: the other choices. `momentum_after_rate` wants the transformation
      of that name after the rate.
  """
  inside = options.momentum and not options.momentum_after_rate
  trace = optax.trace(options.momentum, options.nesterov)

  def init(params):
    return LarsState(
      trace=trace.init(params).trace if inside else (),
      norms=trust_ratio.zeros(params),
    )

  def update(grads, state, params):
    norms = _norms(grads, params, decay, adapt, options)
    steps = trees.map_with_path(
      lambda path, g, w: g + decay(path) * w if decay(path) else g,
      grads,
      params,
    )
    buffer = ()
    if inside:
      steps, moved = trace.update(steps, optax.TraceState(state.trace))
      buffer = moved.trace
    steps = jax.tree.map(
      lambda r, step: trees.per_layer(r, step) * step, norms.trust_ratio, steps
    )
    return steps, LarsState(buffer, norms)

  return optax.GradientTransformation(init, update)


def momentum_after_rate(options: Options) -> optax.GradientTransformation:
  """Returns the paper's momentum, or nothing where it is not asked for."""
  if options.momentum and options.momentum_after_rate:
    return optax.trace(options.momentum, options.nesterov)
  return optax.identity()


def _norms(grads, params, decay, adapt, options):
  """Returns `trust_ratio.Norms`, of the gradient as it comes."""
  found = []
  for (path, w), g in zip(
    trees.flatten(params), jax.tree.leaves(grads), strict=True
  ):
    weight_norm, grad_norm = (trees.layer_norm(path, x) for x in (w, g))
    ratio = jnp.ones_like(weight_norm)
    if adapt(path):
      together = grad_norm + decay(path) * weight_norm + options.eps
      ratio = trust_ratio.ratio(
        options.trust_coefficient * weight_norm,
        jnp.where(grad_norm > 0, together, 0.0),
        options.ratio_min,
        options.ratio_max,
      )
    found.append((ratio, weight_norm, grad_norm))
  tree = jax.tree.structure(params)
  fields = zip(*found, strict=True)
  return trust_ratio.Norms(*(jax.tree.unflatten(tree, f) for f in fields))


def check(options: Options) -> Options:
  """Returns the options if they are accepted.

  Raises:
    ValueError: names the field, the value and what is accepted.
  """
  if not 0 <= options.momentum < 1:
    raise ValueError(
      f'optimizer.momentum={options.momentum!r}; accepted: from 0 to below 1.'
    )
  if not options.trust_coefficient > 0:
    raise ValueError(
      f'optimizer.trust_coefficient={options.trust_coefficient!r}; accepted: '
      'above 0.'
    )
  if not options.eps >= 0:
    raise ValueError(f'optimizer.eps={options.eps!r}; accepted: 0 or more.')
  trust_ratio.check_bounds(options, (('ratio_min', 'ratio_max'),))
  return options
