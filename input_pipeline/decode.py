"""Decoding of images by content, whatever the file is called.

Always three uint8 channels: grey is repeated, alpha dropped and not blended,
CMYK converted, 16 bits scaled to 8. Of an animation the first frame. Arrays,
which need no decoding, pass through, so that one recipe serves any source.
"""

from input_pipeline import image_ops, orientation
from input_pipeline.host import tf

# The scales at which a JPEG can be decoded for less (of its discrete cosine
# transform only the low frequencies are used).
_RATIOS = (1, 2, 4, 8)


def decode(min_side: int | None = None, exif: bool = False) -> image_ops.Op:
  """Decodes encoded bytes to uint8 [h, w, 3].

  Args:
    min_side: decode a JPEG at a half, quarter or eighth of its size, as long
      as its shorter side stays at least this long: for what is resized to that
      size anyway. It smooths where a plain bilinear resize would alias.
    exif: turn a JPEG upright by its orientation tag, which is else ignored.
  """

  def one(data, bits):
    del bits
    if data.dtype != tf.string:
      return data
    image = tf.cond(
        tf.io.is_jpeg(data), lambda: _jpeg(data, min_side), lambda: _other(data)
    )
    image = tf.ensure_shape(image, [None, None, 3])
    return orientation.upright(image, data) if exif else image

  def many(images, bits):
    del bits
    return images

  return image_ops.Op(one, many, decodes=True)


def decode_inception_crop(
    size: int | tuple[int, int],
    area: tuple[float, float] = (0.05, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
    reduced: bool = False,
) -> image_ops.Op:
  """Decodes only the window that `inception_crop` would have cropped.

  With `reduced` a window at least twice as large as `size` is decoded at a
  half, quarter or eighth of its size: much faster on large photos, with
  smoother pixels than those of the whole image.
  """
  size = image_ops.pair(size)
  plain = image_ops.inception_crop(size, area, aspect)

  def fused(data, bits):
    shape = tf.io.extract_jpeg_shape(data)
    window = tf.stack(image_ops.sample_window(shape, bits[0], area, aspect))
    wanted = size if reduced else None
    return image_ops.scale(_jpeg_window(data, window, wanted), size)

  def one(data, bits):
    if data.dtype != tf.string:
      return plain.one(data, bits)
    # A file that was cut off may still hold the window: without the marker at
    # the end all of it is decoded, so that it fails in each epoch or in none.
    whole = tf.io.is_jpeg(data) & tf.equal(_bytes(data, -2, 2), b'\xff\xd9')
    image = tf.cond(
        whole,
        lambda: fused(data, bits),
        lambda: plain.one(_other(data), bits),
    )
    return tf.ensure_shape(image, [*size, 3])

  return image_ops.Op(one, None, draws=1, decodes=True, sizes=True)


def _jpeg(data, min_side):
  if min_side is None:
    return tf.io.decode_jpeg(data, channels=3)
  shape = tf.io.extract_jpeg_shape(data)[:2]
  return _at_scale(
      shape, (min_side, min_side), lambda r: tf.io.decode_jpeg(data, 3, ratio=r)
  )


def _jpeg_window(data, window, wanted):
  """Decodes `window` (top, left, height, width) of the full-size image."""
  if wanted is None:
    return tf.io.decode_and_crop_jpeg(data, window, channels=3)

  def decode_at(ratio):
    # The decoder takes the window in pixels of the reduced image.
    begin = (window[:2] + ratio // 2) // ratio
    end = (window[:2] + window[2:] + ratio // 2) // ratio
    reduced = tf.concat([begin, end - begin], 0)
    return tf.io.decode_and_crop_jpeg(data, reduced, 3, ratio=ratio)

  return _at_scale(window[2:], wanted, decode_at)


def _at_scale(shape, wanted, decode_at):
  """Calls `decode_at` with the largest ratio that leaves `wanted` pixels."""
  spare = tf.reduce_min(shape // tf.constant(wanted))
  index = tf.reduce_sum(tf.cast(spare >= _RATIOS[1:], tf.int32))
  return tf.switch_case(index, [lambda r=r: decode_at(r) for r in _RATIOS])


def _other(data):
  return tf.case(
      [
          (tf.equal(_bytes(data, 8, 4), b'WEBP'), lambda: _webp(data)),
          (tf.equal(_bytes(data, 0, 2), b'BM'), lambda: _bmp(data)),
      ],
      lambda: tf.io.decode_image(data, channels=3, expand_animations=False),
  )


def _bytes(data, start, count):
  """Returns `count` bytes, counted from the end for a negative `start`."""
  length = tf.strings.length(data)
  start = tf.minimum(start, length) if start >= 0 else length + start
  return tf.strings.substr(data, tf.maximum(start, 0), count)


def _webp(data):
  # Asked for three channels it refuses a file with four.
  return tf.io.decode_webp(data, channels=0)[0, :, :, :3]


def _bmp(data):
  """Decodes a BMP; one byte per pixel is an index into a table of colours."""
  header = tf.io.decode_raw(tf.strings.substr(data, 14, 16), tf.uint16)

  def table():
    at = 14 + tf.cast(header[0], tf.int32)
    colours = tf.io.decode_raw(tf.strings.substr(data, at, 1024), tf.uint8)
    colours = tf.reshape(colours, [-1, 4])[:, 2::-1]
    index = tf.io.decode_bmp(data, channels=0)[:, :, 0]
    return tf.gather(colours, tf.cast(index, tf.int32))

  return tf.cond(
      tf.equal(header[7], 8),
      table,
      lambda: tf.io.decode_image(data, channels=3, expand_animations=False),
  )
