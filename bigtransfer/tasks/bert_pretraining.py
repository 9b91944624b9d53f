"""Masked words and next sentence, as BERT is pretrained.

https://arxiv.org/abs/1810.04805
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class Task:
  """See the package; batches hold what input_pipeline.pretraining reads.

  The loss is the mean over all predictions of the global batch plus the mean
  over its examples. The two means have different divisors, and a step divides
  once: so `prepare`, which sees the global batch, divides the weights by their
  sums, and what is left to add up over micro-batches and devices is exact.
  google-research/bert adds 1e-5 to the number of predictions; here a batch
  without any has loss 0 for them, and no NaN.
  """

  def __init__(self, model: Any):
    self._model = model

  def prepare(self, batch, rng):
    """Adds `prediction_share` [b, p] and `example_share` [b], summing to 1."""
    del rng
    mask = batch['mask']
    weights = batch['masked_lm_weights'] * mask[:, None]
    return batch | {
        'prediction_share': weights / _at_least_one(jnp.sum(weights)),
        'example_share': mask / _at_least_one(jnp.sum(mask)),
    }

  def loss(self, params, model_state, batch, rng, train):
    """Returns (loss_sum, weight_sum, metrics, model_state).

    `weight_sum` is the micro-batch's share of the examples.
    """
    outputs, model_state = self._model.apply(
        params, model_state, batch, train=train, rng=rng
    )
    words = score(outputs['mlm_logits'], batch['masked_lm_ids'])
    labels = batch['next_sentence_labels']
    pairs = score(outputs['nsp_logits'], labels)
    share = batch['example_share']
    loss_sum = _sum(batch['prediction_share'], words.loss)
    loss_sum += _sum(share, pairs.loss)
    mask = batch['mask']
    weights = batch['masked_lm_weights'] * mask[:, None]
    metrics = {
        'mlm_loss': (_sum(weights, words.loss), jnp.sum(weights)),
        'mlm_accuracy': (_sum(weights, words.hit), jnp.sum(weights)),
        'nsp_loss': (_sum(mask, pairs.loss), jnp.sum(mask)),
        'nsp_accuracy': (_sum(mask, pairs.hit), jnp.sum(mask)),
    }
    return loss_sum, jnp.sum(share), metrics, model_state


class Predictions(NamedTuple):
  """Of logits [..., n]: `loss` [...] in nats and `hit` [...], 1 if right."""

  loss: jax.Array
  hit: jax.Array


def score(logits: jax.Array, labels: jax.Array) -> Predictions:
  """Compares logits [..., n] with int32 labels [...]."""
  logits = logits.astype(jnp.float32)
  loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  hit = jnp.argmax(logits, axis=-1) == labels
  return Predictions(loss, hit.astype(jnp.float32))


def _sum(weights, values):
  # Selected, not multiplied: an unused slot may hold anything.
  return jnp.sum(jnp.where(weights > 0, weights * values, 0))


def _at_least_one(total):
  return jnp.where(total > 0, total, 1)


def build(config: Any, model: Any) -> Task:
  if config.model.head != 'pretraining':
    raise ValueError(
        f'config.model.head={config.model.head!r}: the task bert_pretraining'
        " needs 'pretraining'"
    )
  return Task(model)
