"""BERT from ids to vectors: embeddings, and post-norm layers, scanned.

`modeling.py` of https://github.com/google-research/bert,
https://arxiv.org/abs/1810.04805. Letters: `b` batch, `s` sequence, `h` hidden.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from bigtransfer.models import attention, gathered

GELUS = {
    'tanh': functools.partial(jax.nn.gelu, approximate=True),
    'erf': functools.partial(jax.nn.gelu, approximate=False),
}
_DOTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
_EPS = 1e-12
# Both BERTs draw from a normal of this deviation cut at two deviations, which
# leaves one of 0.0176, as `tf.truncated_normal_initializer(0.02)` does.
init = nn.initializers.truncated_normal(0.02)


@dataclasses.dataclass(frozen=True)
class Size:
  """What an encoder consists of, and how it is computed.

  Attributes:
    layers, hidden, heads, ffn: their numbers.
    mixing: 'attention', 'fourier', or 'hybrid', whose last two layers attend.
    dropout: of the output of every sublayer.
    attention_dropout: of the attention probabilities.
    gelu: a key of GELUS.
    dtype: of matrix products and of what passes between layers. Statistics,
      softmax and residual sums are float32.
    remat: what the backward pass computes again: 'none', 'layer', all of it,
      or 'dots', all but the products with parameters.
    scan: one compiled layer for all; False = each compiled for itself.
  """

  layers: int
  hidden: int
  heads: int
  ffn: int
  mixing: str
  dropout: float
  attention_dropout: float
  gelu: str
  dtype: Any
  remat: str
  scan: bool


class Norm(nn.Module):
  """Layer normalization with float32 statistics, eps 1e-12, into `dtype`."""

  dtype: Any

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    shape = (1,) * (x.ndim - 1) + (-1,)
    scale = self.param('scale', nn.initializers.ones, x.shape[-1:])
    bias = self.param('bias', nn.initializers.zeros, x.shape[-1:])
    x = x.astype(jnp.float32)
    x -= jnp.mean(x, -1, keepdims=True)
    var = jnp.mean(jnp.square(x), -1, keepdims=True)
    y = x * lax.rsqrt(var + _EPS) * scale.reshape(shape) + bias.reshape(shape)
    return y.astype(self.dtype)


class _Table(nn.Module):
  """Embeddings; rows beyond `used` are zeros and stand for nothing."""

  rows: int
  features: int
  used: int | None = None

  @nn.compact
  def __call__(self) -> jax.Array:
    def draw(rng, shape):
      # Drawn for the used rows only: padding changes no parameter.
      table = init(rng, (self.used or shape[0], shape[1]))
      return jnp.pad(table, ((0, shape[0] - len(table)), (0, 0)))

    return self.param('embedding', draw, (self.rows, self.features))


class Embeddings(nn.Module):
  """Sum of word, position and segment; returns it and the word table."""

  size: Size
  vocab_size: int
  rows: int
  max_position: int

  @nn.compact
  def __call__(self, ids, segments, keys):
    h = self.size.hidden
    word = _Table(self.rows, h, self.vocab_size, name='word')()
    position = _Table(self.max_position, h, name='position')()
    segment = _Table(2, h, name='segment')()
    # An id beyond the table becomes NaN, not the last row.
    x = jnp.take(word, ids, 0, mode='fill', fill_value=jnp.nan)
    x += position[None, : ids.shape[1]]
    x += jnp.where((segments == 0)[..., None], segment[0], segment[1])
    x = Norm(jnp.float32, name='norm')(x)
    x = attention.dropout(x, self.size.dropout, keys)
    return x.astype(self.size.dtype), word


class _Heads(nn.Module):
  """A dense layer into heads, [b, s, h] -> [b, s, n, d], or `back` from them.

  Heads are dimensions of the product, not of a reshape after it: what is split
  by heads then never has the shape of what is whole, see gathered.py.
  """

  size: Size
  back: bool = False

  @nn.compact
  def __call__(self, x):
    h, n, dtype = self.size.hidden, self.size.heads, self.size.dtype
    kernel = self.param('kernel', init, (h, h)).astype(dtype)
    bias = self.param('bias', nn.initializers.zeros, (h,)).astype(dtype)
    if self.back:
      y = jnp.einsum('bsnd,ndh->bsh', x, kernel.reshape(n, -1, h))
      return y + bias.reshape(1, 1, h)
    y = jnp.einsum('bsh,hnd->bsnd', x, kernel.reshape(h, n, -1))
    return y + bias.reshape(1, 1, n, -1)


class _Layer(nn.Module):
  """One layer as the body of a scan: ((x, masks), index) -> (x, None)."""

  size: Size
  attends: bool

  @nn.compact
  def __call__(self, x, mask, keys, index):
    size = self.size
    dense = functools.partial(nn.Dense, dtype=size.dtype, kernel_init=init)
    if keys is not None:
      keys = jax.vmap(lambda key: jax.random.split(_fold(key, index), 3))(keys)
      keys = tuple(keys[:, i] for i in range(3))
    else:
      keys = (None, None, None)

    def add(x, y, name, keys):
      y = gathered.whole(y).astype(jnp.float32)
      y = attention.dropout(y, size.dropout, keys)
      return Norm(size.dtype, name=name)(x.astype(jnp.float32) + y)

    x = gathered.whole(x)
    if self.attends:
      # Their three gradients meet here, before they are added to any other: so
      # devices that split a layer add up one sum and not three.
      shared = gathered.whole(x)
      q, k, v = (
          _Heads(size, name=name)(shared) for name in ('query', 'key', 'value')
      )
      y = attention.attend(q, k, v, mask, size.attention_dropout, keys[0])
      y = _Heads(size, back=True, name='attention_output')(y)
    else:
      y = attention.fourier(x)
    x = add(x, y, 'attention_norm', keys[1])
    y = dense(size.ffn, name='intermediate')(gathered.whole(x))
    y = GELUS[size.gelu](y)
    y = dense(size.hidden, name='output')(y)
    return add(x, y, 'output_norm', keys[2]), None


def _fold(key, index):
  return jax.random.fold_in(key, index)


class Encoder(nn.Module):
  """All layers. x [b, s, h], mask [b, s] bool, keys [b] or None -> [b, s, h].

  Parameters are stacked: the first axis counts layers.
  """

  size: Size

  @nn.compact
  def __call__(self, x, mask, keys):
    size = self.size
    attending = {'attention': size.layers, 'fourier': 0, 'hybrid': 2}
    attending = attending[size.mixing]
    # The layers that attend have names of their own beside those that do not.
    stacks = [
        ('layers', size.layers - attending, False),
        ('attention_layers' if size.mixing == 'hybrid' else 'layers',
         attending, True),
    ]
    first = 0
    for name, count, attends in stacks:
      if count:
        index = jnp.arange(first, first + count)
        x, _ = self._stack(count)(size, attends, name=name)(
            x, mask, keys, index
        )
      first += count
    return x

  def _stack(self, count):
    layer = _Layer
    if self.size.remat != 'none':
      policy = _DOTS if self.size.remat == 'dots' else None
      # A loop keeps the compiler from undoing remat by itself.
      layer = nn.remat(layer, policy=policy, prevent_cse=not self.size.scan)
    return nn.scan(
        layer,
        variable_axes={'params': 0},
        split_rngs={'params': True},
        in_axes=(nn.broadcast, nn.broadcast, 0),
        length=count,
        unroll=1 if self.size.scan else count,
    )
