"""BERT: embeddings, an encoder, and the heads of its tasks.

Equal to https://github.com/google-research/bert (`modeling.py`,
`run_pretraining.py`). https://arxiv.org/abs/1810.04805
"""

import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bigtransfer.models import attention, encoder
from bigtransfer.models.bit import Model

# Layers and hidden size; heads are hidden / 64 and the inner size 4 * hidden.
VARIANTS = {
    'tiny': (2, 128),
    'mini': (4, 256),
    'small': (4, 512),
    'medium': (8, 512),
    'base': (12, 768),
    'large': (24, 1024),
}
_CHOICES = {
    'mixing': ('attention', 'fourier', 'hybrid'),
    'head': ('pretraining', 'classification', 'span', 'none'),
    'gelu': tuple(encoder.GELUS),
    'remat': ('none', 'layer', 'dots'),
    'dtype': ('float32', 'bfloat16'),
}
# A logit that no other loses against, and whose exponential is 0.
_NEVER = -1e9


def build(config: Any) -> Model:
  """Makes the network that a `model` section describes.

  Batches have int32 `input_ids`, `input_mask` (1 = real) and `segment_ids`
  [b, s]; with head='pretraining' maybe `masked_lm_positions` [b, p]. Outputs
  are `sequence` [b, s, h] and `pooled` [b, h] in `dtype`, and in float32
  `mlm_logits` [b, p, v], where the batch has positions, with v the vocabulary
  rounded up to `vocab_multiple`, and `nsp_logits` [b, 2]; or `logits`
  [b, num_classes]; or `start_logits` and `end_logits` [b, s].

  Dropout, if `train`, follows from `rng` and `batch['row']`, each example's row
  in the global batch, and from nothing else.

  The position table has `max_position` rows whatever the length: rows that no
  input reaches get no gradient, and of weight decay what every row gets, as in
  the original, which moves them a little.

  Raises ValueError, before any computation, for what it does not accept, and
  when traced for inputs of impossible shapes.
  """
  sizes = size(config)
  _check(config, sizes)
  network = _Network(
      sizes,
      vocab_size=config.vocab_size,
      vocab_multiple=config.vocab_multiple,
      max_position=config.max_position,
      head=config.head,
      num_classes=config.num_classes or 0,
  )

  def init(rng, batch):
    del batch  # The parameters depend on no size of an input.
    ids = jnp.zeros((1, 1), jnp.int32)
    keys = ('input_ids', 'input_mask', 'segment_ids', 'masked_lm_positions')
    return network.init(rng, dict.fromkeys(keys, ids), None)['params'], {}

  def apply(params, model_state, batch, *, train, rng=None):
    _check_batch(batch, config.max_position)
    keys = None
    if train and max(sizes.dropout, sizes.attention_dropout) > 0:
      keys = jax.vmap(jax.random.fold_in, (None, 0))(rng, batch['row'])
    return network.apply({'params': params}, batch, keys), model_state

  return Model(init, apply)


def size(config: Any) -> encoder.Size:
  """Returns the sizes that a `model` section asks for, unchecked."""
  match = re.fullmatch(r'L(\d+)_H(\d+)', config.variant)
  if config.variant not in VARIANTS and not match:
    raise ValueError(
        f'model.variant={config.variant!r}: expected one of {list(VARIANTS)} '
        'or L<layers>_H<hidden>, such as L4_H256'
    )
  layers, hidden = VARIANTS.get(config.variant) or map(int, match.groups())
  return encoder.Size(
      layers=config.layers or layers,
      hidden=config.hidden or hidden,
      heads=config.heads or hidden // 64,
      ffn=config.ffn or 4 * hidden,
      mixing=config.mixing,
      dropout=config.dropout,
      attention_dropout=config.attention_dropout,
      gelu=config.gelu,
      dtype=jnp.dtype(config.dtype),
      remat=config.remat,
      scan=config.scan,
  )


def _check(config, size):
  for key, choices in _CHOICES.items():
    if getattr(config, key) not in choices:
      raise ValueError(
          f'model.{key}={getattr(config, key)!r}: expected one of {choices}'
      )
  for key in ('dropout', 'attention_dropout'):
    if not 0 <= getattr(config, key) < 1:
      raise ValueError(
          f'model.{key}={getattr(config, key)}: expected at least 0, below 1'
      )
  for key in ('vocab_size', 'vocab_multiple', 'max_position'):
    if not getattr(config, key):
      raise ValueError(
          f'model.{key}={getattr(config, key)}: expected 1 or more'
      )
  if not size.heads or size.hidden % size.heads:
    raise ValueError(
        f'hidden size {size.hidden} not divisible by {size.heads} heads: '
        f'model.variant={config.variant!r} with hidden={config.hidden} and '
        f'heads={config.heads}'
    )
  least = 3 if size.mixing == 'hybrid' else 1
  if size.layers < least:
    raise ValueError(
        f'{size.layers} layers with model.mixing={size.mixing!r}: expected '
        f'{least} or more'
    )
  if config.head == 'classification' and not config.num_classes:
    raise ValueError(
        f"model.num_classes={config.num_classes} with head='classification': "
        'expected a number of classes'
    )


def _check_batch(batch, max_position):
  ids = batch['input_ids']
  if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
    raise ValueError(
        f'input_ids of shape {ids.shape} and type {ids.dtype}: expected '
        'integers [batch, sequence]'
    )
  for key in ('input_mask', 'segment_ids'):
    if batch[key].shape != ids.shape:
      raise ValueError(
          f'{key} of shape {batch[key].shape} with input_ids of {ids.shape}: '
          'expected the same shape'
      )
  positions = batch.get('masked_lm_positions', ids)
  if positions.ndim != 2 or len(positions) != len(ids):
    raise ValueError(
        f'masked_lm_positions of shape {positions.shape} with input_ids of '
        f'{ids.shape}: expected [{len(ids)}, predictions]'
    )
  if ids.shape[1] > max_position:
    raise ValueError(
        f'input_ids of shape {ids.shape}: a sequence of {ids.shape[1]} is '
        f'longer than the position table, model.max_position={max_position}'
    )


class _MaskedLM(nn.Module):
  """Logits of the words at the masked positions, over the word table."""

  size: encoder.Size
  vocab_size: int

  @nn.compact
  def __call__(self, x, table):
    x = nn.Dense(
        self.size.hidden, dtype=self.size.dtype, kernel_init=encoder.init,
        name='transform',
    )(x)
    x = encoder.Norm(self.size.dtype, name='norm')(
        encoder.GELUS[self.size.gelu](x)
    )
    logits = jnp.einsum(
        'bph,vh->bpv', x, table.astype(x.dtype),
        preferred_element_type=jnp.float32,
    )
    rows = len(table)
    bias = self.param('bias', nn.initializers.zeros, (rows,))
    logits += bias.reshape(1, 1, rows)
    if rows == self.vocab_size:
      return logits
    real = jnp.arange(rows) < self.vocab_size
    return jnp.where(real.reshape(1, 1, rows), logits, _NEVER)


class _Network(nn.Module):
  """The whole network; see `build` for its outputs."""

  size: encoder.Size
  vocab_size: int
  vocab_multiple: int
  max_position: int
  head: str
  num_classes: int

  @nn.compact
  def __call__(self, batch, keys):
    size = self.size
    rows = -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple
    keys, embedding_keys, head_keys = _three(keys)
    embeddings = encoder.Embeddings(
        size, self.vocab_size, rows, self.max_position, name='embeddings'
    )
    x, table = embeddings(
        batch['input_ids'], batch['segment_ids'], embedding_keys
    )
    mask = batch['input_mask'] > 0
    x = encoder.Encoder(size, name='encoder')(x, mask, keys)
    pooled = nn.Dense(
        size.hidden, dtype=size.dtype, kernel_init=encoder.init, name='pooler'
    )(x[:, 0])
    pooled = jnp.tanh(pooled)
    outputs = {'sequence': x, 'pooled': pooled}
    if self.head == 'pretraining':
      if 'masked_lm_positions' in batch:
        positions = batch['masked_lm_positions'][..., None]
        masked = jnp.take_along_axis(x, positions, 1)
        outputs['mlm_logits'] = _MaskedLM(
            size, self.vocab_size, name='mlm'
        )(masked, table)
      outputs['nsp_logits'] = _linear(2, 'nsp')(pooled)
    elif self.head == 'classification':
      pooled = attention.dropout(pooled, size.dropout, head_keys)
      outputs['logits'] = _linear(self.num_classes, 'head')(pooled)
    elif self.head == 'span':
      ends = _linear(2, 'head')(x)
      outputs['start_logits'] = ends[..., 0]
      outputs['end_logits'] = ends[..., 1]
    return outputs


def _linear(features, name):
  return nn.Dense(
      features, dtype=jnp.float32, kernel_init=encoder.init, name=name
  )


def _three(keys):
  if keys is None:
    return None, None, None
  keys = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
  return keys[:, 0], keys[:, 1], keys[:, 2]


def train_flops(config: Any, length: int, predictions: int) -> float:
  """Floating point operations of training on a sequence, forward and back.

  6 N s + 12 L h s^2 + 6 (h v + h^2) p, with N the weights of the matrices of
  the L layers, s the length and p the predictions: products only, twice as
  many operations as multiplications, the backward pass twice the forward one,
  and nothing for what remat repeats. https://arxiv.org/abs/2104.04473
  """
  sizes = size(config)
  h = sizes.hidden
  attending = {'attention': sizes.layers, 'hybrid': 2, 'fourier': 0}
  attending = attending[sizes.mixing]
  weights = attending * 4 * h * h + sizes.layers * 2 * h * sizes.ffn
  mixing = 12 * attending * h * length**2
  head = 6 * (h * config.vocab_size + h * h) * predictions
  return 6.0 * weights * length + mixing + head
