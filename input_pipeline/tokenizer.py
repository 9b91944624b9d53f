"""WordPiece, equal to tokenization.py of google-research/bert, and faster.

What a stretch of text between white space becomes does not depend on what
stands around it, so each is tokenized once and remembered: running text is
then little more than a split and a look-up. New words go through the WordPiece
model of the `tokenizers` library. Its normalizer is not used, for it removes
private-use characters and differs from Google's on some 800 others: what a
character is comes from Python's `unicodedata`, as there.

As in the original: a word that has no pieces is [UNK] as a whole, and so is
one of more than 200 characters; `[MASK]` in the text is three words and no
special token; ideographs are words of their own, kana and Hangul are not.
`lowercase` also removes accents after decomposing (NFD), which takes the marks
off kana and takes Hangul syllables apart: for text that has them use a cased
vocabulary, or one that was made with `lowercase`.

python -m input_pipeline.tokenizer --input 'corpus/*.txt' --output vocab.txt
    --size 30000
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import models

from input_pipeline import corpus, text_words, vocabulary

UNKNOWN, CLASSIFY, SEPARATE, MASK = '[UNK]', '[CLS]', '[SEP]', '[MASK]'
SPECIALS = ('[PAD]', UNKNOWN, CLASSIFY, SEPARATE, MASK)
MOST_CHARACTERS = 200

# Some 50 MB; then it is forgotten, and what is frequent comes back first.
_REMEMBERED = 1 << 18
_LONGEST_REMEMBERED = 64  # characters


class WordPieceTokenizer:
  """Tokenizes with a vocabulary file.

  Attributes:
    vocab: the tokens by id. Id i is line i of the file, counted from 0, where
      a line ends at LF or CRLF and at nothing else.
    lowercase: whether text is put in lower case and loses its accents.
    sha256: of the file, once its lines end at LF and the last one ends.
    pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
    special_ids: ids of those of them that the vocabulary has.
    is_continuation: bool [vocab_size], the pieces that begin with ##.
  """

  def __init__(self, vocab_file: str, lowercase: bool = True):
    """Raises ValueError, which names the line, for a faulty vocabulary."""
    self.vocab, self.sha256 = vocabulary.load(vocab_file)
    self.vocab_size = len(self.vocab)
    self.lowercase = lowercase
    self._file = vocab_file
    # Tokens that are nothing but white space stand for nothing.
    self._ids = {token: i for i, token in enumerate(self.vocab) if token}
    self.unk_id = self._special(UNKNOWN)
    self.special_ids = tuple(
        self._ids[token] for token in SPECIALS if token in self._ids
    )
    self.is_continuation = np.array(
        [token.startswith(vocabulary.CONTINUES) for token in self.vocab]
    )
    self._model = models.WordPiece(
        self._ids,
        unk_token=UNKNOWN,
        max_input_chars_per_word=MOST_CHARACTERS,
    )
    self._words = _Memory(self._of_word)
    self._stretches = _Memory(self._of_stretch)

  pad_id = property(lambda self: self._special('[PAD]'))
  cls_id = property(lambda self: self._special(CLASSIFY))
  sep_id = property(lambda self: self._special(SEPARATE))
  mask_id = property(lambda self: self._special(MASK))

  def encode(self, text: str) -> list[int]:
    """Returns the ids of `text`, without special tokens."""
    found = map(self._stretches.__getitem__, text_words.stretches(text))
    return list(itertools.chain.from_iterable(found))

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    return [self.encode(text) for text in texts]

  def tokenize(self, text: str) -> list[str]:
    """Returns the tokens of `text` as the vocabulary has them."""
    return [self.vocab[i] for i in self.encode(text)]

  def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns `encode(text)` and where in `text` each token comes from.

    (begin, end) count characters of `text`, end exclusive. Accents that were
    removed belong to the token before them; [UNK] spans its word.
    """
    ids, spans = [], []
    words = text_words.split_with_places(text, self.lowercase)
    for word, places in words:
      at = 0
      for i in self._words[word]:
        length = len(self.vocab[i]) - (2 if at else 0)
        end = len(word) if i == self.unk_id else at + length
        ids.append(i)
        spans.append((places[at][0], places[end - 1][1]))
        at = end
    return ids, spans

  def _special(self, token):
    if token not in self._ids:
      raise ValueError(
          f'{self._file}: no line is {token}, one of {" ".join(SPECIALS)}'
      )
    return self._ids[token]

  def _of_stretch(self, stretch):
    words = text_words.split(stretch, self.lowercase)
    found = map(self._words.__getitem__, words)
    return tuple(itertools.chain.from_iterable(found))

  def _of_word(self, word):
    try:
      return tuple(token.id for token in self._model.tokenize(word))
    except UnicodeEncodeError:  # Half of a surrogate pair is in no vocabulary.
      return (self.unk_id,)


class _Memory(dict):
  """Remembers results of a function, up to a number of them."""

  def __init__(self, function):
    super().__init__()
    self._function = function

  def __missing__(self, text):
    result = self._function(text)
    if len(text) <= _LONGEST_REMEMBERED:
      if len(self) >= _REMEMBERED:
        self.clear()
      self[text] = result
    return result


def train_vocab(
    files: Sequence[str],
    size: int,
    lowercase: bool = True,
    most_characters: int = 1000,
) -> list[str]:
  """Returns a vocabulary of `size` tokens for text files.

  The special tokens come first, then the single characters, then the pieces in
  the order in which they were merged. The same text gives the same vocabulary.

  Args:
    files: text in UTF-8, or that compressed, as .gz or .xz.
    size: the number of tokens.
    lowercase: as for the tokenizer that will use it.
    most_characters: the rarer ones of more than so many are left out.

  Raises ValueError for text without words or with too few pieces.
  """
  lines = itertools.chain.from_iterable(map(corpus.lines, files))
  return vocabulary.train(
      (text_words.split(line, lowercase) for line in lines),
      size,
      SPECIALS,
      most_characters,
  )


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      'python -m input_pipeline.tokenizer',
      description='Makes a WordPiece vocabulary from text.',
      allow_abbrev=False,
  )
  parser.add_argument(
      '--input', required=True, nargs='+', help='files or globs of them'
  )
  parser.add_argument('--output', required=True, help='the file to write')
  parser.add_argument('--size', type=int, default=30000, help='in tokens')
  parser.add_argument(
      '--lowercase',
      type=corpus.boolean,
      nargs='?',
      const=True,
      default=True,
      help='true (the default) or false',
  )
  try:
    args = parser.parse_args(argv)
  except SystemExit as e:
    return e.code
  try:
    vocab = train_vocab(corpus.files(args.input), args.size, args.lowercase)
    with open(args.output, 'w', encoding='utf-8', newline='\n') as file:
      file.writelines(f'{token}\n' for token in vocab)
  except (ValueError, OSError) as e:
    print(f'error: {e}', file=sys.stderr)
    return 2
  print(f'{args.output}: {len(vocab)} tokens')
  return 0


if __name__ == '__main__':
  sys.exit(main())
