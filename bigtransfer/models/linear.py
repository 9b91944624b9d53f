"""Softmax regression on pixels: the floor that a network has to beat.

Its step costs next to nothing, which makes it the load under which the loop
itself is measured and tested.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bigtransfer.models.bit import Model


def build(config: Any) -> Model:
  """Makes the model; `num_classes` is all it reads of the section."""
  head = nn.Dense(
      config.num_classes, kernel_init=nn.initializers.zeros, name='head'
  )

  def init(rng: jax.Array, batch: Any):
    params = head.init(rng, _flat(batch['image']))['params']
    return {'head': params}, {}

  def apply(params, model_state, batch, *, train, rng=None):
    del train, rng
    pre_logits = _flat(batch['image'])
    logits = head.apply({'params': params['head']}, pre_logits)
    return {'pre_logits': pre_logits, 'logits': logits}, model_state

  return Model(init, apply)


def _flat(image: jax.Array) -> jax.Array:
  return image.reshape(image.shape[0], -1).astype(jnp.float32)
