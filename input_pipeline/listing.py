"""Lists image files and their labels: class folders, CSV files."""

import csv
import io
import os
from collections.abc import Sequence

from input_pipeline.host import tf

# The last four are not decoded: listed, they are reported and not passed over.
_SUFFIXES = (
    '.bmp',
    '.gif',
    '.jpeg',
    '.jpg',
    '.jxl',
    '.png',
    '.webp',
    '.avif',
    '.heic',
    '.tif',
    '.tiff',
)


def class_folders(
    folder: str,
    classes: Sequence[str] | None = None,
    *,
    allow_empty: bool = False,
) -> tuple[list[str], list[int], tuple[str, ...]]:
  """Returns paths, labels and class names of the images in `folder/CLASS/`.

  Class k is the k-th name in the order of sorted(): '0', '10', '2'. Names that
  start with a dot and files that are no images by their suffix are left out.

  Args:
    folder: local or gs://.
    classes: fixes the indices; else they come from the folder.
    allow_empty: keep the index of a class without images.

  Raises:
    FileNotFoundError: no such folder, or no class folders in it.
    ValueError: a class without images, or one that `classes` does not have.
  """
  if not tf.io.gfile.isdir(folder):
    raise FileNotFoundError(f'there is no folder {folder}')
  found = [name for name in _visible(folder) if _is_dir(folder, name)]
  if not found:
    raise FileNotFoundError(
        f'{folder} has no class folders: expected {folder}/CLASS/*.jpg'
    )
  classes = tuple(found if classes is None else classes)
  if extra := sorted(set(found) - set(classes)):
    raise ValueError(
        f'{folder}/{extra[0]}: the training split has no class {extra[0]!r},'
        f' only {_few(classes)}'
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
          f'{folder}/{name} has no images: remove it, or keep its class index'
          ' with data.allow_empty_classes=True'
      )
    paths += images
    labels += [classes.index(name)] * len(images)
  return paths, labels, classes


def csv_file(
    path: str, classes: Sequence[str] | None = None
) -> tuple[list[str], list[int], tuple[str, ...] | None, list[str]]:
  """Returns paths, labels, class names or None, and 'file:line' of each row.

  The first line is `path,label`. Relative paths start at the CSV file. Labels
  are either integers, taken as they are, or names, numbered in the order of
  sorted(); an empty one means unlabelled, -1. `classes` fixes the names.

  Raises:
    FileNotFoundError: no such file.
    ValueError: a line that does not fit, which it names.
  """
  if not tf.io.gfile.exists(path):
    raise FileNotFoundError(f'there is no CSV file {path}')
  with tf.io.gfile.GFile(path) as file:
    text = file.read().removeprefix('\ufeff')  # Excel writes one.
  rows = list(csv.reader(io.StringIO(text, newline='')))
  if not rows or rows[0] != ['path', 'label']:
    raise ValueError(f'{path}: the first line must be path,label')
  lines = [(f'{path}:{i}', row) for i, row in enumerate(rows[1:], 2) if row]
  for line, row in lines:
    if len(row) != 2 or not row[0]:
      raise ValueError(f'{line}: expected path,label, found {",".join(row)!r}')
  names = {row[1] for _, row in lines if row[1]}
  if classes is None and not all(_is_int(name) for name in names):
    classes = sorted(names)
  labels = [_label(row[1], classes, line) for line, row in lines]
  folder = os.path.dirname(path)
  paths = [os.path.join(folder, row[0]) for _, row in lines]
  return paths, labels, classes and tuple(classes), [line for line, _ in lines]


def _label(text, classes, line):
  if not text:
    return -1
  if classes is None:
    return int(text)
  if text not in classes:
    raise ValueError(
        f'{line}: the training split has no label {text!r},'
        f' only {_few(classes)}'
    )
  return classes.index(text)


def _visible(folder):
  names = (name.rstrip('/') for name in tf.io.gfile.listdir(folder))
  return sorted(name for name in names if not name.startswith('.'))


def _is_dir(folder, name):
  return tf.io.gfile.isdir(os.path.join(folder, name))


def _is_int(text):
  return text.isascii() and text.removeprefix('-').isdigit()


def _few(names):
  return ', '.join(names[:5]) + (', ...' if len(names) > 5 else '')
