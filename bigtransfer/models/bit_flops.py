"""Floating point operations of BiT, counted from its config."""

from collections.abc import Iterator, Sequence
from typing import Any

from bigtransfer.models import bit


def train_flops(config: Any, image_shape: Sequence[int]) -> float:
  """Floating point operations of training on an image, forward and back.

  Products only: twice as many operations as multiplications, the backward pass
  twice the forward one, except that the root has no gradient to the image.
  Convolutions count every position of their output, padding included: at 224
  pixels that is 2 % more of a 3x3 and 4 % of the root than meets the image.

  Args:
    config: the `model` section.
    image_shape: height, width, channels.
  """
  root, *others = _products(config, image_shape)
  return 2.0 * (2 * root + 3 * sum(others))


def _products(config: Any, image_shape: Sequence[int]) -> Iterator[int]:
  """Yields the multiplications of each layer on an image, the root first."""
  blocks, width = bit.shape(config)
  *size, channels = image_shape
  if config.stem == 'small':
    yield size[0] * size[1] * 9 * channels * width
  else:
    size = _halved(size)
    yield size[0] * size[1] * 49 * channels * width
    size = _halved(size)
  channels = width
  for i, units in enumerate(blocks):
    d = width * 2**i
    for j in range(units):
      before = size[0] * size[1]
      if i > 0 and j == 0:
        size = _halved(size)
      after = size[0] * size[1]
      yield before * channels * d + after * (9 * d * d + 4 * d * d)
      if channels != 4 * d or before != after:
        yield after * channels * 4 * d
      channels = 4 * d
  yield channels * (config.num_classes or 0)


def _halved(size):
  return [-(-n // 2) for n in size]
