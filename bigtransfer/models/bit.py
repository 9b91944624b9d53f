"""BiT: pre-activation ResNets with group norm and weight standardization.

Equal to the released code, https://github.com/google-research/big_transfer,
down to the names of its parameters. https://arxiv.org/abs/1912.11370
The other norms, kernels left as they are and the small stem are baselines.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bigtransfer.models import layers

BLOCKS = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_CHOICES = {
    'norm': layers.NORMS,
    'stem': ('imagenet', 'small'),
    'remat': ('none', 'stage', 'unit'),
    'dtype': ('float32', 'bfloat16'),
}


class Model(NamedTuple):
  """Pure functions over plain nested dicts.

  init(rng, batch) -> (params, model_state)
  apply(params, model_state, batch, *, train, rng) -> (outputs, model_state)

  `batch['image']` is [b, h, w, c] of any size. Outputs, all float32: stem,
  stage1.. [b, h, w, d]; pre_logits [b, d]; logits [b, num_classes], if any.
  """

  init: Callable[..., Any]
  apply: Callable[..., Any]


def build(config: Any) -> Model:
  """Makes the network that a `model` section describes.

  Raises ValueError, before any computation, for what it does not accept.
  """
  network = _network(config)

  def init(rng, batch):
    # The parameters do not depend on the size of the image.
    image = jnp.zeros((1, 1, 1, batch['image'].shape[-1]))
    variables = network(train=False).init(rng, image)
    return variables['params'], variables.get('batch_stats', {})

  def apply(params, model_state, batch, *, train, rng=None):
    del rng  # Nothing in the network is random.
    outputs, changed = network(train=train).apply(
        {'params': params, 'batch_stats': model_state},
        batch['image'],
        mutable=['batch_stats'] if train else [],
    )
    return outputs, changed.get('batch_stats', model_state)

  return Model(init, apply)


def _network(config):
  """Checks the section and returns `_Network` less its `train`."""
  for key, choices in _CHOICES.items():
    if getattr(config, key) not in choices:
      raise ValueError(
          f'model.{key}={getattr(config, key)!r}: expected one of {choices}'
      )
  if config.num_classes is None:
    raise ValueError('model.num_classes=None: expected a number, 0 for no head')
  blocks, width = shape(config)
  if config.norm == 'gn' and width % config.num_groups:
    raise ValueError(
        f'{width} channels not divisible by {config.num_groups} groups: '
        f'model.variant={config.variant!r} with root_width='
        f'{config.root_width} and num_groups={config.num_groups}'
    )
  dtype = jnp.dtype(config.dtype)
  return functools.partial(
      _Network,
      blocks=blocks,
      width=width,
      stem=config.stem,
      remat=config.remat,
      num_classes=config.num_classes,
      head_bias_init=config.head_bias_init,
      dtype=dtype,
      conv=functools.partial(
          layers.StdConv,
          standardize=config.weight_standardization,
          unit_gain=config.norm == 'none',
          dtype=dtype,
      ),
      norm=functools.partial(
          layers.Norm,
          config.norm,
          num_groups=config.num_groups,
          bn_group_size=config.bn_group_size,
      ),
  )


def shape(config):
  """Units of each stage, and channels of the root."""
  match = re.fullmatch(r'R(\d+)x(\d+(?:\.\d+)?)', config.variant)
  if not match or int(match[1]) not in BLOCKS:
    raise ValueError(
        f'model.variant={config.variant!r}: expected R<depth>x<width> with '
        f'a depth of {sorted(BLOCKS)} and any width, such as R50x1 or R26x0.5'
    )
  width = config.root_width * float(match[2])
  if width < 1 or not width.is_integer():
    raise ValueError(
        f'model.variant={config.variant!r} with root_width='
        f'{config.root_width} gives {width:g} channels: expected a whole number'
    )
  blocks = tuple(config.blocks) or BLOCKS[int(match[1])]
  if min(blocks) < 1:
    raise ValueError(f'model.blocks={blocks}: expected 1 unit or more a stage')
  return blocks, int(width)


class _Unit(nn.Module):
  """Bottleneck with pre-activation; the shortcut leaves after gn1."""

  features: int
  stride: int
  conv: Callable[..., nn.Module]
  norm: Callable[..., nn.Module]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    d = self.features
    shortcut = x
    y = nn.relu(self.norm(name='gn1')(x))
    if x.shape[-1] != 4 * d or self.stride != 1:
      shortcut = self.conv(4 * d, 1, self.stride, name='conv_proj')(y)
    y = self.conv(d, 1, name='conv1')(y)
    y = nn.relu(self.norm(name='gn2')(y))
    y = self.conv(d, 3, self.stride, name='conv2')(y)
    y = nn.relu(self.norm(name='gn3')(y))
    y = self.conv(4 * d, 1, name='conv3')(y)
    return shortcut.astype(jnp.float32) + y.astype(jnp.float32)


class _Stage(nn.Module):
  """Units of one size of image; the first has the stride.

  Sums are float32, and `dtype` is what a unit reads and keeps of them. Kept in
  float32 they take a tenth more of a TPU's memory traffic, and the errors of
  bfloat16 in outputs and gradients are 0.96 of what they are like this.
  """

  units: int
  features: int
  stride: int
  dtype: Any
  unit: Callable[..., nn.Module]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for i in range(self.units):
      stride = self.stride if i == 0 else 1
      unit = self.unit(self.features, stride, name=f'unit{i + 1:02d}')
      x = unit(x.astype(self.dtype))
    return x


class _Root(nn.Module):
  """Without norm and activation: the first unit begins with them."""

  features: int
  stem: str
  conv: Callable[..., nn.Module]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    if self.stem == 'small':
      return self.conv(self.features, 3, name='conv_root')(x)
    x = self.conv(self.features, 7, 2, name='conv_root')(x)
    return layers.root_max_pool(x)


class _Network(nn.Module):
  """The whole network; see `Model` for its outputs."""

  blocks: tuple[int, ...]
  width: int
  stem: str
  remat: str
  num_classes: int
  head_bias_init: float
  dtype: Any
  conv: Callable[..., nn.Module]
  norm: Callable[..., nn.Module]
  train: bool

  @nn.compact
  def __call__(self, image: jax.Array) -> dict[str, jax.Array]:
    norm = functools.partial(self.norm, train=self.train)
    unit = nn.remat(_Unit) if self.remat == 'unit' else _Unit
    unit = functools.partial(unit, conv=self.conv, norm=norm)
    stage = nn.remat(_Stage) if self.remat == 'stage' else _Stage

    root = _Root(self.width, self.stem, self.conv, name='root_block')
    x = root(image).astype(jnp.float32)
    outputs = {'stem': x}
    for i, units in enumerate(self.blocks):
      features, stride = self.width * 2**i, 1 if i == 0 else 2
      name = f'block{i + 1}'
      x = stage(units, features, stride, self.dtype, unit, name=name)(x)
      outputs[f'stage{i + 1}'] = x
    x = nn.relu(norm(name='norm-pre-head')(x))
    x = outputs['pre_logits'] = jnp.mean(x, (1, 2))
    if self.num_classes:
      outputs['logits'] = nn.Dense(
          self.num_classes,
          kernel_init=nn.initializers.zeros,
          bias_init=nn.initializers.constant(self.head_bias_init),
          name='head',
      )(x)
    return outputs
