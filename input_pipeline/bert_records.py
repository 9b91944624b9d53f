"""Writes tf.train.Example records of token ids, without TensorFlow.

The import of TensorFlow would cost each worker more time and memory than its
work. The formats are those of tensorflow/core/example/example.proto and
tensorflow/core/lib/io/record_writer.h; ArrayRecord is written by its library.
"""

import functools
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from array_record.python import array_record_module

SUFFIXES = ('tfrecord', 'arrayrecord')


class Examples(NamedTuple):
  """Pairs of segments, [CLS] A [SEP] B [SEP].

  Attributes:
    ids: int32 [n, s], padded with 0.
    lengths: int [n], how many ids are not padding.
    boundaries: int [n], how many are of the first segment.
    labels: int [n], 1 if the second segment is from elsewhere.
  """

  ids: np.ndarray
  lengths: np.ndarray
  boundaries: np.ndarray
  labels: np.ndarray


def runtime(examples: Examples) -> list[bytes]:
  """Returns records that are masked when they are read."""
  ids = _packed(examples.ids, examples.lengths)
  rest = zip(*(a.tolist() for a in examples[2:]), strict=True)
  return [
      _field(
          1,
          _number('boundary', boundary)
          + _entry('input_ids', 3, packed)
          + _number('next_sentence_labels', label),
      )
      for packed, (boundary, label) in zip(ids, rest, strict=True)
  ]


def static(
    examples: Examples,
    positions: np.ndarray,
    originals: np.ndarray,
    weights: np.ndarray,
) -> list[bytes]:
  """Returns records with the seven features of google-research/bert.

  Args:
    examples: masked.
    positions: int [n, p] of masked tokens, padded with 0.
    originals: int [n, p], what they were, padded.
    weights: float32 [n, p], 1 where there is one.
  """
  count, size = examples.ids.shape
  full = [np.full(count, a.shape[1]) for a in (examples.ids, positions)]
  columns = (
      _packed(examples.ids, full[0]),
      *(a.tolist() for a in examples[1:]),
      _packed(positions, full[1]),
      _packed(originals, full[1]),
      weights.astype('<f4'),
  )
  return [
      _field(
          1,
          _entry('input_ids', 3, ids)
          + _entry('input_mask', 3, _ones(0, length, size))
          + _entry('masked_lm_ids', 3, original)
          + _entry('masked_lm_positions', 3, position)
          + _entry('masked_lm_weights', 2, weight.tobytes())
          + _number('next_sentence_labels', label)
          + _entry('segment_ids', 3, _ones(boundary, length, size)),
      )
      for ids, length, boundary, label, position, original, weight in zip(
          *columns, strict=True
      )
  ]


def unfinished(path: str) -> str:
  """Returns the name that a file has while it is written."""
  folder, name = os.path.split(path)
  return os.path.join(folder, f'.unfinished-{name}')


class Writer:
  """Writes one file, under a name of its own until it is whole.

  Attributes:
    count: records so far.
  """

  def __init__(self, path: str, container: str):
    self.count = 0
    self._path = path
    self._unfinished = unfinished(path)
    self._is_array = container == 'arrayrecord'
    if self._is_array:
      # One record a group: they are read in any order.
      self._file = array_record_module.ArrayRecordWriter(
          self._unfinished, 'group_size:1'
      )
    else:
      self._file = open(self._unfinished, 'wb')

  def write(self, records: Sequence[bytes]):
    self.count += len(records)
    if self._is_array:
      for record in records:
        self._file.write(record)
    elif records:
      self._file.write(framed(records))

  def close(self) -> int:
    """Gives the file its name, and returns its size in bytes."""
    self._file.close()
    os.replace(self._unfinished, self._path)
    return os.path.getsize(self._path)


def framed(records: Sequence[bytes]) -> bytes:
  """Returns TFRecord: each record with its length and two checksums."""
  lengths = [struct.pack('<Q', len(record)) for record in records]
  parts = []
  for length, length_crc, record, crc in zip(
      lengths, _masked(lengths), records, _masked(records), strict=True
  ):
    parts += (length, length_crc, record, crc)
  return b''.join(parts)


def crc32c(texts: Sequence[bytes]) -> np.ndarray:
  """Returns uint32 [n], the CRC-32C (RFC 3720) of texts of 4 bytes or more.

  All at once, two bytes a step. The texts end together: zeros before them
  change nothing once the usual start, all ones, is put into their first bytes.
  """
  lengths = np.array([len(text) for text in texts])
  width = (lengths.max() + 1) // 2 * 2
  rows = np.zeros((len(texts), width), np.uint8)
  inside = np.arange(width) >= width - lengths[:, np.newaxis]
  rows[inside] = np.frombuffer(b''.join(texts), np.uint8)
  begin = width - lengths[:, np.newaxis] + np.arange(4)
  rows[np.arange(len(texts))[:, np.newaxis], begin] ^= 0xFF
  crc = np.zeros(len(texts), np.uint32)
  table = _crc_table()
  for pair in np.ascontiguousarray(rows.view('<u2').T):
    crc = table[(crc ^ pair) & 0xFFFF] ^ (crc >> 16)
  return crc ^ np.uint32(0xFFFFFFFF)


@functools.cache
def _crc_table():
  """Returns uint32 [65536], by the two bytes that come next."""
  crc = np.arange(1 << 16, dtype=np.uint32)
  for _ in range(16):
    crc = np.where(crc & 1, crc >> 1 ^ np.uint32(0x82F63B78), crc >> 1)
  return crc


def _masked(texts):
  """Yields the checksums as TFRecord has them, rotated and shifted."""
  crc = crc32c(texts)
  crc = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
  data = crc.astype('<u4').tobytes()
  return (data[i : i + 4] for i in range(0, len(data), 4))


def _packed(numbers, lengths):
  """Returns the first `lengths` [n] of `numbers` [n, w] as varints, by row.

  A varint has seven bits a byte, the lowest first, and the eighth bit set in
  all bytes but its last.
  """
  rows, columns = numbers.shape
  numbers = numbers[np.arange(columns) < lengths[:, np.newaxis]]
  sizes = np.ones(len(numbers), np.int64)
  for bits in range(7, int(numbers.max()).bit_length(), 7):
    sizes += numbers >= 1 << bits
  ends = np.cumsum(sizes)
  data = np.zeros(ends[-1], np.uint8)
  for i in range(sizes.max()):
    has = sizes > i
    part = numbers[has] >> 7 * i & 127 | (sizes[has] > i + 1) * 128
    data[(ends - sizes)[has] + i] = part
  data = data.tobytes()
  row_ends = ends[np.cumsum(lengths) - 1].tolist()
  return [
      data[begin:end]
      for begin, end in zip([0, *row_ends[:-1]], row_ends, strict=True)
  ]


@functools.cache
def _number(name, number):
  (packed,) = _packed(np.array([[number]]), np.array([1]))
  return _entry(name, 3, packed)


def _ones(begin, end, size):
  return bytes(begin) + b'\1' * (end - begin) + bytes(size - end)


def _entry(name, kind, packed):
  """A feature of that name: an Int64List (3) or a FloatList (2)."""
  feature = _field(kind, _field(1, packed))
  return _field(1, _NAMES[name] + _field(2, feature))


def _field(number, data):
  return _head(number, len(data)) + data


@functools.cache
def _head(number, size):
  """The number of a field, of a type that has a length, and this length."""
  (length,) = _packed(np.array([[size]]), np.array([1]))
  return bytes([number << 3 | 2]) + length


_NAMES = {
    name: _field(1, name.encode())
    for name in (
        'boundary',
        'input_ids',
        'input_mask',
        'masked_lm_ids',
        'masked_lm_positions',
        'masked_lm_weights',
        'next_sentence_labels',
        'segment_ids',
    )
}
