"""The GLUE tasks (Wang et al., arXiv 1804.07461): layouts, labels, metrics.

Files are those of the official archives, `CoLA.zip` and so on: tab-separated,
nothing quoted. Without a folder the copies that TFDS has prepared are read.
"""

import os
import warnings
from typing import NamedTuple

import tensorflow_datasets as tfds

from input_pipeline import labelled_text, tfds_source
from input_pipeline.labelled_text import Rows

SPLITS = ('train', 'dev', 'test')


class Task(NamedTuple):
  """How a task is stored and scored.

  Attributes:
    columns: of the text, by the header of the official files.
    label: the column of the label.
    labels: as the files and submissions write them; () for regression.
    names: of the labels, those of TFDS and in its order.
    metrics: in the order of the leaderboard: names of the glue evaluator.
    tfds_columns: of the text in TFDS.
    parts: names of the parts that 'dev' and 'test' have, () for one part.
    headless: the columns of training and dev files without a header.
  """

  columns: tuple[str, ...]
  label: str
  labels: tuple[str, ...]
  names: tuple[str, ...]
  metrics: tuple[str, ...]
  tfds_columns: tuple[str, ...]
  parts: tuple[str, ...] = ()
  headless: tuple[str, ...] = ()


_ENTAILMENT = ('entailment', 'not_entailment')
_PAIR = ('sentence1', 'sentence2')

TASKS = {
    'cola': Task(
        ('sentence',),
        'label',
        ('0', '1'),
        ('unacceptable', 'acceptable'),
        ('matthews', 'accuracy'),
        ('sentence',),
        headless=('source', 'label', 'mark', 'sentence'),
    ),
    'sst2': Task(
        ('sentence',),
        'label',
        ('0', '1'),
        ('negative', 'positive'),
        ('accuracy',),
        ('sentence',),
    ),
    'mrpc': Task(
        ('#1 String', '#2 String'),
        'Quality',
        ('0', '1'),
        ('not_equivalent', 'equivalent'),
        ('f1', 'accuracy'),
        _PAIR,
    ),
    'stsb': Task(
        _PAIR, 'score', (), (), ('pearson', 'spearman'), _PAIR
    ),
    'qqp': Task(
        ('question1', 'question2'),
        'is_duplicate',
        ('0', '1'),
        ('not_duplicate', 'duplicate'),
        ('f1', 'accuracy'),
        ('question1', 'question2'),
    ),
    'mnli': Task(
        _PAIR,
        'gold_label',
        ('entailment', 'neutral', 'contradiction'),
        ('entailment', 'neutral', 'contradiction'),
        ('accuracy',),
        ('premise', 'hypothesis'),
        parts=('matched', 'mismatched'),
    ),
    'qnli': Task(
        ('question', 'sentence'),
        'label',
        _ENTAILMENT,
        _ENTAILMENT,
        ('accuracy',),
        ('question', 'sentence'),
    ),
    'rte': Task(
        _PAIR, 'label', _ENTAILMENT, _ENTAILMENT, ('accuracy',), _PAIR
    ),
}


def read(
    name: str, split: str, path: str | None, data_dir: str | None
) -> list[tuple[str, Rows]]:
  """Returns the parts (name, rows) of a split; the name is '' for one part.

  Args:
    name: of TASKS.
    split: 'train', 'dev', 'test', and 'dev_matched' and so on where there are
      parts; the test split has no labels.
    path: folder with the official files; None = TFDS.
    data_dir: of TFDS; None = its default.

  Raises:
    FileNotFoundError: the file or the prepared data set is missing.
    ValueError: an unknown split, or a file of another layout; names the line.
  """
  task = TASKS[name]
  result = []
  for part, stem in _stems(name, split):
    if path is None:
      rows = _from_tfds(name, task, stem, data_dir)
    else:
      file = os.path.join(path, f'{stem}.tsv')
      rows = _from_file(name, task, file, stem.partition('_')[0])
    result.append((part, rows))
  return result


def _stems(name, split):
  """Returns (part, stem of the file) for all parts of a split."""
  parts = TASKS[name].parts
  accepted = [('train', [('', 'train')])]
  for s in SPLITS[1:]:
    accepted.append((s, [(p, f'{s}_{p}') for p in parts] or [('', s)]))
    accepted += [(f'{s}_{p}', [('', f'{s}_{p}')]) for p in parts]
  found = dict(accepted)
  if split not in found:
    raise ValueError(f'{name} has no split {split!r}: there is {list(found)}')
  return found[split]


def _from_file(name, task, path, split):
  header = task.headless if split != 'test' else ()
  columns = list(task.columns)
  lines = labelled_text.read_table(path, quoted=False, header=header)
  names = lines.header
  wanted = columns if split == 'test' else [*columns, task.label]
  if missing := [column for column in wanted if column not in names]:
    raise ValueError(
        f'{path}: {name} needs the column {missing[0]!r}, the first line has'
        f' {", ".join(names)}'
    )
  where = [names.index(column) for column in wanted]
  kept, short = [], []
  for number, fields in lines.rows:
    (kept if len(fields) > max(where) else short).append((number, fields))
  if short and name != 'qqp':
    raise ValueError(
        f'{path}:{short[0][0]}: {len(short[0][1])} columns, the first line has'
        f' {len(names)}'
    )
  if short:
    # The official files of QQP hold a few questions with a line end inside.
    warnings.warn(
        f'{path}: left out {len(short)} broken lines, first line {short[0][0]}',
        stacklevel=2,
    )
  texts = [[fields[i] for _, fields in kept] for i in where]
  return Rows(
      path,
      texts[0],
      texts[1] if len(columns) == 2 else None,
      [''] * len(kept) if split == 'test' else texts[-1],
      [number for number, _ in kept],
  )


def _from_tfds(name, task, stem, data_dir):
  default = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  folder = tfds_source.prepared(
      f'glue/{name}', os.path.expanduser(data_dir or default)
  )
  builder = tfds.builder_from_directory(folder)
  names = tuple(getattr(builder.info.features['label'], 'names', ()))
  if names != task.names:
    raise ValueError(f'{folder}: labels {names}, expected {task.names}')
  split = stem.replace('dev', 'validation')
  if split not in builder.info.splits:
    raise ValueError(
        f'{folder} has no split {split!r}: there is {list(builder.info.splits)}'
    )
  data = builder.as_dataset(
      split=split,
      # The order of the files, so that predictions can be told apart.
      read_config=tfds.ReadConfig(interleave_cycle_length=1),
  )
  examples = sorted(data.as_numpy_iterator(), key=lambda e: int(e['idx']))
  texts = [[e[c].decode() for e in examples] for c in task.tfds_columns]
  labels = [''] * len(examples)
  if not stem.startswith('test'):
    labels = [
        task.labels[e['label']] if task.labels else str(float(e['label']))
        for e in examples
    ]
  return Rows(
      f'{folder} {split}',
      texts[0],
      texts[1] if len(texts) == 2 else None,
      labels,
      list(range(len(examples))),
  )
