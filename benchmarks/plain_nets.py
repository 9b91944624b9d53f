"""R50x1 and BERT-Large as one writes them with Flax and optax alone.

The peers of `tpu_compiled.py`: the same layers and the same products, with the
library's own norms, pooling, attention and optimizers.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

BLOCKS = (3, 4, 6, 3)


class Conv(nn.Module):
  """Padded by half its size; `standardize` is WS, without care for means."""

  features: int
  size: int
  stride: int = 1
  standardize: bool = False

  @nn.compact
  def __call__(self, x):
    shape = (self.size, self.size, x.shape[-1], self.features)
    w = self.param('kernel', nn.initializers.lecun_normal(), shape)
    if self.standardize:
      w = w - jnp.mean(w, (0, 1, 2))
      w = w * jax.lax.rsqrt(jnp.mean(jnp.square(w), (0, 1, 2)) + 1e-10)
    return jax.lax.conv_general_dilated(
        x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), (self.stride,) * 2,
        [(self.size // 2,) * 2] * 2,
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )


class Unit(nn.Module):
  """Pre-activation bottleneck."""

  features: int
  stride: int
  conv: Callable[..., Any]
  norm: Callable[..., Any]

  @nn.compact
  def __call__(self, x):
    d, shortcut = self.features, x
    y = nn.relu(self.norm()(x))
    if x.shape[-1] != 4 * d or self.stride != 1:
      shortcut = self.conv(4 * d, 1, self.stride)(y)
    y = nn.relu(self.norm()(self.conv(d, 1)(y)))
    y = nn.relu(self.norm()(self.conv(d, 3, self.stride)(y)))
    return shortcut + self.conv(4 * d, 1)(y)


class ResNet(nn.Module):
  """R50x1 with `norm` one of none, bn, gn; all activations bfloat16."""

  kind: str
  standardize: bool
  classes: int

  @nn.compact
  def __call__(self, x):
    conv = functools.partial(Conv, standardize=self.standardize)
    norm = {
        'none': lambda: (lambda x: x),
        'bn': functools.partial(
            nn.BatchNorm, use_running_average=False, momentum=0.9,
            epsilon=1e-5, dtype=jnp.bfloat16),
        'gn': functools.partial(
            nn.GroupNorm, 32, epsilon=1e-5, dtype=jnp.bfloat16),
    }[self.kind]
    x = conv(64, 7, 2)(x)
    x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
    for i, units in enumerate(BLOCKS):
      for j in range(units):
        stride = 2 if i > 0 and j == 0 else 1
        x = Unit(64 * 2**i, stride, conv, norm)(x)
    x = jnp.mean(nn.relu(norm()(x)).astype(jnp.float32), (1, 2))
    return nn.Dense(self.classes)(x)


def resnet(kind: str, standardize: bool, classes: int):
  """Returns init(rng, batch) and apply(params, stats, batch) of a ResNet."""
  net = ResNet(kind, standardize, classes)

  def init(rng, batch):
    variables = net.init(rng, batch['image'])
    return variables['params'], variables.get('batch_stats', {})

  def apply(params, stats, batch):
    logits, changed = net.apply(
        {'params': params, 'batch_stats': stats},
        batch['image'],
        mutable=['batch_stats'],
    )
    return logits, changed.get('batch_stats', {})

  return init, apply


def momentum_step(init: Callable[..., Any], apply: Callable[..., Any]):
  """Returns (init, step) of momentum SGD on images and labels."""
  tx = optax.sgd(0.01, momentum=0.9)

  def init_all(batch):
    params, stats = init(jax.random.key(0), batch)
    return params, stats, tx.init(params)

  def step(state, batch):
    params, stats, moments = state

    def loss(params):
      logits, new = apply(params, stats, batch)
      losses = optax.softmax_cross_entropy_with_integer_labels(
          logits, batch['label'])
      return jnp.mean(losses), new

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
    updates, moments = tx.update(grads, moments, params)
    return (optax.apply_updates(params, updates), stats, moments), value

  return init_all, step


class Layer(nn.Module):
  """One post-norm layer of BERT."""

  hidden: int

  @nn.compact
  def __call__(self, x, mask):
    dense = functools.partial(nn.Dense, dtype=jnp.bfloat16)
    norm = functools.partial(nn.LayerNorm, epsilon=1e-12, dtype=jnp.bfloat16)
    y = nn.MultiHeadDotProductAttention(
        self.hidden // 64, dtype=jnp.bfloat16, deterministic=True)(x, mask=mask)
    x = norm()(x + y)
    y = dense(self.hidden)(nn.gelu(dense(4 * self.hidden)(x)))
    return norm()(x + y)


class Bert(nn.Module):
  """BERT with both heads, words predicted at the masked positions only."""

  layers: int
  hidden: int
  vocab: int

  @nn.compact
  def __call__(self, batch):
    table = functools.partial(
        nn.Embed, features=self.hidden, dtype=jnp.bfloat16)
    norm = functools.partial(nn.LayerNorm, epsilon=1e-12, dtype=jnp.bfloat16)
    dense = functools.partial(nn.Dense, dtype=jnp.bfloat16)
    words, ids = table(self.vocab), batch['input_ids']
    x = words(ids) + table(2)(batch['segment_ids'])
    x = norm()(x + table(512)(jnp.arange(ids.shape[1])[None]))
    real = batch['input_mask'] > 0
    mask = nn.make_attention_mask(real, real)
    for _ in range(self.layers):
      x = Layer(self.hidden)(x, mask)
    pooled = nn.tanh(dense(self.hidden)(x[:, 0]))
    x = jnp.take_along_axis(x, batch['masked_lm_positions'][..., None], 1)
    x = words.attend(norm()(nn.gelu(dense(self.hidden)(x))))
    bias = self.param('bias', nn.initializers.zeros, (self.vocab,))
    return x.astype(jnp.float32) + bias, nn.Dense(2)(pooled)


def bert_step(layers: int, hidden: int, vocab: int):
  """Returns (init, step) of LAMB on the batches of BERT's pretraining."""
  net = Bert(layers, hidden, vocab)
  tx = optax.chain(
      optax.clip_by_global_norm(1.0), optax.lamb(1e-3, weight_decay=0.01))

  def init(batch):
    params = net.init(jax.random.key(0), batch)['params']
    return params, tx.init(params)

  def step(state, batch):
    params, moments = state

    def loss(params):
      words, following = net.apply({'params': params}, batch)
      cross_entropy = optax.softmax_cross_entropy_with_integer_labels
      weights = batch['masked_lm_weights']
      masked = cross_entropy(words, batch['masked_lm_ids']) * weights
      labels = batch['next_sentence_labels'].reshape(-1)
      following = cross_entropy(following, labels)
      return jnp.sum(masked) / jnp.sum(weights) + jnp.mean(following)

    value, grads = jax.value_and_grad(loss)(params)
    updates, moments = tx.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), value

  return init, step
