"""Folders of BERT pretraining records: opened and checked against a config.

A folder of input_pipeline.bert_data describes itself in metadata.json. Static
TFRecord files of google-research/bert, NVIDIA and tensorflow/models do not:
their lengths are those of the first record.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from input_pipeline import (
    pretraining_records,
    records,
    tokenizer,
    vocabulary,
)
from input_pipeline.host import tf

_METADATA, _VOCABULARY = 'metadata.json', 'vocab.txt'
_FORMAT = 'bigtransfer-bert-1'
_CONTAINERS = {
    'tfrecord': pretraining_records.Source,
    'arrayrecord': pretraining_records.ArrayRecords,
}
_MASKINGS = ('runtime', 'static')
_FILES_AT_ONCE = 16


class Vocabulary(NamedTuple):
  """What the reader needs to know of a vocabulary.

  Attributes:
    path: its file, a token a line.
    size: how many lines.
    sha256: of its bytes with LF line ends, one at the end too.
    special_ids: of [PAD], [UNK], [CLS], [SEP] and [MASK], where they exist.
    mask_id: of [MASK]; None without it.
    is_continuation: bool [size], the pieces that begin with ##.
  """

  path: str
  size: int
  sha256: str
  special_ids: tuple[int, ...]
  mask_id: int | None
  is_continuation: np.ndarray


def read_vocabulary(path: str) -> Vocabulary:
  """Reads a vocabulary file, local or gs://; raises as vocabulary.load."""
  with tempfile.TemporaryDirectory() as folder:
    local = path
    if '://' in path:
      local = os.path.join(folder, os.path.basename(path))
      tf.io.gfile.copy(path, local)
    tokens, sha256 = vocabulary.load(local)
  special = {t: tokens.index(t) for t in tokenizer.SPECIALS if t in tokens}
  return Vocabulary(
      path,
      len(tokens),
      sha256,
      tuple(special.values()),
      special.get(tokenizer.MASK),
      np.array([token.startswith(vocabulary.CONTINUES) for token in tokens]),
  )


class Folder:
  """A folder of records that fit the `data` section of a config.

  Attributes:
    path: of the folder.
    static: whether the records are masked already.
    vocabulary: a Vocabulary.
  """

  def __init__(self, path: str, data: Any):
    """Opens `path`, or its folder for the length, if it has one for each.

    Raises ValueError for a folder that is not there or does not fit.
    """
    of_length = os.path.join(path, str(data.seq_length))
    self.path = path = of_length if tf.io.gfile.isdir(of_length) else path
    if not tf.io.gfile.isdir(path):
      raise ValueError(
          f'config.data.path={path!r} is no folder. Make it with: python -m'
          " input_pipeline.bert_data --input 'corpus/*.txt' --vocab vocab.txt"
          f' --output {path} --max_seq_length {data.seq_length}'
          f' --max_predictions_per_seq {data.max_predictions}'
      )
    if tf.io.gfile.exists(os.path.join(path, _METADATA)):
      self._read_metadata(data)
    else:
      self._look_at_first(data)
    self._check(data)

  def source(self, split: str) -> pretraining_records.Source:
    """Returns the records of `split`. Raises ValueError if there are none."""
    paths = self._paths(split)
    if self._listed is None:
      counts = records.shard_counts(paths)
    else:
      counts = {p: self._listed[os.path.basename(p)][0] for p in paths}
    if not sum(counts.values()):
      raise ValueError(f'{self.path}: the files of {split!r} have no records')
    return self._container(
        [(path, 0, counts[path]) for path in paths if counts[path]],
        static=self.static,
        seq_length=self._seq_length,
        max_predictions=self._max_predictions,
        vocab_size=self.vocabulary.size,
        aliased=self._aliased,
    )

  def _read_metadata(self, data):
    path = os.path.join(self.path, _METADATA)
    with tf.io.gfile.GFile(path) as file:
      metadata = json.load(file)
    needed = {'max_seq_length', 'max_predictions_per_seq', 'masked_lm_prob',
              'shards', 'vocab_sha256'}
    if missing := needed - set(metadata):
      raise ValueError(f'{path} lacks {sorted(missing)}: make the data again')
    for key, accepted in (
        ('format', (_FORMAT,)),
        ('container', tuple(_CONTAINERS)),
        ('masking', _MASKINGS),
    ):
      if metadata.get(key) not in accepted:
        raise ValueError(
            f'{path}: {key}={metadata.get(key)!r}, accepted are {accepted}'
        )
    self._container = _CONTAINERS[metadata['container']]
    self.static = metadata['masking'] == 'static'
    self._seq_length = metadata['max_seq_length']
    self._max_predictions = metadata['max_predictions_per_seq']
    self._fraction = metadata['masked_lm_prob']
    self._aliased = False
    self._listed = metadata['shards']
    self._check_files(self._listed)
    self.vocabulary = read_vocabulary(os.path.join(self.path, _VOCABULARY))
    expected = metadata['vocab_sha256']
    _same_vocabulary(self.vocabulary, expected, path)
    if data.vocab is not None:
      _same_vocabulary(read_vocabulary(data.vocab), expected, path)

  def _check_files(self, listed: Mapping[str, tuple[int, int]]):
    def check(item):
      path = os.path.join(self.path, item[0])
      if not tf.io.gfile.exists(path):
        raise ValueError(f'{path} is missing, of those in {_METADATA}')
      records.check_size(path, item[1][1], _METADATA)

    with futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
      list(pool.map(check, listed.items()))

  def _look_at_first(self, data):
    """Finds out about static TFRecord files that do not describe themselves."""
    self._container, self.static = _CONTAINERS['tfrecord'], True
    self._listed = self._fraction = None
    path = self._paths(data.train_split)[0]
    for record in tf.data.TFRecordDataset(path).take(1).as_numpy_iterator():
      example = tf.train.Example.FromString(record)
      break
    else:
      raise ValueError(f'{path} has no records')
    found = {
        k: len(v.int64_list.value or v.float_list.value)
        for k, v in example.features.feature.items()
    }
    alias = pretraining_records.ALIASES['input_ids']
    self._aliased = alias in found
    tokens = alias if self._aliased else 'input_ids'
    if not {tokens, 'masked_lm_positions'} <= set(found):
      raise ValueError(
          f'{path} has no masked examples and no {_METADATA} beside it; found'
          f' {sorted(found)}. If input_pipeline.bert_data was stopped, run the'
          ' same command again'
      )
    self._seq_length = found[tokens]
    self._max_predictions = found['masked_lm_positions']
    file = data.vocab or os.path.join(self.path, _VOCABULARY)
    if not tf.io.gfile.exists(file):
      raise ValueError(
          f'{self.path} has no {_METADATA}: set config.data.vocab to the'
          f' vocabulary file (there is no {file})'
      )
    self.vocabulary = read_vocabulary(file)

  def _paths(self, split):
    """Returns the files of `split`, a name or without metadata a pattern."""
    if self._listed is not None:
      names = sorted(n for n in self._listed if n.startswith(f'{split}-'))
      there = sorted({name.partition('-')[0] for name in self._listed})
    else:
      pattern = split if set('*?[') & set(split) else f'*{split}*'
      found = tf.io.gfile.glob(os.path.join(self.path, pattern))
      names = sorted(p for p in found if not tf.io.gfile.isdir(p))
      there = sorted(tf.io.gfile.listdir(self.path))[:4]
    if not names:
      raise ValueError(
          f'{self.path} has no records of the split {split!r}; there is'
          f' {", ".join(there) or "nothing"}'
          + ('. bert_data makes a test split with --test_fraction'
             if self._listed is not None else '')
      )
    return [os.path.join(self.path, name) for name in names]

  def _check(self, data):
    masking = 'static' if self.static else 'runtime'
    where = f'{self.path} (masking {masking})'
    if data.seq_length != self._seq_length:
      raise ValueError(
          f'config.data.seq_length={data.seq_length}, but the records in'
          f' {where} were made for {self._seq_length}'
      )
    fraction = data.masked_lm_prob
    if self.static:
      if data.max_predictions != self._max_predictions:
        raise ValueError(
            f'config.data.max_predictions={data.max_predictions}, but the'
            f' records in {where} have {self._max_predictions}'
        )
      fraction = self._fraction
    elif self.vocabulary.mask_id is None:
      raise ValueError(f'{self.vocabulary.path} has no [MASK]')
    needed = int(data.seq_length * fraction) if fraction else 0
    if data.max_predictions < needed:
      raise ValueError(
          f'config.data.max_predictions={data.max_predictions} is less than'
          f' the {needed} that masked_lm_prob={fraction} of'
          f' {data.seq_length} tokens takes ({where})'
      )


def _same_vocabulary(found, sha256, path):
  if found.sha256 != sha256:
    raise ValueError(
        f'{found.path} ({found.size} tokens, sha256'
        f' {found.sha256}) is not the vocabulary that the records were'
        f' made with, which has sha256 {sha256} by {path}'
    )
