"""Vocabularies of WordPiece: reading a file of them, learning one from text."""

import collections
import hashlib
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

CONTINUES = '##'
# Longer words are no words, and [UNK] to the tokenizer beyond 200.
_LONGEST_WORD = 100


def load(path: str) -> tuple[list[str], str]:
  """Returns the tokens of a vocabulary file by id, and its SHA-256.

  A line ends at LF or CRLF: U+2028 and U+0085 are tokens of some multilingual
  vocabularies. White space around a token is taken off, as google-research/bert
  does; a token of nothing else becomes ''. The hash is of the bytes with LF at
  the end of every line.

  Raises ValueError, which names the line, for a duplicate, an empty line or
  bytes that are no UTF-8; FileNotFoundError.
  """
  try:
    with open(path, 'rb') as file:
      data = file.read().replace(b'\r\n', b'\n')
  except FileNotFoundError:
    raise FileNotFoundError(f'there is no vocabulary {path}') from None
  if not data:
    raise ValueError(f'{path} is empty: expected one token a line')
  if data.startswith(b'\xef\xbb\xbf'):
    raise ValueError(
        f'{path} line 1 begins with a byte-order mark, which would be part of'
        ' the token: save it without'
    )
  data = data if data.endswith(b'\n') else data + b'\n'
  vocab, first_line = [], {}
  for number, line in enumerate(data[:-1].split(b'\n'), 1):
    try:
      token = line.decode().strip()
    except UnicodeDecodeError as e:
      raise ValueError(f'{path} line {number} is not UTF-8: {e}') from None
    if not line:
      raise ValueError(
          f'{path} line {number} is empty: it would take an id; remove it'
      )
    if token and token in first_line:
      raise ValueError(
          f'{path} line {number}: {token!r} is on line {first_line[token]} too'
      )
    first_line[token] = number
    vocab.append(token)
  return vocab, hashlib.sha256(data).hexdigest()


def train(
    texts: Iterable[Sequence[str]],
    size: int,
    specials: Sequence[str],
    most_characters: int,
) -> list[str]:
  """Returns `size` tokens for `texts`, each a sequence of words.

  Words longer than 100 characters, and those with a character that is not
  among the `most_characters` frequent ones, are left out. Raises ValueError if
  there are no words, or if they do not give so many tokens.
  """
  counts = collections.Counter()
  for words in texts:
    counts.update(words)
  chars = collections.Counter()
  for word, count in counts.items():
    for char in word:
      chars[char] += count
  if not chars:
    raise ValueError('there are no words in the text')
  by_count = sorted(chars, key=lambda char: (-chars[char], char))
  alphabet = sorted(by_count[:most_characters])
  # In fixed places from the start: the library numbers what it meets in an
  # order that changes from run to run, and breaks ties by these numbers.
  start = [*specials, *alphabet, *(CONTINUES + char for char in alphabet)]
  if size <= len(start):
    raise ValueError(
        f'a vocabulary of {size}: {len(specials)} special tokens and'
        f' {len(alphabet)} characters, first and later in a word, are'
        f' {len(start)} alone'
    )
  known = set(alphabet)
  tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=specials[1]))
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  tokenizer.train_from_iterator(
      (
          f'{word} ' * count
          for word, count in counts.items()
          if len(word) <= _LONGEST_WORD and known.issuperset(word)
      ),
      trainers.WordPieceTrainer(
          vocab_size=size, special_tokens=start, show_progress=False
      ),
  )
  ids = tokenizer.get_vocab()
  if len(ids) < size:
    raise ValueError(
        f'a vocabulary of {size}: the text gives {len(ids)} tokens only'
    )
  return sorted(ids, key=ids.get)
