"""Batches of parsed records: train, evaluate, and name what is wrong.

The order is that of order.py or lanes.py, so that a batch depends neither on
the number of processes nor on where a run was resumed.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from input_pipeline import datasets, order, records
from input_pipeline import reader as reader_lib
from input_pipeline.host import as_it_is, tf

# Rows are parsed so many at once, as datasets.py fetches them.
_CHUNK = 64


class BadRecord(reader_lib.BadExample):
  """A record that cannot be used; names the file and the cause."""


class Reader:
  """What training and evaluation share: a source, and how rows become batches.

  Args:
    source: has `parse`, `ranges`, `where`, and `fetch` if not `streaming`.
    finish: from rows {'id', 'record', 'bits'} and their parsed features to the
      features of a batch; all have an axis of rows.
    threads: 0 for one per core.
    prefetch: batches to have ready.
  """

  def __init__(
      self,
      source: Any,
      finish: Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]],
      threads: int,
      prefetch: int,
  ):
    self.source = source
    self._finish = finish
    self._threads = threads or _cores()
    self._prefetch = prefetch

  def batches(self, rows: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Returns batches of `size` rows, the last of which may be smaller."""

    @as_it_is
    def make(row):
      return self._finish(row, checked(self.source, row['record']))

    if self.source.streaming:
      rows = rows.batch(min(size, _CHUNK))
    data = rows.map(make, self._threads).rebatch(size)
    return data.prefetch(self._prefetch).with_options(_options(self._threads))

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


class TrainBatches:
  """Endless iterator over batches.

  Attributes:
    spec: {key: (shape, dtype)} of the global batch.
    bad: always empty, since a bad record stops the run.
  """

  def __init__(
      self,
      reader: Reader,
      start_step: int,
      *,
      batch_size: int,
      seed: int,
      process: tuple[int, int],
      stream: tuple[int, int],
  ):
    """`process` is (index, count), `stream` (lanes, shuffle window)."""
    self._reader = reader
    self._step = start_step
    self._local = order.local_size(batch_size, *process)
    self._rows_from = functools.partial(
        datasets.train_rows,
        reader.source,
        draws=1,
        batch_size=batch_size,
        seed=seed,
        process=process,
        stream=stream,
    )
    data = reader.batches(self._rows_from(start_step=start_step), self._local)
    self.spec = _spec(data, batch_size)
    self.bad = []
    self._iterator = data.as_numpy_iterator()

  def __iter__(self):
    return self

  def __next__(self) -> dict[str, np.ndarray]:
    """Returns the next batch. Raises BadRecord."""
    if self._iterator is None:
      raise ValueError('these batches are closed')
    try:
      batch = next(self._iterator)
    except tf.errors.OpError as error:
      rows = self._rows_from(start_step=self._step)
      raise self._reader.explain(rows, 0, self._local, error) from None
    self._step += 1
    return batch

  def close(self):
    """Stops reading and frees the buffers."""
    self._iterator = None


class EvalBatches:
  """Finite and re-iterable; has the same length on every process.

  Attributes:
    spec: {key: (shape, dtype)} of the global batch.
    num_examples: over all processes.
    bad: always empty, since a bad record stops the run.
  """

  def __init__(
      self, reader: Reader, *, batch_size: int, process: tuple[int, int]
  ):
    """A `batch_size` that the processes do not divide is rounded up."""
    self._reader = reader
    self._local = -(-batch_size // process[1])
    batch_size = self._local * process[1]
    self._rows, _ = datasets.eval_rows(
        reader.source, draws=1, batch_size=batch_size, process=process
    )
    self._data = reader.batches(self._rows, self._local)
    self.spec = _spec(self._data, batch_size)
    self.num_examples = len(reader.source)
    self.bad = []
    self._length = -(-self.num_examples // batch_size)

  def __len__(self) -> int:
    return self._length

  def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
    """Yields the batches. Raises BadRecord."""
    batches = self._data.as_numpy_iterator()
    for step in range(self._length):
      try:
        batch = next(batches, {})
      except tf.errors.OpError as error:
        skip = step * self._local
        raise self._reader.explain(
            self._rows, skip, self._local, error
        ) from None
      yield {
          k: _padded(batch.get(k), (self._local, *shape[1:]), dtype, k == 'id')
          for k, (shape, dtype) in self.spec.items()
      }


def _padded(values, shape, dtype, is_id):
  have = 0 if values is None else len(values)
  if have == shape[0]:
    return values
  whole = np.full(shape, -1 if is_id else 0, dtype)
  if have:
    whole[:have] = values
  return whole


def _spec(data, batch_size):
  return {
      k: ((batch_size, *s.shape[1:]), s.dtype.as_numpy_dtype)
      for k, s in data.element_spec.items()
  }


def _options(threads):
  options = tf.data.Options()
  options.deterministic = True
  options.autotune.enabled = False
  options.threading.private_threadpool_size = threads
  options.threading.max_intra_op_parallelism = 1
  return options


def _cores():
  if hasattr(os, 'sched_getaffinity'):  # Linux: the cores of this process.
    return len(os.sched_getaffinity(0))
  return os.cpu_count()
