"""Records for BERT pretraining: read from their shards, parsed, checked.

A runtime record holds tokens as they are, to be masked while training; a
static one holds the seven features of google-research/bert.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_data_source

from input_pipeline import records
from input_pipeline.host import tf

# What tensorflow/models calls them.
ALIASES = {'input_ids': 'input_word_ids', 'segment_ids': 'input_type_ids'}
_TOKENS = ('input_ids', 'input_mask', 'segment_ids')
_SLOTS = ('masked_lm_positions', 'masked_lm_ids')


class Source(records.Shards):
  """Records of one split; read in order if `streaming`, else at random.

  Attributes:
    static: whether the records are masked.
  """

  streaming = True

  def __init__(
      self,
      shards: Sequence[tuple[str, int, int]],
      *,
      static: bool,
      seq_length: int,
      max_predictions: int,
      vocab_size: int,
      aliased: bool = False,
  ):
    """`shards` is [(path, first, count)]; `aliased`: has the ALIASES."""
    super().__init__(shards)
    self.static = static
    self._seq_length = seq_length
    self._max_predictions = max_predictions
    self._vocab_size = vocab_size
    self._names = ALIASES if aliased else {}

  def parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns features of `serialized` [c]; all but the weights are int32.

    input_ids, input_mask, segment_ids [c, s], next_sentence_labels [c], of
    static records masked_lm_* [c, p], of others lengths and boundary [c].
    Raises tf.errors.InvalidArgumentError where a feature is missing or has
    another size. See `ranges` for what else can be wrong.
    """
    one = tf.io.FixedLenFeature([], tf.int64)
    if not self.static:
      features = {
          'input_ids': tf.io.RaggedFeature(tf.int64),
          'boundary': one,
          'next_sentence_labels': one,
      }
    else:
      tokens = tf.io.FixedLenFeature([self._seq_length], tf.int64)
      slots = tf.io.FixedLenFeature([self._max_predictions], tf.int64)
      features = dict.fromkeys(_TOKENS, tokens)
      features |= dict.fromkeys(_SLOTS, slots)
      features['masked_lm_weights'] = tf.io.FixedLenFeature(
          [self._max_predictions], tf.float32
      )
      features['next_sentence_labels'] = one
    stored = {self._names.get(k, k): v for k, v in features.items()}
    example = tf.io.parse_example(serialized, stored)
    example = {k: example[self._names.get(k, k)] for k in features}
    example = {
        k: v if v.dtype == tf.float32 else tf.cast(v, tf.int32)
        for k, v in example.items()
    }
    return example if self.static else self._padded(example)

  def _padded(self, example):
    ragged = example['input_ids']
    column = tf.range(self._seq_length)
    lengths = tf.cast(ragged.row_lengths(), tf.int32)
    inside = column < lengths[:, tf.newaxis]
    second = inside & (column >= example['boundary'][:, tf.newaxis])
    return example | {
        'input_ids': ragged.to_tensor(shape=[None, self._seq_length]),
        'input_mask': tf.cast(inside, tf.int32),
        'segment_ids': tf.cast(second, tf.int32),
        'lengths': lengths,
    }

  def layout(self) -> str:
    """Returns words for what `parse` needs."""
    if not self.static:
      return 'input_ids [n], boundary [1] and next_sentence_labels [1]'
    tokens = ', '.join(self._names.get(k, k) for k in _TOKENS)
    return (
        f'{tokens} [{self._seq_length}], {", ".join(_SLOTS)} and'
        f' masked_lm_weights [{self._max_predictions}] and'
        ' next_sentence_labels [1]'
    )

  def ranges(
      self, example: Mapping[str, tf.Tensor]
  ) -> Iterator[tuple[str, tf.Tensor, Any, Any, str]]:
    """Yields what is in [lowest, highest] in good examples, and what that is.

    (name, values, lowest, highest, description of the range).
    """
    tokens, words = self._seq_length, self._vocab_size
    of_words = f'the ids of the vocabulary with {words} tokens'
    yield 'input_ids', example['input_ids'], 0, words - 1, of_words
    labels = example['next_sentence_labels']
    yield 'next_sentence_labels', labels, 0, 1, 'IsNext and random'
    if not self.static:
      lengths = example['lengths']
      length = f'config.data.seq_length={tokens}'
      yield 'the number of tokens', lengths, 1, tokens, length
      yield 'boundary', example['boundary'], 1, lengths, 'inside of the tokens'
      return
    yield 'masked_lm_ids', example['masked_lm_ids'], 0, words - 1, of_words
    positions = example['masked_lm_positions']
    yield 'masked_lm_positions', positions, 0, tokens - 1, 'the positions'
    for key in ('segment_ids', 'input_mask', 'masked_lm_weights'):
      yield key, example[key], 0, 1, 'what it can be'


class ArrayRecords(Source):
  """ArrayRecord files, which are read at random."""

  streaming = False

  def __init__(self, shards, **kwargs):
    super().__init__(shards, **kwargs)
    self._reader = array_record_data_source.ArrayRecordDataSource(
        [f'{path}[{first}:{first + n}]' for path, first, n in shards]
    )

  def fetch(self, ids):
    """Returns the serialized records [c] of `ids` int64 [c]."""

    def read(ids):
      return np.array(self._reader.__getitems__(ids.tolist()), object)

    return tf.ensure_shape(
        tf.numpy_function(read, [ids], tf.string, stateful=False), ids.shape
    )
