"""Masks: the rules of google-research/bert, and one rule in two forms."""

import random

import numpy as np
import pytest

from input_pipeline import noise, text_ops
from input_pipeline.host import tf

CLS, SEP, MASK = 2, 3, 4
SPECIAL = (0, 1, CLS, SEP, MASK)


def _mask(ids, **changed):
  options = {
      'vocab_size': 40,
      'special_ids': SPECIAL,
      'mask_id': MASK,
      'seed': 0,
      'epoch': 0,
      'example_id': 0,
      'fraction': 0.15,
      'max_predictions': 20,
      'whole_word': False,
  }
  return text_ops.mask_tokens(np.array(ids), **(options | changed))


def _sentence(length, vocab_size=40):
  words = np.arange(length - 2) % (vocab_size - 5) + 5
  return np.array([CLS, *words, SEP])


@pytest.mark.parametrize(
    ('length', 'most', 'number'),
    # Python 3 rounds halves to even: 1.5 -> 2, 4.5 -> 4, 76.8 -> 77.
    [(3, 20, 1), (10, 20, 2), (30, 20, 4), (128, 20, 19), (128, 5, 5),
     (512, 80, 77), (512, 76, 76)],
)
def test_the_number_of_predictions(length, most, number):
  ids = _sentence(length)
  masked = _mask(ids, max_predictions=most)
  weights = masked['masked_lm_weights']
  assert weights.tolist() == [1] * number + [0] * (most - number)
  positions = masked['masked_lm_positions']
  assert (np.diff(positions[:number]) > 0).all()
  np.testing.assert_array_equal(
      masked['masked_lm_ids'][:number], ids[positions[:number]]
  )
  assert not positions[number:].any()
  assert not masked['masked_lm_ids'][number:].any()
  others = np.delete(np.arange(length), positions[:number])
  np.testing.assert_array_equal(masked['input_ids'][others], ids[others])
  assert {k: v.dtype for k, v in masked.items()} == {
      'input_ids': np.int32,
      'masked_lm_positions': np.int32,
      'masked_lm_ids': np.int32,
      'masked_lm_weights': np.float32,
  }


def test_shares_of_eighty_ten_ten():
  """10,000 masked tokens of 40 words: google-research/bert#166."""
  hidden, kept, words = 0, 0, []
  # Words first, so that words and positions have the same numbers.
  ids = np.roll(_sentence(128), -1)
  for example in range(530):
    masked = _mask(ids, example_id=example)
    at = masked['masked_lm_positions'][masked['masked_lm_weights'] > 0]
    assert not np.isin(ids[at], SPECIAL).any()
    after = masked['input_ids'][at]
    hidden += (after == MASK).sum()
    kept += (after == ids[at]).sum()
    words += after[(after != MASK) & (after != ids[at])].tolist()
  total = hidden + kept + len(words)
  assert total == 530 * 19
  # A random word is in 1 case of 40 the token itself, in another [MASK].
  assert abs(hidden / total - (0.8 + 0.1 / 40)) < 0.01
  assert abs(kept / total - (0.1 + 0.1 / 40)) < 0.01
  # From the whole vocabulary, special tokens among them.
  assert set(words) == set(range(40)) - {MASK}
  counts = np.bincount(words, minlength=40)[[0, 1, 2, 3, *range(5, 40)]]
  mean = counts.mean()
  assert ((counts - mean) ** 2 / mean).sum() < 70  # chi-square, 38: p = 0.001


def test_every_position_is_as_likely():
  ids = _sentence(18)
  counts = np.zeros(18)
  for example in range(800):
    masked = _mask(ids, example_id=example)
    counts[masked['masked_lm_positions'][masked['masked_lm_weights'] > 0]] += 1
  assert counts[0] == counts[17] == 0
  mean = 800 * 3 / 16
  assert ((counts[1:17] - mean) ** 2 / mean).sum() < 37.7  # 15: p = 0.001


@pytest.mark.parametrize('changed', ['seed', 'epoch', 'example_id'])
def test_masks_differ_by(changed):
  ids = _sentence(128)
  first, again = _mask(ids), _mask(ids)
  np.testing.assert_equal(first, again)
  other = _mask(ids, **{changed: 1})
  shared = np.intersect1d(*(m['masked_lm_positions'] for m in (first, other)))
  assert len(shared) < 10


@pytest.mark.parametrize('budget', [4, 3, 2])
def test_whole_words(budget):
  """`unaffable` is un ##aff ##able: google-research/bert#910."""
  ids = [CLS, *[5, 6, 7] * 6, SEP]
  is_continuation = np.arange(40) > 5
  for example in range(20):
    masked = _mask(
        ids,
        fraction=0.5,
        max_predictions=budget,
        whole_word=True,
        is_continuation=is_continuation,
        example_id=example,
    )
    number = int(masked['masked_lm_weights'].sum())
    assert number == budget // 3 * 3
    first = masked['masked_lm_positions'][:number:3]
    assert (first % 3 == 1).all()
    np.testing.assert_array_equal(
        masked['masked_lm_positions'][:number],
        (first[:, None] + [0, 1, 2]).ravel(),
    )


def test_a_word_that_does_not_fit_makes_room_for_a_shorter_one():
  ids = [CLS, 5, 6, 6, 7, 5, 6, 6, SEP]  # Words of 3, 1 and 3 pieces.
  for example in range(20):
    masked = _mask(
        ids,
        fraction=0.3,  # Of 9: 3.
        whole_word=True,
        is_continuation=np.arange(40) == 6,
        example_id=example,
    )
    number = int(masked['masked_lm_weights'].sum())
    assert masked['masked_lm_positions'][:number].tolist() in (
        [1, 2, 3], [4], [5, 6, 7],
    )
  with pytest.raises(ValueError, match='needs is_continuation'):
    _mask(ids, whole_word=True)


@pytest.mark.parametrize('whole_word', [False, True])
def test_hardly_anything_to_mask(whole_word):
  """A vocabulary of one word ends, and special tokens alone give nothing."""
  options = {
      'vocab_size': 6,
      'whole_word': whole_word,
      'is_continuation': np.zeros(6, bool),
  }
  masked = _mask([CLS, 5, 5, 5, SEP], **options)
  assert masked['masked_lm_weights'].sum() == 1
  nothing = _mask([CLS, SEP], **options)
  assert nothing['input_ids'].tolist() == [CLS, SEP]
  assert not any(v.any() for k, v in nothing.items() if k != 'input_ids')


def test_a_token_with_id_zero_counts():
  """By its weight: mosaicml/examples#457."""
  masked = _mask([CLS, 0, SEP], special_ids=(CLS, SEP, MASK))
  assert masked['masked_lm_weights'].sum() == 1
  assert masked['masked_lm_positions'][0] == 1
  assert masked['masked_lm_ids'][0] == 0


def _words_of_google(ids, is_continuation):
  words = []
  for i, token in enumerate(ids):
    if token in SPECIAL:
      continue
    if words and is_continuation[token]:
      words[-1].append(i)
    else:
      words.append([i])
  return words


def test_words_are_those_of_google():
  """Selected pieces are whole sets of its `cand_indexes`, one segment."""
  rng = random.Random(0)
  is_continuation = np.arange(40) >= 20
  for example in range(50):
    ids = [CLS, 5, *rng.choices(range(5, 40), k=40), SEP]
    masked = _mask(
        ids, whole_word=True, is_continuation=is_continuation,
        example_id=example,
    )
    number = int(masked['masked_lm_weights'].sum())
    chosen = set(masked['masked_lm_positions'][:number].tolist())
    words = _words_of_google(ids, is_continuation)
    # What is left has no room for any other word.
    for word in words:
      inside = chosen.intersection(word)
      assert inside in (set(), set(word))
      assert inside or len(word) > round(len(ids) * 0.15) - number


@pytest.mark.parametrize('whole_word', [False, True])
@pytest.mark.parametrize(('size', 'most'), [(24, 5), (64, 12), (12, 20)])
def test_a_chunk_gives_what_each_example_gives_alone(whole_word, size, most):
  rng = np.random.default_rng(size)
  rows, vocab_size = 48, 500
  options = {
      'vocab_size': vocab_size,
      'special_ids': SPECIAL,
      'mask_id': MASK,
      'fraction': 0.15,
      'max_predictions': most,
      'whole_word': whole_word,
      'is_continuation': rng.random(vocab_size) < 0.6,
  }
  lengths = rng.integers(1, size + 1, rows)
  ids = rng.integers(0, vocab_size, (rows, size))
  ids[rng.random((rows, size)) < 0.2] = SEP
  ids[:3] = SEP
  ids[np.arange(size) >= lengths[:, None]] = 0
  epochs, examples = rng.integers(0, 1 << 40, (2, rows))
  keys = noise.draw(7, tf.constant(epochs), tf.constant(examples), 1)[:, 0]
  chunk = tf.function(lambda i, n, k: text_ops.mask_batch(i, n, k, **options))(
      tf.constant(ids, tf.int32), tf.constant(lengths, tf.int32), keys
  )
  for row, length in enumerate(lengths):
    one = text_ops.mask_tokens(
        ids[row, :length],
        seed=7, epoch=epochs[row], example_id=examples[row], **options,
    )
    one['input_ids'] = np.pad(one['input_ids'], (0, size - length))
    for key, value in one.items():
      got = chunk[key][row].numpy()
      assert got.dtype == value.dtype
      np.testing.assert_array_equal(got, value, err_msg=key)
