"""Batches for BERT pretraining, as dicts of NumPy arrays.

A batch holds the rows of this process: int32 `input_ids`, `input_mask`,
`segment_ids` [b, s], `masked_lm_positions`, `masked_lm_ids` [b, p] and
`next_sentence_labels` [b] (1 = the second segment is random), float32
`masked_lm_weights` [b, p] and `mask` [b], int64 `id` [b]. Padding is 0; the id
of a row that pads the evaluation is -1. Runtime records are masked anew in
each epoch; in evaluation always as in epoch 0 of seed 0.
"""

import functools
from typing import Any

import numpy as np

from input_pipeline import (
    batches,
    datasets,
    pretraining_folder,
    record_batches,
    speeches,
    text_ops,
)
from input_pipeline.host import as_it_is, tf

_CHUNK = 64
_UNIGRAM_EXAMPLES = 20_000


class Data:
  """What a run reads: a folder of records, opened and checked at once.

  Attributes:
    num_examples: in the training split.
    class_names: None.
    spec: {key: (shape, dtype)} of the global training batch.
  """

  class_names = None

  def __init__(
      self, config: Any, process_index: int = 0, process_count: int = 1
  ):
    """`config` is the whole config.

    Without `data.path` the embedded speeches are read, and made into records
    the first time. Raises ValueError for a folder that is not there, is empty
    or does not fit `config.data`, and for sizes that do not divide.
    """
    data = config.data
    self._process = process_index, process_count
    path = data.path
    if path is None:
      path = speeches.folder(data.seq_length)
    self._folder = pretraining_folder.Folder(path, data)
    self._evaluations = {}
    self._train = self._folder.source(data.train_split)
    self.num_examples = len(self._train)
    self.spec = self.train(config).spec
    self.evaluate(config)

  def model_fields(self) -> dict[str, int]:
    """Returns `vocab_size`, the rows that the embedding needs."""
    return {'vocab_size': self._folder.vocabulary.size}

  def identity(self) -> dict[str, Any]:
    """Returns what tells this training set from others."""
    return {
        'num_examples': self.num_examples,
        'vocab_sha256': self._folder.vocabulary.sha256,
    }

  def train(
      self, config: Any, start_step: int = 0
  ) -> batches.TrainBatches:
    """Returns the batches of `config`, a phase's, from `start_step` on."""
    data = config.data
    return batches.TrainBatches(
        self._reader(self._train, data),
        start_step,
        batch_size=config.batch_size,
        seed=config.seed,
        process=self._process,
        stream=(data.lanes, data.shuffle_buffer),
    )

  def evaluate(
      self, config: Any, split: str | None = None
  ) -> batches.EvalBatches:
    """Returns `split`, by default `data.eval_split`.

    Each example comes once, in batches of `eval_batch_size`, rounded up to
    what the processes divide; the first `data.eval_examples` unless that is 0.
    """
    data, split = config.data, split or config.data.eval_split
    batch_size = config.eval_batch_size or config.batch_size
    key = data.to_json(), split, batch_size
    if key not in self._evaluations:
      source = self._folder.source(split)
      if data.eval_examples:
        source = source.first(data.eval_examples)
      self._evaluations[key] = batches.EvalBatches(
          self._reader(source, data),
          batch_size=batch_size,
          process=self._process,
      )
    return self._evaluations[key]

  def unigram(self) -> np.ndarray:
    """Returns float64 [vocab_size], how likely each token is to be asked for.

    From the tokens that can be masked in up to 20,000 training examples, each
    counted once more than it is there.
    """
    vocabulary = self._folder.vocabulary
    source = self._train.first(_UNIGRAM_EXAMPLES)
    rows, _ = datasets.eval_rows(
        source, draws=1, batch_size=_CHUNK, process=(0, 1)
    )
    if source.streaming:
      rows = rows.batch(_CHUNK)
    counts = np.ones(vocabulary.size)
    parse = as_it_is(lambda row: record_batches.checked(source, row['record']))
    for example in rows.map(parse).as_numpy_iterator():
      ids = example['input_ids'].copy()
      if source.static:
        row, slot = np.nonzero(example['masked_lm_weights'])
        at = example['masked_lm_positions'][row, slot]
        ids[row, at] = example['masked_lm_ids'][row, slot]
      counts += np.bincount(
          ids[example['input_mask'] > 0], minlength=vocabulary.size
      )
    counts[list(vocabulary.special_ids)] = 1
    return counts / counts.sum()

  def _reader(self, source, data):
    masks = None
    if not source.static:
      vocabulary = self._folder.vocabulary
      masks = functools.partial(
          text_ops.mask_batch,
          vocab_size=vocabulary.size,
          special_ids=vocabulary.special_ids,
          mask_id=vocabulary.mask_id,
          fraction=data.masked_lm_prob,
          max_predictions=data.max_predictions,
          whole_word=data.whole_word,
          is_continuation=vocabulary.is_continuation,
      )

    def finish(row, example):
      if masks:
        lengths = example.pop('lengths')
        del example['boundary']
        example |= masks(example['input_ids'], lengths, row['bits'][:, 0])
      mask = tf.ones_like(row['id'], tf.float32)
      return example | {'mask': mask, 'id': row['id']}

    return record_batches.Reader(source, finish, data.threads, data.prefetch)
