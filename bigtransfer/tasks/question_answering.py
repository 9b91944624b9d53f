"""Start and end of the answer in a window, as in run_squad.py of BERT.

Of google-research/bert, that is; there padding takes part in the softmax, here
it does not.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

# Finite: a padding row has no position at all, and -inf would make it NaN.
_NEVER = -1e30


def masked(logits: jax.Array, input_mask: jax.Array) -> jax.Array:
  """Returns float32 logits [b, s] that are out of question off the mask."""
  return jnp.where(input_mask > 0, logits.astype(jnp.float32), _NEVER)


class Task:
  """See the package; batches hold `start_positions` and `end_positions` [b].

  Unanswerable windows point to position 0, [CLS].
  """

  def __init__(self, model: Any):
    self._model = model

  def prepare(self, batch, rng):
    del rng
    return batch

  def loss(self, params, model_state, batch, rng, train):
    """Returns (loss_sum, weight_sum, metrics, model_state).

    The loss of a window is the mean of its two cross-entropies, and it counts
    as accurate when both ends are right.
    """
    outputs, model_state = self._model.apply(
        params, model_state, batch, train=train, rng=rng
    )
    mask = batch['mask']
    weight_sum = jnp.sum(mask)
    loss, hit = jnp.zeros_like(mask), mask > 0
    for end in ('start', 'end'):
      logits = masked(outputs[f'{end}_logits'], batch['input_mask'])
      position = batch[f'{end}_positions']
      loss += optax.softmax_cross_entropy_with_integer_labels(
          logits, position
      ) / 2
      hit &= jnp.argmax(logits, axis=-1) == position
    # Selected, not multiplied: a padded row may hold anything.
    loss_sum = jnp.sum(jnp.where(mask > 0, mask * loss, 0))
    metrics = {'accuracy': (jnp.sum(jnp.where(hit, mask, 0)), weight_sum)}
    return loss_sum, weight_sum, metrics, model_state


def build(config: Any, model: Any) -> Task:
  if config.model.head != 'span':
    raise ValueError(
        f'config.model.head={config.model.head!r}: the task question_answering'
        " needs 'span'"
    )
  return Task(model)
