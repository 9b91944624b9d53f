"""Labelled sentences and pairs from CSV and TSV files, and their labels."""

import csv
import io
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline import order
from input_pipeline.host import tf

HEADERS = (
    ['sentence', 'label'],
    ['sentence', 'sentence2', 'label'],
    ['sentence'],
    ['sentence', 'sentence2'],
)
SUFFIXES = ('.csv', '.tsv')
# Of a single file one part of so many is held out for evaluation.
HELD_OUT = 10


class Rows(NamedTuple):
  """Examples as they are written.

  Attributes:
    path: where they come from.
    first: the texts.
    second: the second texts of pairs, or None.
    labels: '' where there is none.
    lines: the line of `path` that each came from.
  """

  path: str
  first: list[str]
  second: list[str] | None
  labels: list[str]
  lines: list[int]

  def take(self, ids: Sequence[int]) -> 'Rows':
    """Returns the rows `ids`."""
    def pick(values):
      return values if values is None else [values[i] for i in ids]

    return Rows(self.path, *map(pick, self[1:]))


class Table(NamedTuple):
  """A header and (line number, fields) of each row."""

  header: list[str]
  rows: list[tuple[int, list[str]]]


def read_table(path: str, *, quoted: bool, header: Sequence[str] = ()) -> Table:
  """Reads a comma-separated file, or if not `quoted` a tab-separated one.

  Blank lines are passed over. `header` is given for files without one.

  Raises:
    FileNotFoundError: no such file.
    ValueError: a line that is no UTF-8 or no CSV, which it names; no line.
  """
  if not tf.io.gfile.exists(path):
    raise FileNotFoundError(f'there is no file {path}')
  with tf.io.gfile.GFile(path, 'rb') as file:
    data = file.read()
  try:
    text = data.decode('utf-8').removeprefix('\ufeff')  # Excel writes one.
  except UnicodeDecodeError as e:
    line = data[: e.start].count(b'\n') + 1
    raise ValueError(f'{path}:{line}: not UTF-8: {e.reason}') from None
  rows = list(_commas(path, text) if quoted else _tabs(text))
  header = list(header)
  if not header and rows:
    header = rows.pop(0)[1]
  if not rows:
    raise ValueError(f'{path} has no examples')
  return Table(header, rows)


def _tabs(text):
  # Not splitlines(): that also splits at U+2028 and the like.
  for number, line in enumerate(text.split('\n'), 1):
    if line.strip():
      yield number, line.rstrip('\r').split('\t')


def _commas(path, text):
  reader = csv.reader(io.StringIO(text, newline=''), strict=True)
  first = 1
  try:
    for fields in reader:
      if fields:
        yield first, fields
      first = reader.line_num + 1
  except csv.Error as e:
    raise ValueError(f'{path}:{first}: no valid CSV: {e}') from None


def read(path: str, split: str) -> Rows:
  """Returns the rows of a split of your own data.

  Args:
    path: a folder with `<split>.csv` or `.tsv`, or one such file, of which a
      tenth of the distinct texts is 'dev' and the rest 'train'. The header is
      `sentence,label` or `sentence,sentence2,label`; without the label nothing
      is known to compare with. Only .csv may quote.
    split: its name.

  Raises:
    FileNotFoundError: no such file.
    ValueError: a header or a line that does not fit.
  """
  if not tf.io.gfile.isdir(path):
    return _part(_read_file(path), split)
  found = [os.path.join(path, split + s) for s in SUFFIXES]
  there = [p for p in found if tf.io.gfile.exists(p)]
  if len(there) != 1:
    raise FileNotFoundError(
        f'data.path={path}: expected one of {" and ".join(found)}, found'
        f' {len(there)}'
    )
  return _read_file(there[0])


def _read_file(path):
  if not path.endswith(SUFFIXES):
    raise ValueError(f'data.path={path}: must end in {" or ".join(SUFFIXES)}')
  header, rows = read_table(path, quoted=path.endswith('.csv'))
  if header not in HEADERS:
    raise ValueError(
        f'{path}:1: the first line must be sentence,label or'
        f' sentence,sentence2,label, found {",".join(header)!r}'
    )
  for number, fields in rows:
    if len(fields) != len(header):
      raise ValueError(
          f'{path}:{number}: {len(fields)} columns, the first line has'
          f' {len(header)}'
      )
  values = zip(*(fields for _, fields in rows), strict=True)
  columns = dict(zip(header, values, strict=True))
  second = columns.pop('sentence2', None)
  labels = columns.pop('label', [''] * len(rows))
  return Rows(
      path,
      list(columns['sentence']),
      second and list(second),
      [label.strip() for label in labels],
      [number for number, _ in rows],
  )


def _part(rows, split):
  """Returns the training or the held-out part of a single file's rows."""
  if split not in ('train', 'dev'):
    raise ValueError(
        f"{rows.path} is one file, which has the splits 'train' and 'dev', not"
        f' {split!r}'
    )
  # By text, so that a repeated sentence is not on both sides.
  second = rows.second or [''] * len(rows.first)
  numbers = {}
  for pair in zip(rows.first, second, strict=True):
    numbers.setdefault(pair, len(numbers))
  out = held_out(len(numbers), 1 / HELD_OUT)
  ids = [
      i
      for i, pair in enumerate(zip(rows.first, second, strict=True))
      if (numbers[pair] in out) == (split == 'dev')
  ]
  if not ids:
    raise ValueError(f'{rows.path}: too few examples to hold some out')
  return rows.take(ids)


def held_out(count: int, share: float, begin: float = 0.0) -> set[int]:
  """Returns the same `share` of range(count) each time.

  Sets with `begin` from the end of another's share on are disjoint from it.
  """
  ids = order.ids_at(0, num_examples=count, batch_size=count, seed=0)
  low, high = round(begin * count), round((begin + share) * count)
  return {int(i) for i in ids[low:high]}


def check_labelled(rows: Rows):
  """Raises ValueError for the first row that has no label."""
  if '' in rows.labels:
    line = rows.lines[rows.labels.index('')]
    raise ValueError(f'{rows.path}:{line}: a training example has no label')


def classes(rows: Rows) -> tuple[str, ...]:
  """Returns the labels of a training split, sorted, numbers by value.

  Raises ValueError if there are fewer than two, or a row has none.
  """
  check_labelled(rows)
  names = set(rows.labels)
  if len(names) < 2:
    raise ValueError(f'{rows.path}: one label only, {names.pop()!r}')
  if all(name.isascii() and name.isdigit() for name in names):
    return tuple(sorted(names, key=lambda name: (int(name), name)))
  return tuple(sorted(names))


def class_ids(rows: Rows, names: Sequence[str]) -> np.ndarray:
  """Returns int32 [n] indices into `names`, -1 where there is no label.

  Raises ValueError for labels that are not of `names`, naming all of them.
  """
  index = {name: i for i, name in enumerate(names)} | {'': -1}
  if unknown := sorted(set(rows.labels) - set(index)):
    line = rows.lines[[label in unknown for label in rows.labels].index(True)]
    raise ValueError(
        f'{rows.path}:{line}: labels {", ".join(map(repr, unknown))} are not'
        f' among those of training: {", ".join(map(repr, names))}'
    )
  return np.array([index[label] for label in rows.labels], np.int32)


def scores(rows: Rows) -> np.ndarray:
  """Returns float32 [n] of the labels, NaN where there is none.

  Raises ValueError for a label that is no finite number, naming its line.
  """
  values = []
  for label, line in zip(rows.labels, rows.lines, strict=True):
    try:
      value = float(label or 'nan')
    except ValueError:
      value = np.inf
    if label and not np.isfinite(value):
      raise ValueError(f'{rows.path}:{line}: label {label!r} is no number')
    values.append(value)
  return np.array(values, np.float32)

