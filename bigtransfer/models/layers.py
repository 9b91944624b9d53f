"""Weight standardization, normalization and the root pool of BiT.

Statistics are float32 whatever the dtype of the input, and exact also where
the mean is large against the spread.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

NORMS = ('gn', 'bn', 'ln', 'in', 'none')
_EPS = 1e-5
_BN_MOMENTUM = 0.9


@jax.jit
def standardize_kernel(w: jax.Array) -> jax.Array:
  """Zero mean and unit variance over (h, w, i) for each output channel.

  `w` is [h, w, i, o], the result float32. Biased variance plus 1e-10, as in
  the released BiT code. https://arxiv.org/abs/1903.10520
  """
  # As a matrix, because XLA's CPU sums over (1, 1, i) are slow; of one example
  # and one column, to which its rows are those of an image.
  c = w.shape[-1]
  matrix = w.reshape(1, -1, 1, c).astype(jnp.float32)
  y = _normalize(matrix, jnp.ones(c), jnp.zeros(c), c, 1e-10)[0]
  return y.reshape(w.shape)


@functools.partial(jax.jit, static_argnames='num_groups')
def group_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int
) -> jax.Array:
  """Group normalization, eps 1e-5. https://arxiv.org/abs/1803.08494

  `x` is [b, h, w, c], `scale` and `bias` are [c]; biased variance over h, w
  and the c / num_groups channels of a group. Returns the dtype of `x`.
  Raises ValueError if `num_groups` does not divide c.
  """
  if x.shape[-1] % num_groups:
    raise ValueError(
        f'{x.shape[-1]} channels not divisible by {num_groups} groups'
    )
  return _normalize(x, scale, bias, num_groups)[0]


def batch_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, group_size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Batch normalization over consecutive groups of `group_size` examples.

  `x` is [b, h, w, c]; `group_size` 0 is the whole batch. Returns the
  normalized `x`, and mean and variance [c] averaged over the groups.
  Raises ValueError if `group_size` does not divide b.
  """
  group_size = group_size or x.shape[0]
  if x.shape[0] % group_size:
    raise ValueError(
        f'batch of {x.shape[0]} not divisible by bn_group_size={group_size}'
    )
  grouped = x.reshape(-1, group_size, *x.shape[1:])
  y, *moments = _normalize(grouped, scale, bias, num_groups=x.shape[-1])
  mean, var = (m.reshape(-1, x.shape[-1]).mean(0) for m in moments)
  return y.reshape(x.shape), mean, var


@jax.jit
def root_max_pool(x: jax.Array) -> jax.Array:
  """3x3 max pool of stride 2 over [b, h, w, c] padded by 1 with zeros.

  Zeros, not -inf: the released weights expect them, and the input is signed.
  """
  return _by_platform(max_by_windows, _max_by_slices)(x)


def max_by_windows(x: jax.Array) -> jax.Array:
  """`root_max_pool` as a TPU likes it: by slices it moves 0.07 GB an image."""
  y = lax.reduce_window(
      x,
      -jnp.inf,
      lax.max,
      (1, 3, 3, 1),
      (1, 2, 2, 1),
      ((0, 0), (1, 1), (1, 1), (0, 0)),
  )
  # What meets the border meets its zeros: the first, and of an odd size the
  # last too.
  rows, columns = (
      (i == 0) | (2 * i + 1 == x.shape[axis])
      for axis in (1, 2)
      for i in (jnp.arange(y.shape[axis]),)
  )
  border = rows[:, None] | columns[None]
  return jnp.where(border[None, ..., None], jnp.maximum(y, 0), y)


def _max_by_slices(x):
  """On CPU the gradient of a windowed max is slow."""
  x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  for axis in (1, 2):
    stop = x.shape[axis] - 2
    shifts = [lax.slice_in_dim(x, i, stop + i, 2, axis) for i in range(3)]
    x = functools.reduce(jnp.maximum, shifts)
  return x


def _by_platform(tpu, default):
  """Returns a function that is, forward and back, `tpu` on one."""
  @jax.custom_vjp
  def chosen(*args):
    return lax.platform_dependent(*args, tpu=tpu, default=default)

  def derivative(function):
    return lambda args, dy: jax.vjp(function, *args)[1](dy)

  def backward(args, dy):
    return lax.platform_dependent(
        args, dy, tpu=derivative(tpu), default=derivative(default)
    )

  chosen.defvjp(lambda *args: (chosen(*args), args), backward)
  return chosen


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _normalize(x, scale, bias, num_groups, eps=_EPS):
  """Normalizes x [n, *p, h, w, c] over all but n and the groups of channels.

  Returns also mean and variance, [n, 1.., c], equal within a group, through
  which no gradient goes.
  """
  return _normalize_forward(x, scale, bias, num_groups, eps)[0]


def _normalize_forward(x, scale, bias, num_groups, eps):
  """Returns what `_normalize` does, and what the backward pass needs.

  That is x in its own type and numbers per example and channel, where the
  compiler by itself would keep or read again what is float32 and of the size
  of x: 1.2 times the bytes of HBM of a unit at 56x56.
  """
  pivot = _pivot(x, num_groups)
  shifted = x.astype(jnp.float32) - pivot
  offset = _group_mean(_mean(shifted), num_groups)
  var = _group_mean(_mean(jnp.square(shifted)), num_groups)
  var = jnp.maximum(var - jnp.square(offset), 0.0)
  y = _affine(shifted, offset, var + eps, scale, bias).astype(x.dtype)
  return (y, pivot + offset, var), (x, scale, pivot, offset, var)


def _normalize_backward(num_groups, eps, kept, cotangents):
  """The derivative, one multiply-add of dy and x per example and channel."""
  x, scale, pivot, offset, var = kept
  dy = cotangents[0].astype(jnp.float32)
  shifted = x.astype(jnp.float32) - pivot
  inverse = lax.rsqrt(var + eps)
  scale = jnp.expand_dims(scale, tuple(range(x.ndim - 1)))
  # Means of dy, and of dy times the normalized x.
  mean = _mean(dy)
  product = (_mean(dy * shifted) - offset * mean) * inverse
  slope = -jnp.square(inverse) * _group_mean(scale * product, num_groups)
  constant = -inverse * _group_mean(scale * mean, num_groups) - offset * slope
  dx = dy * (inverse * scale) + (shifted * slope + constant)
  values = x.size // mean.size
  dscale, dbias = (
      (values * jnp.sum(t.reshape(-1, t.shape[-1]), 0)).astype(scale.dtype)
      for t in (product, mean)
  )
  return dx.astype(x.dtype), dscale, dbias


_normalize.defvjp(_normalize_forward, _normalize_backward)


def _pivot(x, num_groups):
  """A number near the mean of each group, [n, 1.., c], from a part of x.

  With it x is read once where two passes read it twice. The part is the first
  sixteenth of the rows or more, so its mean is within sqrt(15) deviations of
  that of x: var = E[d^2] - E[d]^2, with d = x - pivot, cancels four bits at
  the most, whatever x is.
  """
  part = lax.slice_in_dim(x, 0, -(-x.shape[-3] // 16), axis=-3)
  return _group_mean(_mean(part.astype(jnp.float32)), num_groups)


def _mean(x):
  """Averages over all but the first and the last dimension, and keeps them."""
  return jnp.mean(x, tuple(range(1, x.ndim - 1)), keepdims=True)


def _group_mean(x, num_groups):
  """Averages [n, 1.., c] over the channels of each group, and keeps c."""
  groups = x.reshape(*x.shape[:-1], num_groups, -1)
  groups = jnp.broadcast_to(groups.mean(-1, keepdims=True), groups.shape)
  return groups.reshape(x.shape)


def _affine(x, mean, var, scale, bias):
  """(x - mean) / sqrt(var) * scale + bias as one multiply-add."""
  leading = tuple(range(x.ndim - 1))
  a = lax.rsqrt(var) * jnp.expand_dims(scale, leading)
  return x * a + (jnp.expand_dims(bias, leading) - mean * a)


class StdConv(nn.Module):
  """Convolution in `dtype` without bias, padded by half its odd kernel.

  Attributes:
    standardize: standardize the kernel first.
    unit_gain: and scale it by fan_in ** -0.5, which keeps the size of the
      activations where no norm follows. https://arxiv.org/abs/2101.08692
  """

  features: int
  kernel_size: int
  stride: int = 1
  standardize: bool = True
  unit_gain: bool = False
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    k = self.kernel_size
    shape = (k, k, x.shape[-1], self.features)
    w = self.param('kernel', nn.initializers.lecun_normal(), shape)
    if self.standardize:
      w = standardize_kernel(w)
      if self.unit_gain:
        w *= (k * k * x.shape[-1]) ** -0.5
    x, w = x.astype(self.dtype), w.astype(self.dtype)
    conv = functools.partial(_convolve, stride=self.stride)
    if k == self.stride == 1:
      return _by_platform(conv, _multiply)(x, w)
    return conv(x, w)


def _convolve(x, w, stride):
  pad = w.shape[0] // 2
  return lax.conv_general_dilated(
      x,
      w,
      window_strides=(stride, stride),
      padding=[(pad, pad)] * 2,
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )


def _multiply(x, w):
  """A 1x1 convolution as a product, whose derivative is the faster on CPU."""
  y = x.reshape(-1, x.shape[-1]) @ w[0, 0]
  return y.reshape(*x.shape[:-1], -1)


class Norm(nn.Module):
  """One of NORMS, with a learned scale and bias for each channel.

  'ln' and 'in' are group norms of one group and of one channel each, 'none'
  is scale and bias alone. Only 'bn' has state: running mean and variance,
  updated if `train` and used if not.
  """

  kind: str
  num_groups: int = 32
  bn_group_size: int = 0
  train: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    c = x.shape[-1]
    scale = self.param('scale', nn.initializers.ones, (c,))
    bias = self.param('bias', nn.initializers.zeros, (c,))
    if self.kind == 'bn':
      return self._batch_norm(x, scale, bias)
    if self.kind == 'none':
      y = x.astype(jnp.float32) * scale.reshape(1, 1, 1, c)
      return (y + bias.reshape(1, 1, 1, c)).astype(x.dtype)
    num_groups = {'gn': self.num_groups, 'ln': 1, 'in': c}[self.kind]
    return group_norm(x, scale, bias, num_groups)

  def _batch_norm(self, x, scale, bias):
    mean = self.variable('batch_stats', 'mean', jnp.zeros, scale.shape)
    var = self.variable('batch_stats', 'var', jnp.ones, scale.shape)
    if not self.train:
      shifted = x.astype(jnp.float32) - mean.value.reshape(1, 1, 1, -1)
      y = _affine(
          shifted, 0.0, var.value.reshape(1, 1, 1, -1) + _EPS, scale, bias
      )
      return y.astype(x.dtype)
    y, *batch = batch_norm(x, scale, bias, self.bn_group_size)
    for running, new in zip((mean, var), batch, strict=True):
      running.value += (1 - _BN_MOMENTUM) * (new - running.value)
    return y
