"""Parsed records for batches.py, and what is wrong with one."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from input_pipeline import batches, datasets, records
from input_pipeline import reader as reader_lib
from input_pipeline.host import as_it_is, tf

# Rows are parsed so many at once, as datasets.py fetches them.
_CHUNK = 64


class BadRecord(reader_lib.BadExample):
  """A record that cannot be used; names the file and the cause."""


class Reader:
  """A source, and how its rows become batches; see batches.py.

  Args:
    source: has `parse`, `ranges`, `where`, and `fetch` if not `streaming`.
    finish: from rows {'id', 'record', 'bits'} and their parsed features to the
      features of a batch; all have an axis of rows.
    threads: 0 for one per core.
    prefetch: batches to have ready.
  """

  draws = 1
  spec = staticmethod(batches.spec)

  def __init__(
      self,
      source: Any,
      finish: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]],
      threads: int,
      prefetch: int,
  ):
    self.source = source
    self._finish = finish
    self._threads = threads or datasets.cores()
    self._prefetch = prefetch

  def batches(self, rows: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Returns batches of `size` rows, the last of which may be smaller."""

    @as_it_is
    def make(row):
      return self._finish(row, checked(self.source, row['record']))

    if self.source.streaming:
      rows = rows.batch(min(size, _CHUNK))
    data = rows.map(make, self._threads).rebatch(size)
    data = data.prefetch(self._prefetch)
    return data.with_options(datasets.options(self._threads))

  def check(self, batch, lowest):
    """Returns []: a bad record stops the run."""
    del batch, lowest
    return []

  def explain(
      self,
      rows: tf.data.Dataset,
      skip: int,
      size: int,
      error: tf.errors.OpError,
  ) -> Exception:
    """Returns a BadRecord for the first bad one from row `skip` on.

    It is one of the `size` rows of a batch, or was parsed along with them.
    """
    source = self.source
    near = datasets.one_by_one(source, rows).skip(skip).take(size + _CHUNK)
    try:
      for row in near:
        problem = _problem(source, row['record'].numpy())
        if problem:
          name = f'{source.where(int(row["id"]))} (id {int(row["id"])})'
          return BadRecord(f'{name}: {problem}')
    except tf.errors.DataLossError as cause:
      return BadRecord(f'{records.broken(source.paths)}: {cause.message}')
    return error


def checked(source: Any, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
  """Returns the features of records [c], of which none is out of range."""
  example = source.parse(serialized)
  good = [
      tf.reduce_all((low <= values) & (values <= high))
      for _, values, low, high, _ in source.ranges(example)
  ]
  with tf.control_dependencies([
      tf.debugging.Assert(tf.reduce_all(good), ['a value is out of range'])
  ]):
    return {k: tf.identity(v) for k, v in example.items()}


def _problem(source, record):
  """Returns what is wrong with one serialized record, or None."""
  try:
    example = source.parse(tf.constant([record]))
  except tf.errors.OpError:
    try:
      features = tf.train.Example.FromString(record).features.feature
    except Exception as cause:  # protobuf has an error for each of its engines.
      return f'is no tf.train.Example: {cause}'
    found = ', '.join(
        f'{k} {list(_shape(v))}' for k, v in sorted(features.items())
    )
    return f'needs {source.layout()}; has {found or "no features"}'
  for name, values, low, high, what in source.ranges(example):
    values = np.asarray(values)
    wrong = values[(values < low) | (values > high)]
    if wrong.size:
      highest = np.max(high)
      return f'{name} {wrong[0]} is not in [{low}, {highest}], {what}'
  return None


def _shape(feature):
  lists = feature.int64_list, feature.float_list, feature.bytes_list
  return (max(len(one.value) for one in lists),)
