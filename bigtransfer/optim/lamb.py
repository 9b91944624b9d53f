"""LAMB (You et al., arXiv 1904.00962), with every choice a named field.

With g the gradient, w a layer of a parameter, d its weight decay and t the
number of the update from 1:

  m = b1 * m + (1 - b1) * g          v = b2 * v + (1 - b2) * g^2
  u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + d * w
  w -= rate * phi(|w|) / |u| * u

where the ratio is 1 if phi(|w|) or |u| is 0. A parameter under `layers` has
a ratio for each entry of its first axis.

Codes that are called LAMB differ in the fields of `Options` and in which
parameters have decay and a ratio; `preset` has the choices of the known ones.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bigtransfer import trees
from bigtransfer.optim import trust_ratio

norms = trust_ratio.norms


class Options(NamedTuple):
  """What the codes do differently.

  Fields:
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    bias_correction: whether moments are divided by 1 - b^t.
    grad_averaging: whether the gradient enters m times 1 - b1, not as it is.
    pre_norm: whether the gradient is first divided by its global norm.
    ratio_min: lower bound of the trust ratio, None = none.
    ratio_max: upper bound of the trust ratio.
    phi_min: lower bound of the weight norm in the ratio, the paper's gamma_l.
    phi_max: upper bound of the weight norm in the ratio, gamma_u.
  """

  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-6
  bias_correction: bool = True
  grad_averaging: bool = True
  pre_norm: bool = False
  ratio_min: float | None = None
  ratio_max: float | None = None
  phi_min: float | None = None
  phi_max: float | None = None


class LambState(NamedTuple):
  """Number of updates, the two moments, and `trust_ratio.Norms`."""

  count: Any
  mu: Any
  nu: Any
  norms: trust_ratio.Norms


_ALL = (('.*', 1.0),)
_NO_BIAS_OR_SCALE = (('.*/(bias|scale)', 0.0), ('.*', 1.0))
_NO_NORM = (('.*(norm|gn)[^/]*/(bias|scale)', 0.0), ('.*', 1.0))
_CHOICES = {
  'bias_correction': True,
  'grad_averaging': True,
  'pre_norm': False,
  'ratio_min': None,
  'ratio_max': None,
  'phi_min': None,
  'phi_max': None,
  'decay_rules': _NO_BIAS_OR_SCALE,
  'adapt_rules': _NO_BIAS_OR_SCALE,
}
PRESETS = {
  # Algorithm 2 of the ICLR version with phi(z) = z. It names no exclusions:
  # these are those of the authors' code, which has no bias correction.
  'paper': {'decay_rules': _NO_NORM, 'adapt_rules': _NO_NORM},
  # TensorFlow Addons and Google's MLPerf code: what has no decay has no ratio
  # unless lists are given.
  'tf': {},
  # NVIDIA's description of NVLAMB: the gradient is normalized, not clipped,
  # and all layers have a ratio.
  'nvlamb': {'pre_norm': True, 'adapt_rules': _ALL},
  # FusedLAMB of apex, which NVIDIA's BERT uses: no ratio where there is no
  # decay; with these exclusions the arithmetic of 'tf'.
  'apex': {},
  # FusedLamb of DeepSpeed with the values of its BERT recipe.
  'deepspeed': {
    'bias_correction': False,
    'adapt_rules': _ALL,
    'ratio_min': 0.01,
    'ratio_max': 0.3,
  },
}


def preset(name: str) -> dict[str, Any]:
  """Returns the choices of a known code: {field of the optimizer: value}.

  All presets set the same fields, so that one can replace another, and none
  sets what recipes tune: the rate, b1, b2, eps and the strength of the decay.
  The codes go with `clip_norm` 1, but 'nvlamb' with None: clipping before
  normalizing changes nothing and stores a copy of the gradient.

  Raises:
    ValueError: an unknown name.
  """
  if name not in PRESETS:
    raise ValueError(
      f'optimizer.preset={name!r}; accepted: {", ".join(PRESETS)}.'
    )
  return _CHOICES | PRESETS[name]


def lamb(
  learning_rate: optax.ScalarOrSchedule,
  weight_decay: float = 0.01,
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
    lambda decay, adapt: scale_by_lamb(decay, adapt, options),
    weight_decay,
    decay_rules,
    adapt_rules,
  )
  return optax.chain(core, optax.scale_by_learning_rate(learning_rate))


def scale_by_lamb(
  decay: Callable[[str], float],
  adapt: Callable[[str], float],
  options: Options = Options(),  # noqa: B008, immutable
) -> optax.GradientTransformation:
  """Returns gradient -> ratio * u, the step before the rate.

  Args:
    decay: path of a parameter -> d, its weight decay.
    adapt: path -> whether it has a trust ratio other than 1.
    options: the other choices.
  """

  def init(params):
    return LambState(
      count=jnp.zeros((), jnp.int32),
      mu=jax.tree.map(jnp.zeros_like, params),
      nu=jax.tree.map(jnp.zeros_like, params),
      norms=trust_ratio.zeros(params),
    )

  def update(grads, state, params):
    if options.pre_norm:
      grads = _unit(grads)
    b1, b2 = options.b1, options.b2
    weight = 1 - b1 if options.grad_averaging else 1.0
    mu = jax.tree.map(lambda g, m: b1 * m + weight * g, grads, state.mu)
    # Not (1 - b2) * g^2: with a norm of the gradient elsewhere in the step,
    # g^2 would be stored for both.
    nu = jax.tree.map(
      lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu
    )
    count = optax.safe_increment(state.count)
    scales = _corrections(count, options)
    steps, norms = _steps(mu, nu, params, scales, decay, adapt, options)
    return steps, LambState(count, mu, nu, norms)

  return optax.GradientTransformation(init, update)


def _steps(mu, nu, params, scales, decay, adapt, options):
  """Returns trees of ratio * u and of norms.

  u is computed twice, for its norm and for the step, because it is cheap and
  storing it is a copy of all parameters. The compiler would see that both are
  the same and store it. It would also store a scalar as wide as a parameter if
  two parameters of one shape use it. So each use has scalars that it cannot
  know to be equal; barriers around scalars cost nothing.
  """
  scalars = (*scales, jnp.float32(options.eps), jnp.float32(1))
  steps, found = [], []
  moments = zip(jax.tree.leaves(mu), jax.tree.leaves(nu), strict=True)
  for (path, w), (m, v) in zip(trees.flatten(params), moments, strict=True):
    strength = decay(path)
    scalars = jax.lax.optimization_barrier(scalars)
    u = _direction(m, v, w, strength, scalars)
    weight_norm, update_norm = (trees.layer_norm(path, x) for x in (w, u))
    ratio = jnp.ones_like(weight_norm)
    if adapt(path):
      ratio = trust_ratio.ratio(
        trust_ratio.clip(weight_norm, options.phi_min, options.phi_max),
        update_norm,
        options.ratio_min,
        options.ratio_max,
      )
    scalars = jax.lax.optimization_barrier(scalars)
    u = _direction(m, v, w, strength, scalars)
    steps.append(trees.per_layer(ratio, w) * u)
    found.append((ratio, weight_norm, update_norm))
  tree = jax.tree.structure(params)
  fields = zip(*found, strict=True)
  norms = trust_ratio.Norms(*(jax.tree.unflatten(tree, f) for f in fields))
  return jax.tree.unflatten(tree, steps), norms


def _direction(m, v, w, strength, scalars):
  first, second, eps, one = scalars
  u = first * m / (jnp.sqrt(second * v) + eps)
  return u + (strength * one) * w if strength else u


def _corrections(count, options):
  """Returns 1 / (1 - b^t) of both moments, or ones.

  By expm1, because 1 - 0.999^t in float32 is wrong by 3e-5 at the start.
  """
  if not options.bias_correction:
    return jnp.float32(1), jnp.float32(1)
  t = count.astype(jnp.float32)

  def correction(b):
    return -1 / jnp.expm1(t * np.float32(np.log(b))) if b else jnp.float32(1)

  return correction(options.b1), correction(options.b2)


def _unit(grads):
  """Divides by the global norm; a gradient of 0 stays."""
  norm = trees.global_norm(grads)
  scale = 1 / jnp.where(norm > 0, norm, 1.0)
  return jax.tree.map(lambda g: scale * g, grads)


def check(options: Options) -> Options:
  """Returns the options if they are accepted.

  Raises:
    ValueError: names the field, the value and what is accepted.
  """
  for name in ('b1', 'b2'):
    value = getattr(options, name)
    if not 0 <= value < 1:
      raise ValueError(
        f'optimizer.{name}={value!r}; accepted: from 0 to below 1.'
      )
  if not options.eps >= 0:
    raise ValueError(f'optimizer.eps={options.eps!r}; accepted: 0 or more.')
  trust_ratio.check_bounds(
    options, (('ratio_min', 'ratio_max'), ('phi_min', 'phi_max'))
  )
  return options
