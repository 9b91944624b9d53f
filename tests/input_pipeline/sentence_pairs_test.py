"""Next-sentence pairs: where the segments come from and how they are cut."""

import collections
import itertools
import random

import pytest

from input_pipeline import sentence_pairs, sentence_split

OTHER = list(range(1000, 1100, 5))


def make(document, room=20, short=0.0, seed=0, other=OTHER):
  return list(
      sentence_pairs.pairs(
          document,
          lambda rng: other,
          room=room,
          short_seq_prob=short,
          rng=random.Random(seed),
      )
  )


@pytest.mark.parametrize('short', [0.0, 1.0])
def test_segments(short):
  rng = random.Random(1)
  for seed in range(200):
    lengths = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 40))]
    document = [0, *itertools.accumulate(lengths)]
    for begin, end, second, second_end, is_random in make(
        document, short=short, seed=seed
    ):
      assert 0 <= begin < end <= document[-1] and second < second_end
      assert end - begin + second_end - second <= 20
      assert (second >= 1000) == is_random


@pytest.mark.parametrize('short', [0.0, 1.0])
def test_every_sentence_is_used_once(short):
  """Those of one token: a pair never has to be cut."""
  for seed in range(200):
    last = 0
    for begin, end, second, second_end, is_random in make(
        range(100), other=range(1000, 1100), short=short, seed=seed
    ):
      assert begin == last
      assert is_random or second == end
      last = end if is_random else second_end
    assert last == 99


def test_pairs_without_a_next_sentence_are_random():
  assert [p.is_random for p in make([0, 5])] == [True]
  # The first of two sentences is a pair by itself, or they are one pair.
  kinds = collections.Counter(
      tuple(p.is_random for p in make([0, 5, 9], seed=s)) for s in range(400)
  )
  assert set(kinds) == {(False,), (True, True)}
  assert 150 < kinds[(False,)] < 250


def test_long_sentences_are_cut_to_the_room():
  (pair,) = make([0, 500])
  assert pair.first_end - pair.first_begin == 15
  assert pair.second_end - pair.second_begin == 5


def one_by_one(first, second, room, rng):
  """create_pretraining_data.py, truncate_seq_pair."""
  first, second = list(range(*first)), list(range(*second))
  while len(first) + len(second) > room:
    longer = first if len(first) > len(second) else second
    del longer[0 if rng.random() < 0.5 else -1]
  return first[0], first[-1] + 1, second[0], second[-1] + 1


@pytest.mark.parametrize(
    ('first', 'second'),
    [((0, 8), (20, 23)), ((0, 3), (20, 28)), ((0, 7), (20, 27))],
)
def test_cuts_are_those_one_by_one(first, second):
  rng = random.Random(0)
  ours, theirs = (
      collections.Counter(cut(first, second, 5, rng) for _ in range(20000))
      for cut in (sentence_pairs.cut, one_by_one)
  )
  assert set(ours) == set(theirs)
  for result, count in theirs.items():
    assert abs(ours[result] - count) < 6 * count**0.5 + 6, result


def test_nothing_is_cut_that_fits():
  rng = random.Random(0)
  assert sentence_pairs.cut((1, 3), (5, 9), 6, rng) == (1, 3, 5, 9)


@pytest.mark.parametrize(
    ('text', 'sentences'),
    [
        ('', []),
        ('One. Two!  "Three?" (Four.) 5 is last', 5),
        ('Mr. Adams and Gen. J. B. Smith of the U.S. Army came. They left.', 2),
        ('It cost $3.5 million, e.g. for No. 7. Why? Nobody knows...', 3),
        ('He said: "Go." and went. Él vino.', 2),
        ('今日は。明日も！「はい。」終', 4),
        ('no stop at all', 1),
    ],
)
def test_sentences(text, sentences):
  found = sentence_split.split(text)
  assert ''.join(found).replace(' ', '') == text.replace(' ', '')
  assert sentences in (found, len(found)), found
