"""Where examples come from: arrays, what ships, image folders, CSV files.

A source has `len()`, `features`, `class_names`, `num_classes` and reads in two
stages, both graph functions: `fetch(ids)` looks up what is cheap for a whole
vector of ids at once, `parse(record)` turns one of those records into
{'image', 'label'}. Sources that can only be read in order are in records.py.
"""

import csv
import os

import numpy as np

from input_pipeline.host import tf

_EMBEDDED = {
  'fashion_mnist': (
    'T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat', 'Sandal', 'Shirt',
    'Sneaker', 'Bag', 'Ankle boot',
  ),
}  # fmt: skip
_ENCODED = tf.TensorSpec((), tf.string)
# The last four are not decoded: listed, they are reported and not passed over.
_SUFFIXES = (
  '.bmp', '.gif', '.jpeg', '.jpg', '.jxl', '.png', '.webp',
  '.avif', '.heic', '.tif', '.tiff',
)  # fmt: skip


class Source:
  """Base of all sources.

  Attributes:
    features: {'image': spec, 'label': spec} of what `parse` returns: the image
      is a string to decode or an array [h, w, c], the label an int32.
    num_classes: labels lie in [0, num_classes).
    class_names: a tuple of num_classes names, or None.
  """

  streaming = False

  def __init__(self, size, image, num_classes, class_names=None):
    if size < 1:
      raise ValueError(f'{type(self).__name__} has no examples')
    label = tf.TensorSpec((), tf.int32)
    self.features = {'image': image, 'label': label}
    self.num_classes = num_classes
    self.class_names = class_names
    self._size = size

  def __len__(self):
    return self._size

  def parse(self, record):
    return record

  def where(self, example_id):
    """Returns words that let a person find the example."""
    return f'example {example_id}'


class ArraySource(Source):
  """Arrays in memory: 'image' [n, h, w] or [n, h, w, c], 'label' [n] int.

  A label of -1 means unlabelled. Raises ValueError for shapes that do not fit
  and for labels outside [-1, num_classes), naming the first.
  """

  def __init__(self, arrays, *, num_classes=None, class_names=None):
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
      len(label), tf.TensorSpec(image.shape[1:], image.dtype), num_classes,
      class_names,
    )  # fmt: skip
    check_labels(label, self)
    self._arrays = {
      'image': tf.constant(image),
      'label': tf.constant(label, tf.int32),
    }

  def fetch(self, ids):
    return {k: tf.gather(v, ids) for k, v in self._arrays.items()}


class Embedded(ArraySource):
  """Data that ships with the project; see embedded/NOTICE.

  fashion_mnist: uint8 [n, 28, 28, 1], 10,000 in 'train' and 2,000 in 'test'.
  """

  def __init__(self, name='fashion_mnist', split='train'):
    if name not in _EMBEDDED:
      raise ValueError(f'embedded data {name!r}; there is {list(_EMBEDDED)}')
    if split not in ('train', 'test'):
      raise ValueError(f'split {split!r} of {name}; there is train and test')
    directory = os.path.join(os.path.dirname(__file__), 'embedded')
    with np.load(os.path.join(directory, f'{name}.npz')) as data:
      arrays = {'image': data[f'x_{split}'], 'label': data[f'y_{split}']}
    super().__init__(arrays, class_names=_EMBEDDED[name])
    self._name = f'{name} {split}'

  def where(self, example_id):
    return f'{self._name} example {example_id}'


class Files(Source):
  """Image files, local or gs://: `paths` [n] strings, `labels` [n] ints."""

  def __init__(self, paths, labels, num_classes, class_names=None):
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
  """A folder of class folders of images: `root/split/class/*.jpg`.

  Class k is the k-th folder name in the order of `sorted()`: '0', '10', '2'.
  With an empty `split` the class folders lie in `root` itself. Names that
  start with a dot and files that are not images by their suffix are left out.
  `classes`, the names in the training split, fixes the indices of another
  split. Raises FileNotFoundError for a folder that is missing or without
  classes, ValueError for a class without images (unless `allow_empty`) and
  for a class that `classes` does not have.
  """

  def __init__(self, root, split='', classes=None, *, allow_empty=False):
    folder = os.path.join(root, split) if split else root
    if not tf.io.gfile.isdir(folder):
      raise FileNotFoundError(f'no folder of class folders at {folder}')
    found = [name for name in _visible(folder) if _is_dir(folder, name)]
    if not found:
      raise FileNotFoundError(
        f'{folder} holds no class folders; expected {folder}/CLASS/*.jpg'
      )
    classes = tuple(found) if classes is None else tuple(classes)
    if extra := sorted(set(found) - set(classes)):
      raise ValueError(
        f'{folder}/{extra[0]}: class {extra[0]!r} is not in the training split'
        f' ({len(classes)} classes: {", ".join(classes[:5])}, ...)'
      )
    paths, labels = [], []
    for name in found:
      images = [
        os.path.join(folder, name, file)
        for file in _visible(os.path.join(folder, name))
        if file.lower().endswith(_SUFFIXES)
      ]
      if not images and not allow_empty:
        raise ValueError(
          f'class folder {folder}/{name} holds no images; remove it or set'
          ' data.allow_empty_classes=True to keep its index'
        )
      paths += images
      labels += [classes.index(name)] * len(images)
    super().__init__(paths, labels, len(classes), classes)


class CsvSource(Files):
  """A CSV file with the header `path,label`, one image per line.

  Relative paths are resolved against the folder of the file. Labels are all
  integers, kept as they are, or names, numbered in sorted() order. An empty
  label means unlabelled. `classes` (names) or `num_classes` come from the
  training split and hold for the others. Raises ValueError with the line.
  """

  def __init__(self, path, classes=None, num_classes=None):
    if not tf.io.gfile.exists(path):
      raise FileNotFoundError(f'no CSV file at {path}')
    with tf.io.gfile.GFile(path) as file:
      rows = list(csv.reader(file))
    if not rows or rows[0] != ['path', 'label']:
      raise ValueError(f'{path}: the first line must be path,label')
    rows = [(i, row) for i, row in enumerate(rows[1:], 2) if row]
    for line, row in rows:
      if len(row) != 2 or not row[0]:
        raise ValueError(f'{path}:{line}: expected path,label, found {row}')
    names = [row[1] for _, row in rows if row[1]]
    if classes is None and not all(_is_int(name) for name in names):
      classes = sorted(set(names))
    labels = [_number(row[1], classes, f'{path}:{i}') for i, row in rows]
    if classes is not None:
      num_classes, classes = len(classes), tuple(classes)
    self._lines = [f'{path}:{line}' for line, _ in rows]
    folder = os.path.dirname(path)
    super().__init__(
      [os.path.join(folder, row[0]) for _, row in rows], labels,
      num_classes or max(labels, default=-1) + 1, classes,
    )  # fmt: skip

  def where(self, example_id):
    return f'{self.paths[example_id]} ({self._lines[example_id]})'


def check_labels(labels, source):
  """Raises ValueError naming the first label outside [-1, num_classes)."""
  bad = np.flatnonzero((labels < -1) | (labels >= source.num_classes))
  if bad.size:
    raise ValueError(
      f'{source.where(int(bad[0]))}: label {labels[bad[0]]} is not in [0,'
      f' {source.num_classes}), the classes of the training split'
    )


def make(data, split, train=None):
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
  classes = train and train.class_names
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


def _visible(folder):
  names = (name.rstrip('/') for name in tf.io.gfile.listdir(folder))
  return sorted(name for name in names if not name.startswith('.'))


def _is_dir(folder, name):
  return tf.io.gfile.isdir(os.path.join(folder, name))


def _is_int(text):
  return text.removeprefix('-').isdigit()


def _number(text, classes, where):
  if not text:
    return -1
  if classes is not None:
    if text not in classes:
      raise ValueError(f'{where}: label {text!r} is not in {classes[:5]}, ...')
    return classes.index(text)
  if not _is_int(text):
    raise ValueError(f'{where}: label {text!r} must be an integer')
  return int(text)
