"""Masks for masked language models, drawn while training.

Which tokens an example has to predict is a function of (seed, epoch, example
id) alone, through the hash of noise.py, so that it changes from epoch to epoch
and neither chunk, process nor padding matter. `mask_tokens` is the rule, for
one example in NumPy; `mask_batch` gives the same bits for many, in TensorFlow.

The rule is that of google-research/bert, create_pretraining_data.py. Random
words come from the whole vocabulary, special tokens among them, as there. Two
things differ: no special token is ever selected, be it [UNK], and a word does
not go on over one, where a second segment that begins inside of a word would
there be counted to the last word of the first.
"""

from collections.abc import Sequence

import numpy as np

from input_pipeline import noise
from input_pipeline.host import tf

# Words are ranked by 47 random bits; their numbers below these break ties.
_RANK_BITS = 16
# Of the tokens selected, 80 % become [MASK], 10 % stay, 10 % become any word.
_MASKED, _MASKED_OR_KEPT = 0.8, 0.9


def mask_tokens(
    ids: np.ndarray,
    *,
    vocab_size: int,
    special_ids: Sequence[int],
    mask_id: int,
    seed: int,
    epoch: int,
    example_id: int,
    fraction: float,
    max_predictions: int,
    whole_word: bool,
    is_continuation: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
  """Returns one example with tokens hidden, and what they were.

  Args:
    ids: int [n], tokens with the special ones, without padding.
    vocab_size: random words lie in [0, vocab_size).
    special_ids: tokens that are never selected.
    mask_id: the id of [MASK].
    seed: of the run.
    epoch: how often the example was seen before.
    example_id: its number in the data.
    fraction: of the n tokens to select, rounded half to even, at least one.
    max_predictions: the largest number to select.
    whole_word: selects all pieces of a word or none; a word that would pass
      the number to select is left out, and shorter ones are tried. What a
      piece becomes is drawn for each by itself.
    is_continuation: bool [vocab_size], the pieces that begin with ##.

  Returns:
    int32 input_ids [n]; int32 masked_lm_positions in ascending order and
    masked_lm_ids, float32 masked_lm_weights, each [max_predictions], 0 where
    nothing is predicted.

  Raises ValueError for `whole_word` without `is_continuation`.
  """
  _check(whole_word, is_continuation)
  ids = np.asarray(ids, np.int32)
  words = _words(ids, special_ids, is_continuation if whole_word else None)
  key = noise.draw(seed, epoch, example_id, 1)[0]
  rank = _rank(key, tf.range(len(words), dtype=tf.int64)).numpy()
  wanted = min(max_predictions, max(1, round(len(ids) * fraction)))
  chosen = []
  for word in np.argsort(-rank):
    if len(chosen) + len(words[word]) <= wanted:
      chosen += words[word]
  chosen = np.array(sorted(chosen), np.int32)
  share, random_word = (x.numpy() for x in _draws(key, chosen, vocab_size))
  hidden = ids.copy()
  kept = np.where(share < np.float32(_MASKED_OR_KEPT), ids[chosen], random_word)
  hidden[chosen] = np.where(share < np.float32(_MASKED), mask_id, kept)
  rest = (0, max_predictions - len(chosen))
  return {
      'input_ids': hidden,
      'masked_lm_positions': np.pad(chosen, rest),
      'masked_lm_ids': np.pad(ids[chosen], rest),
      'masked_lm_weights': np.pad(np.ones(len(chosen), np.float32), rest),
  }


def mask_batch(
    ids: tf.Tensor,
    lengths: tf.Tensor,
    keys: tf.Tensor,
    *,
    vocab_size: int,
    special_ids: Sequence[int],
    mask_id: int,
    fraction: float,
    max_predictions: int,
    whole_word: bool,
    is_continuation: np.ndarray | None = None,
) -> dict[str, tf.Tensor]:
  """Returns what `mask_tokens` gives for each row, input_ids [c, s] padded.

  Args:
    ids: int32 [c, s], padded at the end.
    lengths: int32 [c], tokens of each row.
    keys: uint64 [c], noise.draw(seed, epoch, example_id, 1)[0] of each.
    vocab_size, ...: as in `mask_tokens`.
  """
  _check(whole_word, is_continuation)
  size = ids.shape[1]
  usable = tf.sequence_mask(lengths, size)
  for special in special_ids:
    usable &= ids != special
  wanted = tf.round(tf.cast(lengths, tf.float64) * fraction)
  wanted = tf.clip_by_value(tf.cast(wanted, tf.int32), 1, max_predictions)
  if whole_word:
    inside = tf.gather(tf.constant(is_continuation, tf.bool), ids)
    chosen = _choose_words(usable, inside, wanted, keys)
  else:
    chosen = _choose_tokens(usable, wanted, keys, max_predictions)
  count = min(max_predictions, size)
  # As numbers that fall from left to right, the largest are the first.
  falling = tf.where(chosen, tf.range(size, 0, -1), 0)
  positions = size - tf.math.top_k(falling, count).values
  real = positions < size
  positions = tf.where(real, positions, 0)
  originals = tf.gather(ids, positions, batch_dims=1)
  share, random_words = _draws(keys[:, tf.newaxis], positions, vocab_size)
  hidden = tf.where(share < _MASKED_OR_KEPT, originals, random_words)
  hidden = tf.where(share < _MASKED, mask_id, hidden)
  rest = [[0, 0], [0, max_predictions - count]]
  return {
      'input_ids': _replaced(ids, positions, real, hidden),
      'masked_lm_positions': tf.pad(positions, rest),
      'masked_lm_ids': tf.pad(tf.where(real, originals, 0), rest),
      'masked_lm_weights': tf.pad(tf.cast(real, tf.float32), rest),
  }


def _check(whole_word, is_continuation):
  if whole_word and is_continuation is None:
    raise ValueError(
        'whole_word=True needs is_continuation, bool [vocab_size]: the pieces'
        ' that begin with ##'
    )


def _words(ids, special_ids, is_continuation):
  """Returns lists of positions; each token is a word without the last."""
  words = []
  for i, token in enumerate(ids):
    if token in special_ids:
      continue
    inside = is_continuation is not None and is_continuation[token]
    if inside and words and words[-1][-1] == i - 1:
      words[-1].append(i)
    else:
      words.append([i])
  return words


def _rank(key, words):
  """Returns int64 [...], distinct for each word of an example, >= 0."""
  bits = noise.fold(key, 3 * words)
  high = tf.cast(noise.shift_right(bits, _RANK_BITS + 1), tf.int64)
  return high * (1 << _RANK_BITS) + words


def _draws(key, positions, vocab_size):
  """Returns what the token at each position becomes: a share and a word."""
  positions = 3 * tf.cast(positions, tf.int64)
  share = noise.uniform(noise.fold(key, positions + 1))
  return share, noise.below(noise.fold(key, positions + 2), vocab_size)


def _choose_tokens(usable, wanted, keys, most):
  """Returns bool [c, s]: the `wanted` [c] usable tokens of highest rank."""
  number = tf.cumsum(tf.cast(usable, tf.int64), axis=1, exclusive=True)
  rank = tf.where(usable, _rank(keys[:, tf.newaxis], number), -1)
  highest = tf.math.top_k(rank, min(most, usable.shape[1])).values
  last = tf.minimum(wanted, highest.shape[1]) - 1
  lowest = tf.gather(highest, last[:, tf.newaxis], batch_dims=1)
  return rank >= tf.maximum(lowest, 0)


def _choose_words(usable, inside, wanted, keys):
  """Returns bool [c, s]: words by rank, but for those that do not fit."""
  rows, size = tf.shape(usable)[0], usable.shape[1]
  before = tf.pad(usable[:, :-1], [[0, 0], [1, 0]])
  starts = usable & ~(inside & before)
  word = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1
  count = word[:, -1:] + 1
  # A token that is not usable counts to a word past the last.
  word = tf.where(usable, word, size)
  row = tf.range(rows)[:, tf.newaxis]
  sizes = tf.math.unsorted_segment_sum(
      tf.ones_like(word), row * (size + 1) + word, rows * (size + 1)
  )
  sizes = tf.reshape(sizes, (rows, size + 1))
  numbers = tf.range(size)
  rank = _rank(keys[:, tf.newaxis], tf.cast(numbers, tf.int64))
  rank = tf.where(numbers < count, rank, -1)
  order = tf.math.top_k(rank, size).indices
  taken = _fill(tf.gather(sizes, order, batch_dims=1), order < count, wanted)
  places = tf.stack([tf.broadcast_to(row, tf.shape(order)), order], axis=2)
  taken = tf.scatter_nd(places, tf.cast(taken, tf.int32), (rows, size + 1))
  return tf.gather(taken, word, batch_dims=1) > 0


def _fill(sizes, open_, wanted):
  """Returns bool [c, w]: the words taken one after the other if they fit.

  All up to the first that does not fit are taken at once, and those that are
  larger than what is left then are out. This is less each time, so it ends
  after as many rounds as the longest word has pieces.
  """
  left = wanted[:, tf.newaxis]
  taken = tf.zeros_like(open_)

  def one_round(open_, left, taken):
    total = tf.cumsum(tf.where(open_, sizes, 0), axis=1)
    fits = open_ & (total <= left)
    left -= tf.reduce_sum(tf.where(fits, sizes, 0), axis=1, keepdims=True)
    return open_ & ~fits & (sizes <= left), left, taken | fits

  def some(open_, left, taken):
    return tf.reduce_any(open_)

  return tf.while_loop(some, one_round, (open_, left, taken))[2]


def _replaced(ids, positions, real, values):
  """Returns `ids` [c, s] with `values` [c, p] at the real positions."""
  rows, size = tf.shape(ids)[0], ids.shape[1]
  # The others go to a column that is cut off again.
  column = tf.where(real, positions, size)
  row = tf.broadcast_to(tf.range(rows)[:, tf.newaxis], tf.shape(column))
  wide = tf.pad(ids, [[0, 0], [0, 1]])
  places = tf.stack([row, column], axis=2)
  return tf.tensor_scatter_nd_update(wide, places, values)[:, :size]
