"""One training step as a pure function: (state, batch) -> (state, metrics)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bigtransfer import reduction, trees
from bigtransfer.state import TrainState


def make_train_step(
    task: Any,
    tx: optax.GradientTransformation,
    *,
    mesh: jax.sharding.Mesh,
    accum_steps: int = 1,
    nonfinite: str = 'stop',
    ema_decay: float | None = None,
    seed: int = 0,
    learning_rate: Callable[[Any], jax.Array] | None = None,
    state_shardings: Any = None,
    layout: reduction.Layout | None = None,
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
  """Returns the jitted step, which donates its state.

  The gradient is that of loss_sum / weight_sum over the whole global batch,
  whatever the number of devices and micro-batches. Where the loss or the
  gradient is not finite, nothing changes but `step` and `skipped`: the state
  stays the last good one in both modes, and with `nonfinite='stop'` the caller
  ends the run. An update that is not finite although its gradient is, such as
  0 / 0 of Adam with eps 0, is no step to leave out: `update_norm` tells.

  Args:
    task: with `loss(params, model_state, batch, rng, train) -> (loss_sum,
      weight_sum, metrics, model_state)`, metrics being name -> (sum, weight);
      and optionally `prepare(batch, rng)`, run once on the global batch. The
      batch that `loss` gets has `row` [b], each example's row in the global
      batch: what it draws from `rng` it must draw by row.
    tx: the optimizer.
    mesh: as `mesh.make` makes it; batches are split over 'data' and 'fsdp'.
    accum_steps: micro-batches per step; divides the batch per device.
    nonfinite: 'stop' or 'skip'; both freeze the state, see above.
    ema_decay: decay of `state.ema`; None where there is none.
    seed: of all randomness inside the step, folded with the step number.
    learning_rate: of the next update by optimizer state, for the metric `lr`.
    state_shardings: layout of the returned state; None = as the compiler
      chooses.
    layout: how gradients come together; None = of whole parameters, in float32.

  Returns:
    A function to (state, metrics): float32 scalars `loss`, `grad_norm`,
    `update_norm`, `skipped`, `nonfinite_leaf` (index in
    `jax.tree.leaves(params)` of the first gradient that is not finite, -1 if
    none), `lr`, and the task's.

  Raises:
    ValueError: an unknown `nonfinite`.
  """
  if nonfinite not in ('stop', 'skip'):
    raise ValueError(f"nonfinite={nonfinite!r}; accepted: 'stop', 'skip'")
  prepare = getattr(task, 'prepare', lambda batch, rng: batch)
  layout = layout or reduction.Layout(mesh)

  def step(state: TrainState, batch):
    rng = jax.random.fold_in(jax.random.key(seed), state.step)
    rng, prepare_rng = jax.random.split(rng)
    batch = prepare(batch, prepare_rng)
    # What is drawn for an example is drawn for its row of the global batch, so
    # that it does not depend on micro-batches.
    rows = len(jax.tree.leaves(batch)[0])
    batch = batch | {'row': jnp.arange(rows, dtype=jnp.uint32)}
    grads, loss, metrics, model_state = _gradients(
        task, state, batch, rng, accum_steps, layout
    )
    grad_norm, culprit = _norm_and_culprit(grads)
    good = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    metrics |= dict(loss=loss, grad_norm=grad_norm, nonfinite_leaf=culprit)
    if learning_rate is not None:
      metrics['lr'] = learning_rate(state.opt_state)
    # Not a choice leaf by leaf, which reads the old leaves once more: 8 % of
    # the memory traffic of a step of BERT-base with LAMB on a TPU v4.
    state, metrics['update_norm'] = jax.lax.cond(
        good, _updater(tx, grads, model_state, ema_decay), _keep, state
    )
    state = state._replace(step=state.step + 1)
    metrics['skipped'] = state.skipped
    return state, {k: v.astype(jnp.float32) for k, v in metrics.items()}

  replicated = NamedSharding(mesh, P())
  out = None if state_shardings is None else (state_shardings, replicated)
  return jax.jit(step, donate_argnums=0, out_shardings=out)


def _updater(tx, grads, model_state, ema_decay):
  """Returns a function of a state to the updated one and the update's norm."""

  def update(state):
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema = state.ema
    if ema_decay is not None:
      ema = optax.incremental_update(params, ema, 1 - ema_decay)
    state = state._replace(
        params=params, model_state=model_state, opt_state=opt_state, ema=ema
    )
    return state, trees.global_norm(updates)

  return update


def _keep(state):
  return state._replace(skipped=state.skipped + 1), jnp.float32(0)


def _norm_and_culprit(grads):
  """Returns the global norm, and the index of the first bad leaf or -1.

  One sum of squares per leaf gives both.
  """
  squares = jnp.stack([
      jnp.sum(jnp.square(g.astype(jnp.float32)))
      for g in jax.tree.leaves(grads)
  ])
  bad = ~jnp.isfinite(squares)
  culprit = jnp.where(jnp.any(bad), jnp.argmax(bad), -1)
  return jnp.sqrt(jnp.sum(squares)), culprit


def _gradients(task, state, batch, rng, accum_steps, layout):
  """Returns (gradient, loss, metrics, model_state) of the global batch."""

  def loss(params, model_state, batch, rng):
    loss_sum, weight_sum, metrics, model_state = task.loss(
        params, model_state, batch, rng, True
    )
    return loss_sum, ((loss_sum, weight_sum, metrics), model_state)

  def sums_of(params, model_state, batch, rng):
    def micro_step(model_state, batch):
      gathering = layout.with_gathers(loss, params)
      grads, (sums, model_state) = jax.grad(gathering, has_aux=True)(
          params, model_state, batch, rng
      )
      return model_state, (layout.place_partial(grads), sums)

    return _accumulate(micro_step, model_state, batch, accum_steps, layout)

  model_state, (grads, sums) = layout.sum_over_devices(
      sums_of, state.params, state.model_state, batch, rng
  )
  loss_sum, weight_sum, metrics = sums
  return (
      jax.tree.map(lambda g: _mean(g, weight_sum), grads),
      _mean(loss_sum, weight_sum),
      {name: _mean(*pair) for name, pair in metrics.items()},
      model_state,
  )


def _accumulate(micro_step, model_state, batch, accum_steps, layout):
  """Returns the model state after all micro-batches, and their sums."""
  if accum_steps == 1:
    return micro_step(model_state, batch)
  batches = _split(batch, accum_steps, layout)
  first = jax.tree.map(lambda x: x[0], batches)
  _, shapes = jax.eval_shape(micro_step, model_state, first)

  def body(carry, batch):
    model_state, sums = carry
    model_state, new = micro_step(model_state, batch)
    return (model_state, jax.tree.map(jnp.add, sums, new)), None

  zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  return jax.lax.scan(body, (model_state, zeros), batches)[0]


def _mean(total, weight):
  # A batch without any weight has loss 0 and gradient 0, not 0/0.
  return total / jnp.where(weight > 0, weight, 1).astype(total.dtype)


def _split(batch, accum_steps, layout):
  """Splits [b, ...] into [accum_steps, b / accum_steps, ...].

  Row i goes to micro-batch i % accum_steps, so that every device splits the
  rows it holds already and nothing moves between devices.
  """

  def split(x):
    x = x.reshape(x.shape[0] // accum_steps, accum_steps, *x.shape[1:])
    return layout.place_micro_batches(jnp.swapaxes(x, 0, 1))

  return jax.tree.map(split, batch)
