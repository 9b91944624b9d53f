"""How tokens mix: by attention, or by Fourier transforms as in FNet.

Attention: https://arxiv.org/abs/1706.03762. FNet:
https://arxiv.org/abs/2105.03824. Letters: `b` batch, `s` sequence, `h` hidden,
`n` heads, `d` = h / n.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax


def dropout(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
  """Zeroes a share `rate` of x [b, ...] and scales up the rest.

  Row i depends on keys[i] only, so the result does not depend on how a batch
  is split. `rate` is rounded to a multiple of 2**-16; keys None = no dropout.
  Devices that share rows may split the last dimension, and of four the second.
  """
  dropped = round(rate * 2**16)
  if keys is None or not dropped:
    return x
  # Half of a random word decides over each element. The halves lie along the
  # sequence, which is not split: heads are, and would exchange them.
  axis = max(1, x.ndim - 2)
  shape = list(x.shape[1:])
  shape[axis - 1] = -(-x.shape[axis] // 2)
  words = jax.vmap(lambda key: jax.random.bits(key, shape))(keys)
  halves = jnp.concatenate([words & 0xFFFF, words >> 16], axis)
  kept = lax.slice_in_dim(halves, 0, x.shape[axis], axis=axis) >= dropped
  return jnp.where(kept, x * (2**16 / (2**16 - dropped)), 0)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    rate: float = 0.0,
    keys: jax.Array | None = None,
) -> jax.Array:
  """Softmax attention, [b, s, n, d] all; `mask` [b, s] is True for real keys.

  With dropout of the probabilities, as BERT has it, these are computed here:
  `jax.nn.dot_product_attention` does not show them.
  """
  mask = jnp.expand_dims(mask, (1, 2))
  if keys is None or not rate:
    # Inside, it asks what bfloat16 and float32 promote to.
    with jax.numpy_dtype_promotion('standard'):
      return jax.nn.dot_product_attention(query, key, value, mask=mask)
  scores = jnp.einsum(
      'bqnd,bknd->bnqk', query, key, preferred_element_type=jnp.float32
  )
  lowest = -0.7 * jnp.finfo(jnp.float32).max  # Its differences are finite.
  scores = jnp.where(mask, scores * query.shape[-1] ** -0.5, lowest)
  probabilities = dropout(jax.nn.softmax(scores), rate, keys)
  return jnp.einsum('bnqk,bknd->bqnd', probabilities.astype(value.dtype), value)


@jax.custom_vjp
def fourier(x: jax.Array) -> jax.Array:
  """Real part of the discrete Fourier transform of x [b, s, h] over s and h.

  On TPU by products with the two DFT matrices, as FNet does up to length 4096,
  elsewhere by FFT. Padding takes part; FNet has no mask.
  """
  return lax.platform_dependent(x, tpu=fourier_by_matrices, default=_fft)


# The transform is linear and symmetric: its derivative is itself.
fourier.defvjp(lambda x: (fourier(x), None), lambda _, g: (fourier(g),))


def fourier_by_matrices(x: jax.Array) -> jax.Array:
  """`fourier` as Re(FXG) = Re F X Re G - Im F X Im G."""
  (seq_cos, seq_sin), (cos, sin) = (_dft(n, x.dtype) for n in x.shape[1:])
  # Else TPUs would round float32 to bfloat16.
  product = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)
  real = product('st,bth->bsh', seq_cos, product('bth,hk->btk', x, cos))
  return real - product('st,bth->bsh', seq_sin, product('bth,hk->btk', x, sin))


def _dft(n, dtype):
  """Real and negated imaginary part of the matrix of size n."""
  i = jnp.arange(n, dtype=jnp.int32)
  # Reduced as an integer, for the cosine of a large float32 is inexact.
  angle = (i[:, None] * i[None] % n).astype(jnp.float32) * (2 * jnp.pi / n)
  return jnp.cos(angle).astype(dtype), jnp.sin(angle).astype(dtype)


def _fft(x):
  y = jnp.fft.fftn(x.astype(jnp.float32), axes=(1, 2))
  return jnp.real(y).astype(x.dtype)
