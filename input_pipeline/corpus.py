"""Text files of documents: one sentence a line, blank lines between documents.

This is the format of google-research/bert. A line ends at LF, with or without
CR; one of white space alone ends a document, and so does the end of a file.
The files together are one stretch of bytes, which can be cut anywhere: a
document belongs to the part in which the blank line right before it begins, or
in which its file begins. So parts are read independently of one another, and
nothing has to be known about the documents beforehand.
"""

import argparse
import contextlib
import glob
import gzip
import lzma
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_OPENERS = {'.gz': gzip.open, '.xz': lzma.open}


class Document(NamedTuple):
  """Lines without white space around them.

  Attributes:
    file: index of its file.
    begin: where in it the first line begins, in bytes.
    lines: at least one, none of them empty.
  """

  file: int
  begin: int
  lines: list[str]


def boolean(text: str) -> bool:
  """Reads the value of a flag."""
  known = {'true': True, '1': True, 'false': False, '0': False}
  if text.lower() not in known:
    raise argparse.ArgumentTypeError(f'{text!r} is neither true nor false')
  return known[text.lower()]


def files(patterns: Sequence[str]) -> list[str]:
  """Returns the files that match, sorted and each once.

  Raises FileNotFoundError for a pattern that no file matches.
  """
  found = set()
  for pattern in patterns:
    if '://' in pattern:
      raise ValueError(f'{pattern}: text is read from local files only')
    found_here = glob.glob(pattern, recursive=True)
    matches = [path for path in found_here if os.path.isfile(path)]
    if not matches:
      raise FileNotFoundError(f'no file matches {pattern}')
    found.update(matches)
  return sorted(found)


def lines(path: str) -> Iterator[str]:
  """Yields the lines of a file, compressed or not.

  Raises ValueError for bytes that are no UTF-8, or a damaged file.
  """
  opener = _OPENERS.get(os.path.splitext(path)[1], open)
  with _naming(path), opener(path, 'rb') as file:
    for line in file:
      yield _decoded(line, path)


def is_compressed(path: str) -> bool:
  return os.path.splitext(path)[1] in _OPENERS


def expand(path: str, target: str):
  """Writes what the compressed file `path` holds to `target`.

  Raises ValueError if it is damaged.
  """
  opener = _OPENERS[os.path.splitext(path)[1]]
  with _naming(path), opener(path, 'rb') as file, open(target, 'wb') as out:
    shutil.copyfileobj(file, out)


def documents(
    paths: Sequence[str], sizes: Sequence[int], begin: int, end: int
) -> Iterator[Document]:
  """Yields the documents of the part [begin, end) of the corpus.

  Args:
    paths: the files.
    sizes: of each, in bytes.
    begin: the first byte of the part, counted through all files.
    end: the byte after its last.

  Raises ValueError for bytes that are no UTF-8.
  """
  first = 0  # Where the file begins.
  for index, (path, size) in enumerate(zip(paths, sizes, strict=True)):
    if first < end and begin < first + size:
      low, high = max(begin - first, 0), end - first
      yield from _of_file(path, index, low, high)
    first += size


def _of_file(path, index, low, high):
  with open(path, 'rb') as file:
    at = low
    if low:
      # The rest of a line that began before; nothing if it ended right here.
      file.seek(low - 1)
      at += len(file.readline()) - 1
    ours, found, start = low == 0, [], 0
    for raw in file:
      line = _decoded(raw, path).strip()
      if line and ours:
        start = start if found else at
        found.append(line)
      elif not line:
        if found:
          yield Document(index, start, found)
          found = []
        ours = at < high
        if not ours:
          return
      elif at >= high:
        return
      at += len(raw)
    if found:
      yield Document(index, start, found)


@contextlib.contextmanager
def _naming(path):
  try:
    yield
  except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as e:
    raise ValueError(f'{path} cannot be expanded: {e}') from e


def _decoded(line, path):
  try:
    return line.decode()
  except UnicodeDecodeError as e:
    raise ValueError(f'{path} is not UTF-8: {e} in {line[:60]!r}') from None
