"""The EXIF orientation of a JPEG file, which TensorFlow's decoders ignore."""

import struct

import numpy as np

from input_pipeline.host import tf

_EXIF = b'Exif\0\0'
_ORIENTATION = 0x0112
_START_OF_SCAN = 0xDA


def upright(image: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
  """Turns `image` [h, w, c], decoded from the bytes `data`, upright."""
  code = tf.numpy_function(
      lambda data: np.int32(read(data)), [data], tf.int32, stateful=False
  )
  # Codes 5-8 lie on their side; then come flips: 2 and 3 left to right, 3 and
  # 4 top to bottom, and so on (EXIF 2.32, tag 0x0112).
  image = tf.cond(
      code >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image
  )
  image = _where(image, code, (2, 3, 6, 7), axis=1)
  return _where(image, code, (3, 4, 7, 8), axis=0)


def read(data: bytes) -> int:
  """Returns the code 1..8 in the JPEG bytes `data`; 1 where there is none."""
  at = 2
  while data[at : at + 1] == b'\xff' and at + 4 <= len(data):
    marker, size = struct.unpack_from('>BH', data, at + 1)
    body = data[at + 4 : at + 2 + size]
    if marker == 0xE1 and body.startswith(_EXIF):
      return _from_tiff(body[len(_EXIF) :])
    if marker == _START_OF_SCAN:
      break
    at += 2 + size
  return 1


def _from_tiff(tiff):
  order = '<' if tiff[:2] == b'II' else '>'
  try:
    (start,) = struct.unpack_from(f'{order}I', tiff, 4)
    (count,) = struct.unpack_from(f'{order}H', tiff, start)
    for i in range(count):
      at = start + 2 + 12 * i
      tag, _, _, value = struct.unpack_from(f'{order}HHIH', tiff, at)
      if tag == _ORIENTATION:
        return value if 1 <= value <= 8 else 1
  except struct.error:  # A cut or mangled header says nothing.
    pass
  return 1


def _where(image, code, codes, axis):
  return tf.cond(
      tf.reduce_any(tf.equal(code, codes)),
      lambda: tf.reverse(image, [axis]),
      lambda: image,
  )
