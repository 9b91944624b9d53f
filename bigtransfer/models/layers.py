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
  # As a matrix, because XLA's CPU sums over (1, 1, i) are slow. A kernel is
  # small beside the activations, so the mean is taken off in two goes, the
  # second for what float32 left of the first.
  matrix = w.reshape(-1, w.shape[-1]).astype(jnp.float32)
  mean = functools.partial(jnp.mean, axis=0, keepdims=True)
  centred = matrix - lax.stop_gradient(mean(matrix))
  centred -= mean(centred)
  var = mean(jnp.square(centred))
  return (centred * lax.rsqrt(var + 1e-10)).reshape(w.shape)


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
  x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  # By shifted slices: the gradient of a windowed max is slow on CPU.
  for axis in (1, 2):
    stop = x.shape[axis] - 2
    shifts = [lax.slice_in_dim(x, i, stop + i, 2, axis) for i in range(3)]
    x = functools.reduce(jnp.maximum, shifts)
  return x


def _normalize(x, scale, bias, num_groups):
  """Normalizes x [n, *p, h, w, c] over all but n and the groups of channels.

  Returns also mean and variance, [n, 1.., c], equal within a group.
  """
  def mean(t):
    t = jnp.mean(t, tuple(range(1, t.ndim - 1)), keepdims=True)
    groups = t.reshape(*t.shape[:-1], num_groups, -1)
    groups = jnp.broadcast_to(groups.mean(-1, keepdims=True), groups.shape)
    return groups.reshape(t.shape)

  shifted, pivot, offset, var = _moments(x, mean, axis=-3)
  y = _affine(shifted, offset, var, scale, bias)
  return y.astype(x.dtype), pivot + offset, var


def _moments(x, mean, axis):
  """Returns x - pivot, the pivot, E[x - pivot] and var[x], all float32.

  `mean` averages and keeps the dimensions. The pivot is the mean of at least
  a sixteenth of x, the first along `axis`. Such a part has a mean within
  sqrt(15) deviations of that of x, so var = E[d^2] - E[d]^2 cancels four bits
  at the most, whatever x is, and x is read once where two passes read it twice.
  """
  x = x.astype(jnp.float32)
  part = lax.slice_in_dim(x, 0, -(-x.shape[axis] // 16), axis=axis)
  # The results do not depend on the pivot, hence nor does the gradient.
  pivot = lax.stop_gradient(mean(part))
  shifted = x - pivot
  offset = mean(shifted)
  var = mean(jnp.square(shifted)) - jnp.square(offset)
  return shifted, pivot, offset, jnp.maximum(var, 0.0)


def _affine(x, mean, var, scale, bias):
  """(x - mean) / sqrt(var + eps) * scale + bias as one multiply-add."""
  leading = tuple(range(x.ndim - 1))
  a = lax.rsqrt(var + _EPS) * jnp.expand_dims(scale, leading)
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
    k, pad = self.kernel_size, self.kernel_size // 2
    shape = (k, k, x.shape[-1], self.features)
    w = self.param('kernel', nn.initializers.lecun_normal(), shape)
    if self.standardize:
      w = standardize_kernel(w)
      if self.unit_gain:
        w *= (k * k * x.shape[-1]) ** -0.5
    x, w = x.astype(self.dtype), w.astype(self.dtype)
    if k == self.stride == 1:
      # A matrix product, whose derivative is much the faster on CPU.
      y = x.reshape(-1, x.shape[-1]) @ w[0, 0]
      return y.reshape(*x.shape[:-1], -1)
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=(self.stride, self.stride),
        padding=[(pad, pad)] * 2,
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )


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
      y = _affine(shifted, 0.0, var.value.reshape(1, 1, 1, -1), scale, bias)
      return y.astype(x.dtype)
    y, *batch = batch_norm(x, scale, bias, self.bn_group_size)
    for running, new in zip((mean, var), batch, strict=True):
      running.value += (1 - _BN_MOMENTUM) * (new - running.value)
    return y
