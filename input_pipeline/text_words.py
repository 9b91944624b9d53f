"""Cuts text into words and punctuation, as google-research/bert does.

The rules of BasicTokenizer in its tokenization.py, put as tables for
str.translate that are filled as characters come up. The functions that they
are made of take one character; what it is comes from Python's `unicodedata`.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator

# str.split() ends words at these, which Google removes before it splits.
_NO_SPACES = re.compile('[\x0b\x0c\x1c-\x1f\x85]')
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def split(text: str, lowercase: bool = True) -> list[str]:
  """Returns what WordPiece cuts into pieces: words and punctuation."""
  text = ' '.join(_NO_SPACES.sub('', text).translate(_CLEAN).split())
  if lowercase:
    text = unicodedata.normalize('NFD', text.lower()).translate(_NO_MARKS)
  return text.translate(_PUNCTUATION).split()


def stretches(text: str) -> list[str]:
  """Returns the parts of `text` between white space.

  What `split` makes of each does not depend on the others.
  """
  # Without control characters, so for most lines, there is nothing to remove.
  return (text if text.isprintable() else _NO_SPACES.sub('', text)).split()


def split_with_places(
    text: str, lowercase: bool = True
) -> Iterator[tuple[str, list[tuple[int, int]]]]:
  """Yields `split` one by one, with (begin, end) in `text` per character."""
  chars = []  # (character, begin, end)
  for i, char in enumerate(text):
    clean = '' if _NO_SPACES.match(char) else _CLEAN[ord(char)] or ''
    chars += [(c, i, i + 1) for c in clean]
  if lowercase:
    chars = _lowered(chars)
  word, places = '', []
  for char, begin, end in chars:
    alone = _PUNCTUATION[ord(char)] != char
    if word and (alone or char.isspace()):
      yield word, places
      word, places = '', []
    if alone:
      yield char, [(begin, end)]
    elif not char.isspace():
      word += char
      places.append((begin, end))
  if word:
    yield word, places


def _lowered(chars):
  """Returns (character, begin, end) in lower case and without marks."""
  # As one string, for the last sigma of a word has a form of its own.
  lower = iter(''.join(c for c, _, _ in chars).lower())
  parts = []  # (combining class, character, begin, end)
  for char, begin, end in chars:
    for part in itertools.islice(lower, len(char.lower())):
      for c in unicodedata.normalize('NFD', part):
        parts.append((unicodedata.combining(c), c, begin, end))
  result = []
  # NFD sorts each run of marks by class.
  for is_run, run in itertools.groupby(parts, lambda part: part[0] > 0):
    for _, c, begin, end in sorted(run, key=lambda p: p[0]) if is_run else run:
      if _NO_MARKS[ord(c)] is not None:
        result.append((c, begin, end))
      elif result and not result[-1][0].isspace():
        before, first, last = result[-1]
        result[-1] = before, first, max(last, end)
  return result


class _Table(dict):
  """A table for str.translate that asks a function, once per character."""

  def __init__(self, function):
    super().__init__()
    self._function = function

  def __missing__(self, code):
    result = self[code] = self._function(chr(code))
    return result


def _cleaned(char):
  if any(low <= ord(char) <= high for low, high in _IDEOGRAPHS):
    return f' {char} '
  if char in '\t\n\r' or unicodedata.category(char) == 'Zs':
    return ' '
  # Private-use (Co) and unassigned (Cn) characters stay.
  removed = char == '\ufffd' or unicodedata.category(char) in ('Cc', 'Cf')
  return None if removed else char


def _without_mark(char):
  return None if unicodedata.category(char) == 'Mn' else char


def _set_apart(char):
  # All of ASCII but letters and digits: also what Unicode calls symbols.
  ascii_sign = '!' <= char <= '~' and not char.isalnum()
  if ascii_sign or unicodedata.category(char).startswith('P'):
    return f' {char} '
  return char


_CLEAN = _Table(_cleaned)
_NO_MARKS = _Table(_without_mark)
_PUNCTUATION = _Table(_set_apart)
