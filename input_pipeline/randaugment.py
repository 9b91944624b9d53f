"""RandAugment: Cubuk et al. 2019, arXiv 1909.13719, with its 14 operations.

Magnitude 10 is a rotation by 30 degrees, a shear of 0.3, a shift by 0.45 of the
side, a factor of 1 +- 0.9, 4 bits, and inversion from 0 on; the rest is
proportional.
"""

import functools
import math

from input_pipeline import image_ops, noise
from input_pipeline.host import tf

_GREY = 128.0  # What comes into view at the edges.


def randaugment(layers: int = 2, magnitude: float = 10) -> image_ops.Op:
  """Applies `layers` random operations of `magnitude` 0..10 to uint8 RGB.

  Other images are rounded and cut off to uint8 first.
  """
  if not 0 <= magnitude <= 10:
    raise ValueError(f'magnitude {magnitude} is not in [0, 10]')
  strength = magnitude / 10

  def one(image, bits):
    if image.shape[-1] != 3:
      raise ValueError(f'randaugment needs 3 channels, not {image.shape[-1]}')
    shape = image.shape
    if image.dtype != tf.uint8:
      image = _to_uint8(tf.round(image))
    for i in range(layers):
      positive = noise.uniform(bits[2 * i + 1]) < 0.5
      signed = tf.where(positive, strength, -strength)
      branches = [functools.partial(op, image, strength, signed) for op in _OPS]
      image = tf.switch_case(noise.below(bits[2 * i], len(_OPS)), branches)
    return tf.ensure_shape(image, shape)

  return image_ops.Op(one, None, draws=2 * layers)


def _identity(image, strength, signed):
  del strength, signed
  return image


def _autocontrast(image, strength, signed):
  """Stretches each channel to 0..255, if it has more than one value."""
  del strength, signed
  low = tf.reduce_min(tf.cast(image, tf.float32), axis=[0, 1])
  span = tf.reduce_max(tf.cast(image, tf.float32), axis=[0, 1]) - low
  scale = tf.where(span > 0, 255 / span, 1)
  low = tf.where(span > 0, low, 0)
  return _to_uint8((tf.cast(image, tf.float32) - low) * scale)


def _equalize(image, strength, signed):
  """Makes the histogram of each channel flat, by PIL's integer arithmetic."""
  del strength, signed
  channels = []
  for channel in tf.unstack(tf.cast(image, tf.int32), axis=-1):
    counts = tf.math.bincount(tf.reshape(channel, [-1]), minlength=256)
    brightest = counts[tf.reduce_max(channel)]
    step = (tf.reduce_sum(counts) - brightest) // 255
    below = tf.cumsum(counts, exclusive=True)
    table = tf.minimum((below + step // 2) // tf.maximum(step, 1), 255)
    table = tf.where(step > 0, table, tf.range(256))
    channels.append(tf.gather(table, channel))
  return tf.cast(tf.stack(channels, axis=-1), tf.uint8)


def _posterize(image, strength, signed):
  del signed
  keep = 256 - (1 << round(4 * strength))
  return tf.bitwise.bitwise_and(image, tf.constant(keep, tf.uint8))


def _solarize(image, strength, signed):
  del signed
  threshold = 256 * (1 - strength)
  return tf.where(tf.cast(image, tf.float32) < threshold, image, 255 - image)


def _color(image, strength, signed):
  del strength
  return _blend(tf.image.rgb_to_grayscale(image), image, signed)


def _contrast(image, strength, signed):
  del strength
  grey = tf.cast(tf.image.rgb_to_grayscale(image), tf.float32)
  return _blend(tf.round(tf.reduce_mean(grey)), image, signed)


def _brightness(image, strength, signed):
  del strength
  return _blend(0.0, image, signed)


def _sharpness(image, strength, signed):
  """Away from, or to, a 3x3 mean that weighs the centre five times."""
  del strength
  kernel = tf.constant([[1, 1, 1], [1, 5, 1], [1, 1, 1]], tf.float32) / 13
  kernel = tf.tile(kernel[:, :, tf.newaxis, tf.newaxis], [1, 1, 3, 1])
  pixels = tf.cast(image, tf.float32)[tf.newaxis]
  smooth = tf.nn.depthwise_conv2d(pixels, kernel, [1, 1, 1, 1], 'VALID')
  inner = tf.pad(tf.ones_like(smooth), [[0, 0], [1, 1], [1, 1], [0, 0]])
  smooth = tf.pad(smooth, [[0, 0], [1, 1], [1, 1], [0, 0]])
  return _blend(tf.where(inner > 0, smooth, pixels)[0], image, signed)


def _rotate(image, strength, signed):
  del strength
  angle = signed * math.radians(30)
  cos, sin = tf.cos(angle), tf.sin(angle)
  return _warp(image, [[cos, -sin], [sin, cos]])


def _shear_x(image, strength, signed):
  del strength
  return _warp(image, [[1.0, 0.3 * signed], [0.0, 1.0]])


def _shear_y(image, strength, signed):
  del strength
  return _warp(image, [[1.0, 0.0], [0.3 * signed, 1.0]])


def _translate_x(image, strength, signed):
  del strength
  return _warp(image, [[1.0, 0.0], [0.0, 1.0]], shift=(0.45 * signed, 0.0))


def _translate_y(image, strength, signed):
  del strength
  return _warp(image, [[1.0, 0.0], [0.0, 1.0]], shift=(0.0, 0.45 * signed))


_OPS = (
    _identity,
    _autocontrast,
    _equalize,
    _rotate,
    _solarize,
    _color,
    _posterize,
    _contrast,
    _brightness,
    _sharpness,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
)


def _blend(other, image, signed):
  """Goes from `other` through `image`, to 1 + signed times the way."""
  other, image = tf.cast(other, tf.float32), tf.cast(image, tf.float32)
  return _to_uint8(tf.round(other + (1 + signed) * (image - other)))


def _warp(image, matrix, shift=(0.0, 0.0)):
  """Samples at matrix @ (x, y) from the centre, plus a share of the side."""
  size = tf.cast(tf.shape(image)[1::-1], tf.float32)
  centre = (size - 1) / 2
  (a, b), (c, d) = matrix
  to = [
      centre[0] - a * centre[0] - b * centre[1] + shift[0] * size[0],
      centre[1] - c * centre[0] - d * centre[1] + shift[1] * size[1],
  ]
  transform = tf.stack([a, b, to[0], c, d, to[1], 0.0, 0.0])
  warped = tf.raw_ops.ImageProjectiveTransformV3(
      images=image[tf.newaxis],
      transforms=transform[tf.newaxis],
      output_shape=tf.shape(image)[:2],
      interpolation='BILINEAR',
      fill_mode='CONSTANT',
      fill_value=_GREY,
  )
  return warped[0]


def _to_uint8(image):
  return tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8)
