"""Where examples come from: arrays, what ships, image folders, CSV files.

A source has `len()`, `features`, `class_names`, `num_classes` and reads in two
stages, both graph functions: `fetch(ids)` looks up what is cheap for a whole
vector of ids at once, `parse(record)` turns one of those records into
{'image', 'label'}. Sources that can only be read in order are in records.py.
"""

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline import embedded, listing
from input_pipeline.host import tf

_ENCODED = tf.TensorSpec((), tf.string)


class Source:
  """Base of all sources.

  Attributes:
    features: {'image': spec, 'label': spec} of what `parse` returns: the image
      is a string to decode or an array [h, w, c], the label an int32.
    num_classes: labels lie in [0, num_classes).
    class_names: a tuple of num_classes names, or None.
  """

  streaming = False

  def __init__(
      self,
      size: int,
      image: tf.TensorSpec,
      num_classes: int,
      class_names: Sequence[str] | None = None,
  ):
    if size < 1:
      raise ValueError(f'{type(self).__name__} has no examples')
    label = tf.TensorSpec((), tf.int32)
    self.features = {'image': image, 'label': label}
    self.num_classes = num_classes
    self.class_names = class_names
    self._size = size

  def __len__(self) -> int:
    return self._size

  def parse(self, record):
    return record

  def first(self, count: int) -> 'Source':
    """Returns the same source with its first `count` examples only."""
    part = copy.copy(self)
    part._size = min(count, len(self))
    return part

  def where(self, example_id: int) -> str:
    """Returns words that let a person find the example."""
    return f'example {example_id}'


class ArraySource(Source):
  """Arrays in memory: 'image' [n, h, w] or [n, h, w, c], 'label' [n] int.

  A label of -1 means unlabelled. Raises ValueError for shapes that do not fit
  and for labels outside [-1, num_classes), naming the first.
  """

  def __init__(
      self,
      arrays: Mapping[str, np.ndarray],
      *,
      num_classes: int | None = None,
      class_names: Sequence[str] | None = None,
  ):
    if set(arrays) != {'image', 'label'}:
      raise ValueError(f'arrays must be image and label, not {sorted(arrays)}')
    image, label = np.asarray(arrays['image']), np.asarray(arrays['label'])
    if image.ndim == 3:
      image = image[..., np.newaxis]
    if image.ndim != 4 or label.shape != image.shape[:1]:
      raise ValueError(
          f'image {image.shape} must be [n, h, w] or [n, h, w, c] and label'
          f' {label.shape} must be [n]'
      )
    if label.dtype.kind not in 'iu':
      raise ValueError(f'label must be integers, not {label.dtype}')
    if num_classes is None:
      num_classes = len(class_names or ()) or int(label.max(initial=-1)) + 1
    super().__init__(
        len(label),
        tf.TensorSpec(image.shape[1:], image.dtype),
        num_classes,
        class_names,
    )
    check_labels(label, self)
    self._arrays = {
        'image': tf.constant(image),
        'label': tf.constant(label, tf.int32),
    }

  def fetch(self, ids):
    return {k: tf.gather(v, ids) for k, v in self._arrays.items()}


class Embedded(ArraySource):
  """Data that ships with the project: see embedded.load."""

  def __init__(self, name: str = 'fashion_mnist', split: str = 'train'):
    arrays = embedded.load(name, split)
    super().__init__(arrays, class_names=embedded.CLASS_NAMES[name])
    self._name = f'{name} {split}'

  def where(self, example_id):
    return f'{self._name} example {example_id}'


class Files(Source):
  """Image files, local or gs://: `paths` [n] strings, `labels` [n] ints."""

  def __init__(
      self,
      paths: Sequence[str],
      labels: Sequence[int],
      num_classes: int,
      class_names: Sequence[str] | None = None,
  ):
    super().__init__(len(paths), _ENCODED, num_classes, class_names)
    self.paths = list(paths)
    check_labels(np.asarray(labels), self)
    self._table = {
        'image': tf.constant(self.paths),
        'label': tf.constant(labels, tf.int32),
    }

  def fetch(self, ids):
    return {k: tf.gather(v, ids) for k, v in self._table.items()}

  def parse(self, record):
    return {**record, 'image': tf.io.read_file(record['image'])}

  def where(self, example_id):
    return self.paths[example_id]


class ImageFolder(Files):
  """A folder of class folders of images, `root/split/CLASS/*.jpg`.

  With an empty `split` they lie in `root` itself. See listing.class_folders
  for the rules and the errors. `classes` are those of the training split.
  """

  def __init__(
      self,
      root: str,
      split: str = '',
      classes: Sequence[str] | None = None,
      *,
      allow_empty: bool = False,
  ):
    folder = os.path.join(root, split) if split else root
    paths, labels, classes = listing.class_folders(
        folder, classes, allow_empty=allow_empty
    )
    super().__init__(paths, labels, len(classes), classes)


class CsvSource(Files):
  """A CSV file with the header `path,label`; see listing.csv_file.

  `classes`, or `num_classes` for labels that are integers, are those of the
  training split.
  """

  def __init__(
      self,
      path: str,
      classes: Sequence[str] | None = None,
      num_classes: int | None = None,
  ):
    paths, labels, classes, lines = listing.csv_file(path, classes)
    if classes is not None:
      num_classes = len(classes)
    self._lines = lines
    super().__init__(
        paths, labels, num_classes or max(labels, default=-1) + 1, classes
    )

  def where(self, example_id):
    return f'{self.paths[example_id]} ({self._lines[example_id]})'


def check_labels(labels: np.ndarray, source: Source):
  """Raises ValueError naming the first label outside [-1, num_classes)."""
  bad = np.flatnonzero((labels < -1) | (labels >= source.num_classes))
  if bad.size:
    raise ValueError(
        f'{source.where(int(bad[0]))}: label {labels[bad[0]]} is not in [0,'
        f' {source.num_classes}), the classes of the training split'
    )


def make(data: Any, split: str, train: Source | None = None) -> Source:
  """Returns the source that `data`, the config's section, names for `split`.

  `train` is the source of the training split, whose classes hold for all.
  """
  if data.source not in _MAKERS:
    raise ValueError(
        f'data.source={data.source!r}; there is {", ".join(sorted(_MAKERS))}'
    )
  if data.source != 'embedded' and not (data.path or data.source == 'tfds'):
    raise ValueError(f'data.path is not set; {data.source!r} reads from there')
  return _MAKERS[data.source](data, split, train)


def _embedded(data, split, train):
  del train
  return Embedded(data.name, split)


def _folder(data, split, train):
  classes = None if train is None else train.class_names
  return ImageFolder(
      data.path, split, classes, allow_empty=data.allow_empty_classes
  )


def _csv(data, split, train):
  path = os.path.join(data.path, f'{split}.csv')
  if train is None:
    return CsvSource(path)
  return CsvSource(path, train.class_names, train.num_classes)


def _tfds(data, split, train):
  from input_pipeline import tfds_source  # Loads tensorflow_datasets.

  del train
  return tfds_source.make(data.name, split, data.path)


def _tfrecord(data, split, train):
  from input_pipeline import records

  del train
  return records.TfRecord(os.path.join(data.path, split), **data.tfrecord)


_MAKERS = {
    'embedded': _embedded,
    'folder': _folder,
    'csv': _csv,
    'tfds': _tfds,
    'tfrecord': _tfrecord,
}
