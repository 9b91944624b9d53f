"""Batches of what a reader reads: endless to train, each example once to test.

A reader has `source`, `draws`, the random words an example takes, and

  batches(rows, size) -> dataset          spec(dataset, batch_size) -> spec
  check(batch, lowest) -> [(id, where)] of the examples left out of it
  explain(rows, skip, size, error) -> the error to raise for a TensorFlow one
"""

import functools
from collections.abc import Iterator

import numpy as np

from input_pipeline import datasets, order
from input_pipeline.host import tf


class TrainBatches:
  """Endless iterator over batches.

  Attributes:
    spec: {key: (shape, dtype)} of the global batch.
    bad: [(id, where)] of the examples skipped so far, each once.
  """

  def __init__(self, reader, start_step, *, batch_size, process, **kwargs):
    self._reader = reader
    self._step = start_step
    self._local = order.local_size(batch_size, *process)
    self._rows_from = functools.partial(
        datasets.train_rows,
        reader.source,
        draws=reader.draws,
        batch_size=batch_size,
        process=process,
        **kwargs,
    )
    data = reader.batches(self._rows_from(start_step=start_step), self._local)
    self.spec = reader.spec(data, batch_size)
    self.bad = []
    self._iterator = data.as_numpy_iterator()

  def __iter__(self):
    return self

  def __next__(self) -> dict[str, np.ndarray]:
    if self._iterator is None:
      raise ValueError('these batches are closed')
    try:
      batch = next(self._iterator)
    except tf.errors.OpError as error:
      rows = self._rows_from(start_step=self._step)
      raise self._reader.explain(rows, 0, self._local, error) from None
    self._step += 1
    skipped = self._reader.check(batch, lowest=0)
    self.bad += [one for one in skipped if one not in self.bad]
    return batch

  def close(self):
    """Stops reading and frees the buffers."""
    self._iterator = None


class EvalBatches:
  """Finite and re-iterable; has the same length on every process.

  Attributes:
    spec: {key: (shape, dtype)} of the global batch.
    num_examples: over all processes.
    bad: [(id, where)] of the examples skipped in the latest pass.
  """

  def __init__(self, reader, batch_size, process):
    """A `batch_size` that the processes do not divide is rounded up."""
    self._reader = reader
    self._local = -(-batch_size // process[1])
    batch_size = self._local * process[1]
    self._rows, _ = datasets.eval_rows(
        reader.source,
        draws=reader.draws,
        batch_size=batch_size,
        process=process,
    )
    self._data = reader.batches(self._rows, self._local)
    self.spec = reader.spec(self._data, batch_size)
    self.num_examples = len(reader.source)
    self.bad = []
    self._length = -(-self.num_examples // batch_size)

  def __len__(self) -> int:
    return self._length

  def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
    self.bad = []
    batches = self._data.as_numpy_iterator()
    for step in range(self._length):
      try:
        batch = next(batches, None)
      except tf.errors.OpError as error:
        skip = step * self._local
        raise self._reader.explain(
            self._rows, skip, self._local, error
        ) from None
      if batch is not None:
        self.bad += self._reader.check(batch, lowest=-1)
      yield self._padded(batch or {})

  def _padded(self, batch):
    def pad(key, shape, dtype):
      have = batch.get(key, np.zeros((0, *shape), dtype))
      if len(have) == self._local:
        return have
      rest = np.zeros((self._local - len(have), *shape), dtype)
      return np.concatenate([have, rest - 1 if key == 'id' else rest])

    return {k: pad(k, s[1:], dtype) for k, (s, dtype) in self.spec.items()}


def spec(data, batch_size):
  """Returns {key: (shape, dtype)} of the global batch."""
  return {
      k: ((batch_size, *s.shape[1:]), s.dtype.as_numpy_dtype)
      for k, s in data.element_spec.items()
  }
