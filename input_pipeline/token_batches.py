"""Token sequences in memory, and batches of them: train, evaluate, pad.

Fine-tuning sets are small. They are tokenized once, kept without padding, and
a batch is a gather.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from input_pipeline import order


def pair_lengths(first: int, second: int, limit: int) -> tuple[int, int]:
  """Returns how many tokens of two texts to keep, `limit` in all.

  The longer text loses its last token until both fit, the second one where
  they are equal: `_truncate_seq_pair` of google-research/bert's
  run_classifier.py, without its loop.
  """
  keep = min(second, max(limit - first, limit // 2))
  return min(first, limit - keep), keep


class Sequences:
  """Token sequences [CLS] A [SEP] and [CLS] A [SEP] B [SEP], not padded."""

  def __init__(
      self,
      first: Sequence[Sequence[int]],
      second: Sequence[Sequence[int]] | None,
      *,
      cls_id: int,
      sep_id: int,
      length: int,
  ):
    """Joins token ids; pairs longer than `length` are cut by `pair_lengths`.

    Raises ValueError for a `length` that leaves no room for text.
    """
    if length < 5:
      raise ValueError(
          f'config.data.seq_length={length}: must be 5 or more, for [CLS], two'
          ' [SEP] and a token of each text'
      )
    self.length = length
    flat, counts, boundaries = [], [], []
    for i, a in enumerate(first):
      if second is None:
        row = [cls_id, *a[: length - 2], sep_id]
        boundary = len(row)
      else:
        b = second[i]
        keep_a, keep_b = pair_lengths(len(a), len(b), length - 3)
        row = [cls_id, *a[:keep_a], sep_id, *b[:keep_b], sep_id]
        boundary = keep_a + 2
      flat.append(np.array(row, np.int32))
      counts.append(len(row))
      boundaries.append(boundary)
    self._flat = np.concatenate(flat) if flat else np.zeros(0, np.int32)
    self._counts = np.array(counts, np.int64)
    self._starts = np.cumsum(self._counts) - self._counts
    self._boundaries = np.array(boundaries, np.int64)

  def __len__(self) -> int:
    return len(self._counts)

  def rows(self, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Returns int32 [n, length] `input_ids`, `input_mask`, `segment_ids`."""
    column = np.arange(self.length)
    inside = column < self._counts[ids][:, None]
    where = np.where(inside, self._starts[ids][:, None] + column, 0)
    in_second = inside & (column >= self._boundaries[ids][:, None])
    return {
        'input_ids': np.where(inside, self._flat[where], 0).astype(np.int32),
        'input_mask': inside.astype(np.int32),
        'segment_ids': in_second.astype(np.int32),
    }


class Examples:
  """Sequences with what is to be learned of each.

  Attributes:
    targets: name -> array [n, ...].
  """

  def __init__(self, sequences: Sequences, targets: Mapping[str, np.ndarray]):
    self._sequences = sequences
    self.targets = dict(targets)

  def __len__(self) -> int:
    return len(self._sequences)

  def rows(self, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the arrays of examples `ids`, with `mask` and `id`.

    An id of -1 is a padding row: zeros, mask 0.
    """
    real = ids >= 0
    kept = np.where(real, ids, 0)
    rows = self._sequences.rows(kept)
    rows |= {k: v[kept] for k, v in self.targets.items()}
    for value in rows.values():
      value[~real] = 0
    return rows | {
        'mask': real.astype(np.float32),
        'id': np.where(real, ids, -1).astype(np.int64),
    }

  def spec(self, batch_size: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Returns {key: (shape, dtype)} of a global batch."""
    row = self.rows(np.array([-1]))
    return {k: ((batch_size, *v.shape[1:]), v.dtype) for k, v in row.items()}


class TrainBatches:
  """Endless iterator over the rows of this process; see order.py.

  Attributes:
    spec: {key: (shape, dtype)} of the global batch.
    bad: always empty: text that cannot be read stops at the start.
  """

  def __init__(
      self,
      examples: Examples,
      *,
      batch_size: int,
      seed: int,
      start_step: int = 0,
      process: tuple[int, int] = (0, 1),
  ):
    """`process` is (index, count). Raises ValueError for sizes that misfit."""
    order.local_size(batch_size, *process)
    self._examples = examples
    self._order = {
        'num_examples': len(examples),
        'batch_size': batch_size,
        'seed': seed,
        'process_index': process[0],
        'process_count': process[1],
    }
    self._step = start_step
    self._closed = False
    self.spec = examples.spec(batch_size)
    self.bad = []

  def __iter__(self):
    return self

  def __next__(self) -> dict[str, np.ndarray]:
    if self._closed:
      raise ValueError('these batches are closed')
    ids = order.ids_at(self._step, **self._order)
    self._step += 1
    return self._examples.rows(ids)

  def close(self):
    """No more batches are wanted."""
    self._closed = True


class EvalBatches:
  """Finite and re-iterable: row r of global batch s is example s * B + r.

  Attributes:
    spec: {key: (shape, dtype)} of the global batch.
    num_examples: over all processes.
    references: what an evaluator compares the outputs with.
    bad: always empty.
  """

  def __init__(
      self,
      examples: Examples,
      references: Any,
      *,
      batch_size: int,
      process: tuple[int, int] = (0, 1),
  ):
    """A `batch_size` that the processes do not divide is rounded up."""
    index, count = process
    self._local = -(-batch_size // count)
    self._batch_size = self._local * count
    self._first = index * self._local
    self._examples = examples
    self.references = references
    self.spec = examples.spec(self._batch_size)
    self.num_examples = len(examples)
    self.bad = []

  def __len__(self) -> int:
    return -(-self.num_examples // self._batch_size)

  def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
    for step in range(len(self)):
      ids = step * self._batch_size + self._first + np.arange(self._local)
      yield self._examples.rows(np.where(ids < self.num_examples, ids, -1))


class Split(NamedTuple):
  """The Examples of a split and what an evaluator compares outputs with."""

  examples: Examples
  references: Any


class Data:
  """Base of the kinds of data that are tokenized and checked at the start.

  A kind sets `self._train`, the training Examples, and then calls `check`.

  Attributes:
    num_examples: of training.
    class_names: a tuple, or None if the data has none.
    spec: {key: (shape, dtype)} of the global training batch.
  """

  class_names = None

  def __init__(self, config: Any, process: tuple[int, int]):
    self._config = config.data
    self._process = process
    self._splits = {}

  def check(self, config: Any):
    """Makes the attributes and reads what will be evaluated."""
    self.num_examples = len(self._train)
    self.spec = self.train(config).spec
    self.evaluate(config)

  def train(self, config: Any, start_step: int = 0) -> TrainBatches:
    """Returns the batches of `config`, a phase's, from `start_step` on."""
    return TrainBatches(
        self._train,
        batch_size=config.batch_size,
        seed=config.seed,
        start_step=start_step,
        process=self._process,
    )

  def evaluate(self, config: Any, split: str | None = None) -> EvalBatches:
    """Returns all of `split`, by default `data.eval_split`."""
    split = split or config.data.eval_split
    if split not in self._splits:
      self._splits[split] = self.read(split)
    examples, references = self._splits[split]
    return EvalBatches(
        examples,
        references,
        batch_size=config.eval_batch_size or config.batch_size,
        process=self._process,
    )

  def read(self, split: str) -> Split:
    """Returns a split to evaluate."""
    raise NotImplementedError
