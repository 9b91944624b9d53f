"""Labelled sentences and pairs: GLUE, CSV and TSV files, eras of speeches.

Batches hold int32 [b, s] `input_ids`, `input_mask` and `segment_ids`, `label`
int32 [b], or float32 [b] for regression, `mask` float32 [b] and `id` int64 [b].
A label of -1, or NaN, is unknown; training has none of them.
"""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from input_pipeline import (
    era,
    glue,
    labelled_text,
    order,
    token_batches,
    tokenizer,
)


class References(NamedTuple):
  """What the predictions of a split are compared with.

  Attributes:
    labels: of all examples, -1 or NaN where unknown.
    written: the labels as files write them, by class; () for regression.
    parts: (name, begin, end) of parts that are scored apart, the first of
      them under the plain names of the metrics.
    metrics: names of metrics of the glue evaluator.
  """

  labels: np.ndarray
  written: tuple[str, ...]
  parts: tuple[tuple[str, int, int], ...]
  metrics: tuple[str, ...]


class Data(token_batches.Data):
  """What a run reads; the `references` of its evaluations are References."""

  def __init__(
      self, config: Any, process_index: int = 0, process_count: int = 1
  ):
    """`config` is the whole config.

    Raises:
      FileNotFoundError: a file or a prepared data set is missing.
      ValueError: an unknown task or split, a file that cannot be read as it,
        labels that the training split does not have, sizes that do not fit.
    """
    data = config.data
    accepted = (*glue.TASKS, 'speeches', 'csv')
    if data.task not in accepted:
      raise ValueError(
          f'config.data.task={data.task!r}: accepted are {", ".join(accepted)}'
      )
    if data.task == 'csv' and data.path is None:
      raise ValueError(
          'config.data.path=None: task csv needs a .csv or .tsv file, or a'
          ' folder with train, dev and test'
      )
    if data.regression and data.task not in ('csv', 'stsb'):
      raise ValueError(
          f'config.data.regression=True is for csv, not for {data.task}'
      )
    super().__init__(config, (process_index, process_count))
    self._tokenizer = open_tokenizer(data)
    self._task = glue.TASKS.get(data.task)
    rows, self._pairs = self._read_train(config)
    self._train = self._examples(rows)
    self._digest = _digest(rows)
    self.check(config)

  def model_fields(self) -> dict[str, int]:
    """Returns `num_classes`, 1 for regression, and `vocab_size`."""
    return {
        'num_classes': len(self._written) or 1,
        'vocab_size': self._tokenizer.vocab_size,
    }

  def identity(self) -> dict[str, Any]:
    """Returns what tells this training set from others."""
    return {
        'num_examples': self.num_examples,
        'texts_sha256': self._digest,
        'vocab_sha256': self._tokenizer.sha256,
    }

  def _rows(self, split):
    """Returns the (name, Rows) of the parts of a split."""
    data = self._config
    if self._task:
      return glue.read(data.task, split, data.path, data.data_dir)
    if data.task == 'speeches':
      return [('', era.read(split))]
    return [('', labelled_text.read(data.path, split))]

  def _read_train(self, config):
    """Fixes the classes; returns the training rows and if they are pairs."""
    data = config.data
    [(_, rows), *more] = self._rows(data.train_split)
    if more:
      raise ValueError(
          f'config.data.train_split={data.train_split!r} has several parts'
      )
    if self._task:
      self._written, self.class_names = self._task.labels, self._task.names
    elif data.regression:
      self._written, self.class_names = (), ()
    else:
      self._written = self.class_names = labelled_text.classes(rows)
    self.class_names = self.class_names or None
    labelled_text.check_labelled(rows)
    if data.examples_per_class:
      rows = rows.take(self._few(rows, data.examples_per_class, config.seed))
    return rows, rows.second is not None

  def _few(self, rows, count, seed):
    """Returns the numbers of `count` rows of each class, in order."""
    if not self._written:
      raise ValueError(
          f'config.data.examples_per_class={count}: regression has no classes'
      )
    ids, labels = [], self._labels(rows)
    for i, name in enumerate(self.class_names):
      members = np.flatnonzero(labels == i)
      if len(members) < count:
        raise ValueError(
            f'config.data.examples_per_class={count}: {rows.path} has'
            f' {len(members)} of class {name!r}'
        )
      picked = order.ids_at(
          0, num_examples=len(members), batch_size=count, seed=seed
      )
      ids += members[picked].tolist()
    return sorted(ids)

  def read(self, split: str) -> token_batches.Split:
    """Returns a split to evaluate, the first `eval_examples` of each part."""
    limit = self._config.eval_examples
    parts, examples, labels, begin = [], [], [], 0
    for name, rows in self._rows(split):
      if (rows.second is not None) != self._pairs:
        raise ValueError(f'{rows.path}: pairs in one split, none in the other')
      if limit:
        rows = rows.take(range(min(limit, len(rows.first))))
      parts.append((name, begin, begin + len(rows.first)))
      begin = parts[-1][2]
      examples.append(rows)
      labels.append(self._labels(rows))
    references = References(
        np.concatenate(labels), self._written, tuple(parts), self._metrics()
    )
    return token_batches.Split(self._examples(*examples), references)

  def _metrics(self):
    if self._task:
      return self._task.metrics
    return ('accuracy',) if self._written else ('pearson', 'spearman')

  def _labels(self, rows):
    if self._written:
      return labelled_text.class_ids(rows, self._written)
    return labelled_text.scores(rows)

  def _examples(self, *parts):
    """Tokenizes the rows of all parts, one after the other."""
    encode = self._tokenizer.encode_batch
    first = [ids for rows in parts for ids in encode(rows.first)]
    second = None
    if parts[0].second is not None:
      second = [ids for rows in parts for ids in encode(rows.second)]
    sequences = token_batches.Sequences(
        first,
        second,
        cls_id=self._tokenizer.cls_id,
        sep_id=self._tokenizer.sep_id,
        length=self._config.seq_length,
    )
    labels = np.concatenate([self._labels(rows) for rows in parts])
    return token_batches.Examples(sequences, {'label': labels})


def open_tokenizer(data: Any) -> Any:
  """Returns the tokenizer of a data section.

  A vocabulary named 'speeches' is the one that ships; the task speeches has it
  by default.

  Raises ValueError if none is named, FileNotFoundError if it is missing.
  """
  path = data.vocab
  if path is None and data.kind == 'sentences' and data.task == 'speeches':
    path = 'speeches'
  if path is None:
    raise ValueError(
        'config.data.vocab=None: name the vocab.txt that the model was'
        " pretrained with, or 'speeches' for the one that ships"
    )
  return tokenizer.WordPieceTokenizer(
      era.VOCAB if path == 'speeches' else path, lowercase=data.lowercase
  )


def _digest(rows):
  digest = hashlib.sha256()
  for texts in (rows.first, rows.second or (), rows.labels):
    for text in texts:
      digest.update(text.encode() + b'\0')
  return digest.hexdigest()
