"""Turns documents of token ids into examples, and these into records."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline import bert_options, bert_records, sentence_pairs

_MASKED_AT_ONCE = 1024


class Document(NamedTuple):
  """A document of the text.

  Attributes:
    key: its file and place.
    tokens: int32 [n], of all its sentences.
    bounds: int [s + 1], where in `tokens` they begin, and the end.
  """

  key: tuple[int, int]
  tokens: np.ndarray
  bounds: np.ndarray


def make(
    options: bert_options.Options,
    own: Sequence[Document],
    others: Sequence[Document],
    copy: int,
    block: int,
) -> bert_records.Examples:
  """Returns the examples of the documents `own`, in a random order.

  Args:
    options: of the data.
    own: at least one; with `others` at least two.
    others: documents that random segments may come from too.
    copy: which duplicate.
    block: which part of the text this is.
  """
  tokens = np.concatenate([d.tokens for d in [*own, *others]])
  begins = np.cumsum([0, *(len(d.tokens) for d in [*own, *others])])
  pool = [
      (d.bounds + begin).tolist()
      for d, begin in zip([*own, *others], begins[:-1], strict=True)
  ]
  pairs = []
  for number, document in enumerate(own):

    def other(rng, number=number):
      drawn = sentence_pairs.below(rng, len(pool) - 1)
      return pool[drawn + (drawn >= number)]

    pairs += sentence_pairs.pairs(
        pool[number],
        other,
        room=options.max_seq_length - 3,
        short_seq_prob=options.short_seq_prob,
        rng=options.random('pairs', copy, *document.key),
    )
  options.random('order', copy, block).shuffle(pairs)
  return _assembled(options, tokens, np.array(pairs))


def _assembled(options, tokens, pairs):
  """Returns the examples of `pairs` [n, 5], taken out of `tokens`."""
  own = options.tokenizer()
  first, first_end, second, second_end, labels = (c[:, None] for c in pairs.T)
  # [CLS] and one [SEP] belong to the first segment.
  boundaries = first_end - first + 2
  lengths = boundaries + second_end - second + 1
  column = np.arange(options.max_seq_length)
  source = np.where(
      column < boundaries, first + column - 1, second + column - boundaries
  )
  ids = tokens[np.clip(source, 0, len(tokens) - 1)]
  ids[:, 0] = own.cls_id
  ids[(column == boundaries - 1) | (column == lengths - 1)] = own.sep_id
  ids[column >= lengths] = 0
  return bert_records.Examples(
      ids, lengths[:, 0], boundaries[:, 0], labels[:, 0]
  )


def records(
    options: bert_options.Options,
    examples: bert_records.Examples,
    copy: int,
    first_id: int,
) -> list[bytes]:
  """Returns `examples` as records, with masks if these are static.

  The masks are those of text_ops.mask_tokens for the epoch `copy` and the ids
  from `first_id` on.
  """
  if options.masking == 'runtime':
    return bert_records.runtime(examples)
  made = []
  for first in range(0, len(examples.ids), _MASKED_AT_ONCE):
    last = first + _MASKED_AT_ONCE
    part = bert_records.Examples(*(a[first:last] for a in examples))
    made += _masked(options, part, copy, first_id + first)
  return made


def _masked(options, examples, copy, first_id):
  # These import TensorFlow, which data masked at run time can do without.
  from input_pipeline import noise, text_ops

  own = options.tokenizer()
  example_ids = np.arange(first_id, first_id + len(examples.ids))
  masked = text_ops.mask_batch(
      examples.ids,
      examples.lengths.astype(np.int32),
      noise.draw(options.seed, copy, example_ids, 1)[:, 0],
      vocab_size=own.vocab_size,
      special_ids=own.special_ids,
      mask_id=own.mask_id,
      fraction=options.masked_lm_prob,
      max_predictions=options.max_predictions_per_seq,
      whole_word=options.whole_word_mask,
      is_continuation=own.is_continuation,
  )
  masked = {key: value.numpy() for key, value in masked.items()}
  return bert_records.static(
      examples._replace(ids=masked['input_ids']),
      masked['masked_lm_positions'],
      masked['masked_lm_ids'],
      masked['masked_lm_weights'],
  )
