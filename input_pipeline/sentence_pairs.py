"""Pairs of segments for next-sentence prediction, as google-research/bert.

The rule of create_pretraining_data.py with two differences in how it draws: a
second segment is never from the document of the first (there it is when ten
draws do not find another), and a long pair is cut in one go.

Tokens stay where they are, in one array of many documents; a document is the
positions in it where its sentences begin, and the one where the last ends.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Bounds = Sequence[int]  # Ascending without repeats, at least two.


class Pair(NamedTuple):
  """Two segments; `is_random` if they do not belong together."""

  first_begin: int
  first_end: int
  second_begin: int
  second_end: int
  is_random: bool


def pairs(
    document: Bounds,
    other: Callable[[random.Random], Bounds],
    *,
    room: int,
    short_seq_prob: float,
    rng: random.Random,
) -> Iterator[Pair]:
  """Yields the pairs of a document.

  Args:
    document: where its sentences begin, and the end.
    other: draws another document.
    room: tokens for both segments, at least 2; longer pairs are cut.
    short_seq_prob: how often a document aims at a length below `room`.
    rng: all choices come from it.
  """
  target = room
  if rng.random() < short_seq_prob:
    target = 2 + below(rng, room - 1)
  at, last = 0, len(document) - 1
  while at < last:
    begin, end = document[at], at + 1
    while end < last and document[end] - begin < target:
      end += 1
    middle = at + 1 + (below(rng, end - at - 1) if end - at > 1 else 0)
    split = document[middle]
    is_random = end - at == 1 or rng.random() < 0.5
    if is_random:
      # What would have come next is not used up.
      second = _stretch(other(rng), target - (split - begin), rng)
      end = middle
    else:
      second = split, document[end]
    yield Pair(*cut((begin, split), second, room, rng), is_random)
    at = end


def cut(
    first: tuple[int, int],
    second: tuple[int, int],
    room: int,
    rng: random.Random,
) -> tuple[int, int, int, int]:
  """Cuts two segments (begin, end) down to `room` tokens.

  As if tokens were taken one by one off the longer segment, the second if they
  are equal, each from a random end of it.
  """
  lengths = first[1] - first[0], second[1] - second[0]
  excess = sum(lengths) - room
  if excess <= 0:
    return *first, *second
  difference = lengths[0] - lengths[1]
  alone = min(excess, abs(difference))
  off_first = (excess - alone) // 2 + (alone if difference > 0 else 0)
  return (
      *_without(first, off_first, rng),
      *_without(second, excess - off_first, rng),
  )


def below(rng: random.Random, limit: int) -> int:
  """Draws from [0, limit); faster than rng.randrange."""
  return int(rng.random() * limit)


def _without(segment, count, rng):
  front = rng.getrandbits(count).bit_count() if count else 0
  return segment[0] + front, segment[1] - (count - front)


def _stretch(document, length, rng):
  """Returns sentences from a random one on: one, or up to `length` tokens."""
  last = len(document) - 1
  begin = below(rng, last)
  end = begin + 1
  while end < last and document[end] - document[begin] < length:
    end += 1
  return document[begin], document[end]
