"""Sources in record files. TFRecord; what TFDS writes is in tfds_source.py."""

import copy
import json
import os
import struct
from collections.abc import Sequence
from concurrent import futures

import numpy as np

from input_pipeline import sources
from input_pipeline.host import tf

_COUNTS = 'record_counts.json'
_FILES_AT_ONCE = 16


class Shards:
  """Which records of which files are examples 0, 1, 2, ... of a source.

  Attributes:
    paths: [s] of the shards.
    firsts: [s], the first record of each that counts.
    counts: [s], how many records count.
    starts: [s], the id of the first of them.
  """

  def __init__(self, shards: Sequence[tuple[str, int, int]]):
    """`shards` is [(path, first, count)]."""
    paths, firsts, counts = zip(*shards, strict=True)
    self.paths = list(paths)
    self.firsts = np.array(firsts, np.int64)
    self.counts = np.array(counts, np.int64)
    self.starts = np.cumsum(self.counts) - self.counts

  def __len__(self) -> int:
    return int(self.counts.sum())

  def first(self, count: int) -> 'Shards':
    """Returns the same with its first `count` examples only."""
    part = copy.copy(self)
    part.counts = np.clip(count - self.starts, 0, self.counts)
    return part

  def where(self, example_id: int) -> str:
    """Returns words that let a person find the example."""
    shard = int(np.searchsorted(self.starts, example_id, 'right')) - 1
    record = self.firsts[shard] + example_id - self.starts[shard]
    return f'{self.paths[shard]} record {record}'


class Records(Shards, sources.Source):
  """Base of the image sources in record files, front to back if `streaming`."""

  def __init__(
      self,
      shards: Sequence[tuple[str, int, int]],
      num_classes: int,
      class_names: Sequence[str] | None = None,
  ):
    """`shards` is [(path, first, count)]."""
    Shards.__init__(self, shards)
    image = tf.TensorSpec((), tf.string)
    sources.Source.__init__(self, len(self), image, num_classes, class_names)


class TfRecord(Records):
  """TFRecord files of tf.train.Example, local or gs://.

  Args:
    pattern: a glob of the files, which are taken in sorted order.
    num_classes: labels lie in [0, num_classes) once the offset is added.
    image_key: feature of the encoded image.
    label_key: feature of the label, an int64; -1 means unlabelled.
    label_offset: added to a label: -1 for ImageNet's 1..1000.

  Raises FileNotFoundError if no file matches, ValueError for a broken one.
  """

  streaming = True

  def __init__(
      self,
      pattern: str,
      *,
      num_classes: int,
      image_key: str = 'image/encoded',
      label_key: str = 'image/class/label',
      label_offset: int = 0,
  ):
    paths = sorted(tf.io.gfile.glob(pattern))
    paths = [path for path in paths if not path.endswith('.json')]
    if not paths:
      raise FileNotFoundError(f'no TFRecord file matches {pattern}')
    counts = shard_counts(paths)
    shards = [(path, 0, counts[path]) for path in paths]
    super().__init__(shards, num_classes)
    self._keys = image_key, label_key
    self._offset = label_offset

  def parse(self, record):
    image, label = self._keys
    example = tf.io.parse_single_example(
        record,
        {
            image: tf.io.FixedLenFeature([], tf.string),
            label: tf.io.FixedLenFeature([], tf.int64),
        },
    )
    label = tf.cast(example[label], tf.int32) + self._offset
    return {'image': example[image], 'label': label}


def shard_counts(paths: Sequence[str]) -> dict[str, int]:
  """Returns {path: number of records}.

  Taken from the file that `write_counts` leaves beside them, else counted: for
  local files in no time. Raises ValueError for a file that is cut off, or that
  does not have the size it had when it was counted.
  """
  known = {}
  for folder in {os.path.dirname(path) for path in paths}:
    table = os.path.join(folder, _COUNTS)
    if tf.io.gfile.exists(table):
      with tf.io.gfile.GFile(table) as file:
        listed = json.load(file)
      known |= {os.path.join(folder, k): v for k, v in listed.items()}

  def count(path):
    if path not in known:
      return count_records(path)
    records, size = known[path]
    check_size(path, size, _COUNTS)
    return records

  with futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
    return dict(zip(paths, pool.map(count, paths), strict=True))


def check_size(path: str, size: int, table: str):
  """Raises ValueError if a file has not the `size` that `table` gives it."""
  if size != (now := tf.io.gfile.stat(path).length):
    raise ValueError(
        f'{path} has {now} bytes and not {size} as in {table} beside it:'
        ' write that file again'
    )


def broken(paths: Sequence[str]) -> str | None:
  """Returns the first TFRecord file that cannot be read to its end."""

  def read(path):
    records = tf.data.TFRecordDataset(path, buffer_size=1 << 20)
    try:
      records.reduce(np.int64(0), lambda count, _: count + 1)
    except tf.errors.OpError:
      return path

  with futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
    return next(filter(None, pool.map(read, paths)), None)


def write_counts(pattern: str):
  """Writes record_counts.json beside the files: for buckets, once."""
  paths = sorted(tf.io.gfile.glob(pattern))
  table = {
      os.path.basename(path): (
          count_records(path),
          tf.io.gfile.stat(path).length,
      )
      for path in paths
  }
  name = os.path.join(os.path.dirname(pattern), _COUNTS)
  with tf.io.gfile.GFile(name, 'w') as file:
    json.dump(table, file, indent=1)


def count_records(path: str) -> int:
  """Returns the number of records in a TFRecord file, by its headers alone."""
  # A record is its length (8 bytes), a checksum (4), the data, a checksum (4).
  size = tf.io.gfile.stat(path).length
  at = count = 0
  # GFile reads half a megabyte after each seek; a bucket has no other way.
  with tf.io.gfile.GFile(path, 'rb') if '://' in path else open(
      path, 'rb', buffering=0
  ) as file:
    while at + 12 <= size:
      file.seek(at)
      at += struct.unpack('<Q', file.read(8))[0] + 16
      count += 1
  if at != size:
    raise ValueError(
        f'{path} is cut off or no TFRecord file:'
        f' record {count} would end at byte {at} of {size}'
    )
  return count
