"""A class or a number for each sentence or pair, from the head's logits.

A batch with float labels is regression: squared error of the only logit, as
for STS-B. Otherwise it is the loss of image classification.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bigtransfer.tasks import classification


class Task:
  """See the package; batches hold token arrays, `label` and `mask`."""

  def __init__(self, config: Any, model: Any):
    self._loss = config.loss
    self._num_classes = config.model.num_classes
    self._model = model

  def prepare(self, batch, rng):
    del rng
    return batch

  def loss(self, params, model_state, batch, rng, train):
    """Returns (loss_sum, weight_sum, metrics, model_state).

    Raises ValueError if number labels meet a head of several classes.
    """
    outputs, model_state = self._model.apply(
        params, model_state, batch, train=train, rng=rng
    )
    logits = outputs['logits'].astype(jnp.float32)
    mask, label = batch['mask'], batch['label']
    weight_sum = jnp.sum(mask)
    metrics = {}
    if jnp.issubdtype(label.dtype, jnp.floating):
      if logits.shape[-1] != 1:
        raise ValueError(
            f'config.model.num_classes={logits.shape[-1]}: regression has 1'
        )
      loss = jnp.square(logits[:, 0] - label)
    else:
      target = jax.nn.one_hot(label, self._num_classes)
      if train:
        target = optax.smooth_labels(target, self._loss.label_smoothing)
      loss = classification.cross_entropy(self._loss.name, logits, target)
      hit = jnp.argmax(logits, axis=-1) == label
      metrics['accuracy'] = (jnp.sum(jnp.where(hit, mask, 0)), weight_sum)
    # Selected, not multiplied: a padded row may hold anything.
    loss_sum = jnp.sum(jnp.where(mask > 0, mask * loss, 0))
    return loss_sum, weight_sum, metrics, model_state


def build(config: Any, model: Any) -> Task:
  if config.model.head != 'classification':
    raise ValueError(
        f'config.model.head={config.model.head!r}: the task'
        " sequence_classification needs 'classification'"
    )
  return Task(config, model)
