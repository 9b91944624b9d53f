"""Adam without bias correction, as the original BERT was trained."""

import jax
import jax.numpy as jnp
import optax


def uncorrected(
  b1: float, b2: float, eps: float
) -> optax.GradientTransformation:
  """Returns gradient -> m / (sqrt(v) + eps), from the first update on.

  google-research/bert, optimization.py: with b2 > b1 the first updates are
  longer than those of Adam, which its warm-up makes up for. The state is that
  of `optax.scale_by_adam`.
  """
  init = optax.scale_by_adam(b1, b2, eps).init

  def update(grads, state, params=None):
    del params
    mu = optax.tree.update_moment(grads, state.mu, b1, 1)
    nu = optax.tree.update_moment(grads, state.nu, b2, 2)
    steps = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
    count = optax.safe_increment(state.count)
    return steps, state._replace(count=count, mu=mu, nu=nu)

  return optax.GradientTransformation(init, update)
