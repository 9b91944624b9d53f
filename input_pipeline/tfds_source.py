"""Data sets that TFDS has prepared, in either of its two formats."""

import os
import re

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_data_source

from input_pipeline import records
from input_pipeline.host import tf


def make(name: str, split: str, data_dir: str | None = None) -> records.Records:
  """Returns the source of `split`, e.g. 'train' or 'train[:98%]'.

  Stored as ArrayRecord it is read at random, as TFRecord front to back.

  Args:
    name: as for TFDS: 'cifar10', 'cifar10:3.0.2', 'imagenet2012_real/v2'.
    split: a split or a part of one, in the syntax of TFDS.
    data_dir: default $TFDS_DATA_DIR, then ~/tensorflow_datasets.

  Raises FileNotFoundError, with the path, if `name` is not prepared there, and
  ValueError for a split or for features that do not fit. Never downloads.
  """
  default = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  folder = prepared(name, os.path.expanduser(data_dir or default))
  builder = tfds.builder_from_directory(folder)
  features, file_format = builder.info.features, builder.info.file_format
  if not {'image', 'label'} <= set(features) or not isinstance(
      features['label'], tfds.features.ClassLabel
  ):
    raise ValueError(f'{folder}: needs an image and a label, has {features}')
  try:
    instructions = builder.info.splits[split].file_instructions
  except (KeyError, ValueError, AssertionError):
    raise ValueError(
        f'{folder} has no split {split!r};'
        f' there is {sorted(builder.info.splits)}'
    ) from None
  if file_format not in _FORMATS:
    raise ValueError(
        f'{folder} is stored as {file_format}; there is'
        f' {", ".join(map(str, _FORMATS))}'
    )
  return _FORMATS[file_format](instructions, features)


class _Tfds(records.Records):

  def __init__(self, instructions, features):
    label = features['label']
    super().__init__(
        [(i.filename, i.skip, i.take) for i in instructions],
        label.num_classes,
        label.names and tuple(label.names),
    )
    self._features = features

  def parse(self, record):
    example = self._features.deserialize_example(
        record, decoders={'image': tfds.decode.SkipDecoding()}
    )
    label = tf.cast(example['label'], tf.int32)
    return {'image': example['image'], 'label': label}


class _TfRecords(_Tfds):
  streaming = True


class _ArrayRecords(_Tfds):

  def __init__(self, instructions, features):
    super().__init__(instructions, features)
    self._reader = array_record_data_source.ArrayRecordDataSource(instructions)

  def fetch(self, ids):
    def read(ids):
      return np.array(self._reader.__getitems__(ids.tolist()), object)

    return tf.ensure_shape(
        tf.numpy_function(read, [ids], tf.string, stateful=False), ids.shape
    )


_FORMATS = {
    tfds.core.FileFormat.TFRECORD: _TfRecords,
    tfds.core.FileFormat.ARRAY_RECORD: _ArrayRecords,
}


def prepared(name, data_dir):
  name, _, wanted = name.partition(':')
  root = os.path.join(data_dir, name)
  entries = tf.io.gfile.listdir(root) if tf.io.gfile.isdir(root) else []
  entries = [entry.rstrip('/') for entry in entries]
  versions = [e for e in entries if re.fullmatch(r'\d+\.\d+\.\d+', e)]
  if wanted in versions or not wanted and versions:
    newest = max(versions, key=lambda v: [int(part) for part in v.split('.')])
    return os.path.join(root, wanted or newest)
  raise FileNotFoundError(
      f'{name} is not prepared: no {os.path.join(root, wanted or "VERSION")}'
      f' (found there: {", ".join(sorted(entries)) or "nothing"}). Prepare it'
      f' once with: tfds build {name} --data_dir={data_dir}'
  )
