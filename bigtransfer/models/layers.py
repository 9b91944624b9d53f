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


def standardize_kernel(w: jax.Array) -> jax.Array:
  """Zero mean and unit variance over (h, w, i) for each output channel.

  `w` is [h, w, i, o], the result float32. Biased variance plus 1e-10, as in
  the released BiT code. https://arxiv.org/abs/1903.10520
  """
  # One row of weights a channel: XLA is slow at (1, 1, i, o) on CPU.
  rows = w.reshape(1, -1, 1, w.shape[-1])
  shifted, _, mean, var = _moments(rows, num_groups=w.shape[-1])
  rstd = _spread(lax.rsqrt(var + 1e-10), shifted)
  return ((shifted - _spread(mean, shifted)) * rstd).reshape(w.shape)


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
  shifted, _, mean, var = _moments(x, num_groups)
  return _normalize(shifted, mean, var, scale, bias).astype(x.dtype)


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
  shifted, pivot, mean, var = _moments(grouped, num_groups=x.shape[-1])
  y = _normalize(shifted, mean, var, scale, bias)
  y = y.reshape(x.shape).astype(x.dtype)
  return y, jnp.mean(pivot + mean, 0), jnp.mean(var, 0)


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


def _moments(x, num_groups):
  """Statistics of x [n, *p, h, w, c] over all but n and groups of channels.

  Returns x less a pivot, then pivot, mean and variance [n, c] where the mean
  is that of the shifted x: all float32, equal for the channels of a group.
  """
  def mean(t):
    t = jnp.mean(t, tuple(range(1, t.ndim - 1)))
    groups = t.reshape(t.shape[0], num_groups, -1)
    groups = jnp.broadcast_to(groups.mean(-1, keepdims=True), groups.shape)
    return groups.reshape(t.shape)

  # The pivot is the mean over a sixteenth of the rows or more. The mean of
  # any such part lies within sqrt(15) deviations of the whole mean, so that
  # var = E[d^2] - E[d]^2 cancels at most four bits, for any input, and x is
  # read once. Results do not depend on the pivot, so neither does the
  # gradient; stopping it there keeps the derivative to one reduction, too.
  x = x.astype(jnp.float32)
  rows = -(-x.shape[-3] // 16)
  pivot = lax.stop_gradient(mean(x[..., :rows, :, :]))
  shifted = x - _spread(pivot, x)
  first, second = mean(shifted), mean(jnp.square(shifted))
  return shifted, pivot, first, jnp.maximum(second - jnp.square(first), 0.0)


def _normalize(shifted, mean, var, scale, bias):
  """(shifted - mean) / sqrt(var + eps) * scale + bias, one multiply-add."""
  a = lax.rsqrt(var + _EPS) * scale[None]
  b = bias[None] - mean * a
  return shifted * _spread(a, shifted) + _spread(b, shifted)


def _spread(t, x):
  """t [n, c] shaped to broadcast against x [n, *p, c]."""
  return jnp.expand_dims(t, tuple(range(1, x.ndim - 1)))


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
    return lax.conv_general_dilated(
        x.astype(self.dtype),
        w.astype(self.dtype),
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
      y = x.astype(jnp.float32) * _spread(scale[None], x)
      return (y + _spread(bias[None], x)).astype(x.dtype)
    num_groups = {'gn': self.num_groups, 'ln': 1, 'in': c}[self.kind]
    return group_norm(x, scale, bias, num_groups)

  def _batch_norm(self, x, scale, bias):
    mean = self.variable('batch_stats', 'mean', jnp.zeros, scale.shape)
    var = self.variable('batch_stats', 'var', jnp.ones, scale.shape)
    if not self.train:
      shifted = x.astype(jnp.float32) - _spread(mean.value[None], x)
      zero = jnp.zeros_like(scale)[None]
      y = _normalize(shifted, zero, var.value[None], scale, bias)
      return y.astype(x.dtype)
    y, *batch = batch_norm(x, scale, bias, self.bn_group_size)
    for running, new in zip((mean, var), batch, strict=True):
      running.value += (1 - _BN_MOMENTUM) * (new - running.value)
    return y
