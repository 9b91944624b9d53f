"""The train state: its shape without allocation, and its start."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class TrainState(NamedTuple):
  """All that changes from step to step.

  Attributes:
    step: int32 scalar, batches consumed so far; the data position.
    params: nested dict of float32 arrays.
    model_state: running statistics of the BatchNorm baseline, {} otherwise.
    opt_state: what optax keeps.
    ema: moving average of params, {} where it is off.
    skipped: int32 scalar, steps left out because of a non-finite value.
  """

  step: jax.Array
  params: Any
  model_state: Any
  opt_state: Any
  ema: Any
  skipped: jax.Array


def create(
    params: Any,
    tx: optax.GradientTransformation,
    *,
    model_state: Any = None,
    with_ema: bool = False,
) -> TrainState:
  """Returns the state before the first step; the average starts as a copy."""
  return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      model_state={} if model_state is None else model_state,
      opt_state=tx.init(params),
      ema=jax.tree.map(jnp.copy, params) if with_ema else {},
      skipped=jnp.zeros((), jnp.int32),
  )


def initializer(
    model: Any,
    make_optimizer: Callable[[Any], optax.GradientTransformation],
    batch_spec: Any,
    *,
    seed: int,
    with_ema: bool,
) -> tuple[optax.GradientTransformation, Callable[[], TrainState]]:
  """Returns the optimizer and a function that makes the first state.

  The function is meant for `jax.eval_shape`, to get shapes, and for one
  `jax.jit` with `out_shardings`, so that nothing is ever allocated twice or
  in one place.

  Args:
    model: with `init(rng, batch) -> (params, model_state)`.
    make_optimizer: from parameter shapes to the optimizer, whose masks go by
      parameter path.
    batch_spec: dict of `jax.ShapeDtypeStruct`, as the task receives it.
    seed: of the parameters.
    with_ema: whether to keep a moving average.
  """

  @jax.jit  # Traced once for both uses below.
  def init_model():
    # Only shapes matter to init; a batch of one keeps the trace small.
    batch = {
        k: jnp.zeros((1, *v.shape[1:]), v.dtype) for k, v in batch_spec.items()
    }
    return model.init(jax.random.key(seed), batch)

  tx = make_optimizer(jax.eval_shape(init_model)[0])

  def init():
    params, model_state = init_model()
    return create(params, tx, model_state=model_state, with_ema=with_ema)

  return tx, init


def host_copy(tree: Any) -> Any:
  """Orders a copy in the memory of the hosts and returns without waiting.

  It takes no memory of the device, where a second state may not fit.
  """
  there = jax.tree.map(
      lambda x: x.sharding.with_memory_kind('pinned_host'), tree
  )
  return jax.device_put(tree, there, may_alias=False)
