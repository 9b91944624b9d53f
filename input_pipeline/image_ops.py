"""Image operations: resize, crop, pad, flip, scale.

An operation is a function of an image [h, w, c] and of `bits`, uint64 random
numbers [draws] of that example, so that its result depends neither on the
batch nor on the process. Most have a second form for a batch [b, h, w, c] of
equal shapes and `bits` [b, draws], with the same results.
"""

from collections.abc import Callable
from typing import NamedTuple

from input_pipeline import noise
from input_pipeline.host import tf

_FAR_LARGER = 8  # In pixels; measured at a size of 224 x 224.


class Op(NamedTuple):
  """`one(image, bits)`, `many(images, bits)` or None, and how many bits.

  `sizes` says that images leave it in one size, whatever theirs was before.
  """

  one: Callable
  many: Callable | None
  draws: int = 0
  decodes: bool = False
  sizes: bool = False


def value_range(low: float = -1.0, high: float = 1.0) -> Op:
  """Maps [0, 255] to [low, high], as float32."""
  step = (high - low) / 255

  def apply(image, bits):
    del bits
    return tf.cast(image, tf.float32) * step + low

  return Op(apply, apply)


def grey() -> Op:
  """Makes one channel of three, by their share in brightness."""

  def apply(image, bits):
    del bits
    return tf.image.rgb_to_grayscale(image)

  return Op(apply, apply)


def resize(
    size: int | tuple[int, int],
    method: str = 'bilinear',
    antialias: bool = False,
) -> Op:
  """Resizes to `size` (int for a square, or (h, w)); float32, not rounded."""
  size = pair(size)

  def apply(image, bits):
    del bits
    return scale(image, size, method, antialias)

  return Op(apply, apply, sizes=True)


def resize_small(
    size: int, method: str = 'bilinear', antialias: bool = False
) -> Op:
  """Resizes the shorter side to `size` and keeps the aspect ratio."""

  def apply(image, bits):
    del bits
    if image.shape[-3:-1].is_fully_defined():
      rows, cols = image.shape[-3:-1]
      target = [round(x * size / min(rows, cols)) for x in (rows, cols)]
    else:
      shape = tf.cast(tf.shape(image)[-3:-1], tf.float64)
      target = tf.round(shape * size / tf.reduce_min(shape))
      target = tf.cast(target, tf.int32)
    return scale(image, target, method, antialias)

  return Op(apply, apply)


def central_crop(size: int | tuple[int, int]) -> Op:
  """Crops `size` (int or (h, w)) from the middle, rounded to the upper left."""
  height, width = pair(size)

  def apply(image, bits):
    del bits
    top, left = [x // 2 for x in _room(image, height, width)]
    return _crop(image, top, left, height, width)

  return Op(apply, apply, sizes=True)


def random_crop(size: int | tuple[int, int]) -> Op:
  """Crops `size` (int or (h, w)) at a uniformly random place."""
  height, width = pair(size)

  def one(image, bits):
    top, left = _offsets(image, bits)
    return _crop(image, top, left, height, width)

  def many(images, bits):
    top, left = _offsets(images, bits)
    return _crop_each(images, top, left, height, width)

  def _offsets(image, bits):
    rows, cols = _room(image, height, width)
    return noise.below(bits[..., 0], rows + 1), noise.below(
        bits[..., 1], cols + 1
    )

  return Op(one, many, draws=2, sizes=True)


def inception_crop(
    size: int | tuple[int, int],
    area: tuple[float, float] = (0.05, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> Op:
  """Crops a random share of the area at a random aspect, resizes to `size`.

  Szegedy et al. 2014 (arXiv 1409.4842), section 6.
  """
  size = pair(size)

  def one(image, bits):
    top, left, height, width = sample_window(
        tf.shape(image), bits[0], area, aspect
    )
    image = image[top : top + height, left : left + width]
    return scale(image, size)

  return Op(one, None, draws=1, sizes=True)


def pad(size: int) -> Op:
  """Adds `size` rows and columns of zeros on each side."""

  def apply(image, bits):
    del bits
    margins = [[0, 0]] * (image.shape.rank - 3) + [[size, size]] * 2 + [[0, 0]]
    return tf.pad(image, margins)

  return Op(apply, apply)


def flip_lr() -> Op:
  """Flips left to right, every second time."""

  def one(image, bits):
    # A reversal costs half a resize: not computed where it is not used.
    return tf.cond(
        _heads(bits[0]), lambda: tf.reverse(image, [-2]), lambda: image
    )

  def many(images, bits):
    # Unlike tf.where, Select copies an image as a whole: ten times as fast.
    return tf.raw_ops.Select(
        condition=_heads(bits[:, 0]), x=tf.reverse(images, [-2]), y=images
    )

  return Op(one, many, draws=1)


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
  """Returns (h, w) of `size`, an int for a square or a pair of ints."""
  height, width = (size, size) if isinstance(size, int) else size
  if min(height, width) < 1:
    raise ValueError(f'size {size} must be positive')
  return height, width


def scale(image, size, method='bilinear', antialias=False):
  """Returns `image` resized to `size` (h, w) by TensorFlow, as float32.

  Bilinear from uint8 takes it twice as long as from float32, to the same bits.
  For an image far larger than `size`, making it float32 costs more than that.
  """

  def plain(image):
    resized = tf.image.resize(image, size, method, antialias=antialias)
    return tf.cast(resized, tf.float32)

  if image.dtype != tf.uint8 or method != 'bilinear' or antialias:
    return plain(image)
  rows, cols = image.shape[-3:-1]
  if rows is None or cols is None:
    rows, cols = tf.unstack(tf.shape(image)[-3:-1])
  return tf.cond(
      tf.convert_to_tensor(rows * cols < _FAR_LARGER * size[0] * size[1]),
      lambda: plain(tf.cast(image, tf.float32)),
      lambda: plain(image),
  )


def sample_window(shape, bits, area, aspect):
  """Returns int32 top, left, height, width of a random window in `shape`."""
  begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
      shape,
      tf.zeros([0, 0, 4]),
      seed=tf.bitcast(bits, tf.int32),
      min_object_covered=0.0,
      aspect_ratio_range=aspect,
      area_range=area,
      use_image_if_no_bounding_boxes=True,
  )
  return begin[0], begin[1], size[0], size[1]


def _heads(bits):
  return noise.shift_right(bits, 63) > 0


def _room(image, height, width):
  known = image.shape[-3:-1]
  if known.is_fully_defined() and (known[0] < height or known[1] < width):
    raise ValueError(
        f'a crop of {(height, width)} does not fit in images of {tuple(known)}'
    )
  shape = tf.shape(image)
  return shape[-3] - height, shape[-2] - width


def _crop(image, top, left, height, width):
  image = image[..., top : top + height, left : left + width, :]
  # Slicing stops at the border: a too small image is found here.
  return tf.ensure_shape(
      image, [*image.shape[:-3], height, width, image.shape[-1]]
  )


def _crop_each(images, top, left, height, width):
  """Crops one window [height, width] per image at `top` and `left` [b]."""
  count, rows, cols = tf.unstack(tf.shape(images)[:3])
  y = (tf.range(count) * rows + top)[:, tf.newaxis] + tf.range(height)
  x = left[:, tf.newaxis] + tf.range(width)
  pixels = y[:, :, tf.newaxis] * cols + x[:, tf.newaxis, :]
  return tf.gather(tf.reshape(images, [-1, images.shape[-1]]), pixels)
