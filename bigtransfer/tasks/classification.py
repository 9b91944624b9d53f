"""Image classification with softmax or sigmoid cross-entropy."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bigtransfer import mixing


def cross_entropy(name: str, logits: jax.Array, targets: jax.Array):
  """Returns the loss [b] of float32 logits [b, k] against targets [b, k].

  'softmax' is -sum_k target log p_k; 'sigmoid' adds up k binary losses, as
  big_vision's `sigmoid_xent` does.
  """
  if name == 'softmax':
    return optax.softmax_cross_entropy(logits, targets)
  return jnp.sum(optax.sigmoid_binary_cross_entropy(logits, targets), axis=-1)


class Task:
  """See the package; batches hold `image`, `label` and `mask`."""

  def __init__(self, config: Any, model: Any):
    self._loss = config.loss
    self._augment = config.augment
    self._num_classes = config.model.num_classes
    self._model = model

  def prepare(self, batch, rng):
    """Adds `target` [b, k]: one-hot, smoothed, mixed with the images."""
    smoothing = self._loss.label_smoothing
    target = jax.nn.one_hot(batch['label'], self._num_classes)
    target = (1 - smoothing) * target + smoothing / self._num_classes
    image, target = mixing.mix(
        rng, batch['image'], target, batch['mask'], self._augment
    )
    return batch | {'image': image, 'target': target}

  def loss(self, params, model_state, batch, rng, train):
    """Returns (loss_sum, weight_sum, metrics, model_state).

    Without `prepare`, as in evaluation, the target is the plain label.
    """
    outputs, model_state = self._model.apply(
        params, model_state, batch, train=train, rng=rng
    )
    logits = outputs['logits'].astype(jnp.float32)
    target = batch.get('target')
    if target is None:
      target = jax.nn.one_hot(batch['label'], self._num_classes)
    mask = batch['mask']
    weight_sum = jnp.sum(mask)
    loss = cross_entropy(self._loss.name, logits, target)
    hit = jnp.argmax(logits, axis=-1) == jnp.argmax(target, axis=-1)
    # Selected, not multiplied: a padded row may hold anything.
    loss_sum = jnp.sum(jnp.where(mask > 0, mask * loss, 0))
    metrics = {'accuracy': (jnp.sum(jnp.where(hit, mask, 0)), weight_sum)}
    return loss_sum, weight_sum, metrics, model_state


def build(config: Any, model: Any) -> Task:
  return Task(config, model)
