"""Sources in memory, folders and CSV files: what counts, in which order."""

import numpy as np
import pytest
from PIL import Image

from input_pipeline import pipeline, sources


def _write(root, *names):
  for name in names:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith('.jpg'):
      Image.new('RGB', (4, 4), (10, 20, 30)).save(path)
    else:
      path.write_bytes(b'not an image')
  return str(root)


def _names(source):
  return ['/'.join(path.split('/')[-2:]) for path in source.paths]


def _labels(source):
  ops = 'decode|resize(2)' if source.features['image'].shape == () else ''
  (batch,) = pipeline.eval_batches(source, batch_size=len(source), ops=ops)
  return batch['label'].tolist()


def test_fashion_mnist_as_published():
  """First labels of the official files; classes by the README there."""
  train, test = sources.Embedded(), sources.Embedded('fashion_mnist', 'test')
  assert len(train) == 10000 and len(test) == 2000
  assert train.features['image'].shape == (28, 28, 1)
  assert train.num_classes == 10 and train.class_names[9] == 'Ankle boot'
  assert _labels(train)[:10] == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
  assert _labels(test)[:10] == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
  (batch,) = pipeline.eval_batches(train.first(1), batch_size=1, ops='')
  assert batch['image'].sum() == 76247  # 97.25 * 28 * 28 is the first's mean.


@pytest.mark.parametrize('args', [('mnist', 'train'), ('fashion_mnist', 'val')])
def test_embedded_mistakes(args):
  with pytest.raises(ValueError, match='there is'):
    sources.Embedded(*args)


@pytest.mark.parametrize(
    ('arrays', 'message'),
    [
        ({'image': np.zeros((2, 4, 4))}, r"not \['image'\]"),
        ({'image': np.zeros((2, 4)), 'label': [0, 1]}, r'\(2, 4\)'),
        ({'image': np.zeros((2, 4, 4)), 'label': [0]}, r'\(1,\)'),
        ({'image': np.zeros((2, 4, 4)), 'label': [0.5, 1]}, 'float64'),
        (
            {'image': np.zeros((2, 4, 4)), 'label': [0, -2]},
            'example 1: label -2',
        ),
        (
            {'image': np.zeros((0, 4, 4)), 'label': np.zeros(0, int)},
            'no examples',
        ),
    ],
)
def test_array_mistakes(arrays, message):
  with pytest.raises(ValueError, match=message):
    sources.ArraySource(arrays)


def test_labels_above_the_class_count():
  arrays = {'image': np.zeros((3, 4, 4), np.uint8), 'label': [0, 1, 7]}
  assert sources.ArraySource(arrays).num_classes == 8
  with pytest.raises(ValueError, match=r'example 2: label 7 is not in \[0, 5'):
    sources.ArraySource(arrays, num_classes=5)


def test_hidden_entries_are_no_classes(tmp_path):
  """pytorch/vision#109: labels shifted by one."""
  root = _write(
      tmp_path,
      'a/1.jpg',
      'a/Thumbs.db',
      'b/1.jpg',
      '.ipynb_checkpoints/1.jpg',
      '.DS_Store',
      'a/.hidden.jpg',
      'readme.txt',
      'b/UPPER.JPG',
  )
  source = sources.ImageFolder(root)
  assert source.class_names == ('a', 'b')
  assert _names(source) == ['a/1.jpg', 'b/1.jpg', 'b/UPPER.JPG']


def test_an_empty_class(tmp_path):
  """pytorch/vision#4925, #8297: an error, or it keeps its index."""
  root = _write(tmp_path, 'train/a/1.jpg', 'train/f/1.jpg')
  (tmp_path / 'train' / 'e').mkdir()
  with pytest.raises(ValueError, match='train/e has no images.*allow_empty'):
    sources.ImageFolder(root, 'train')
  source = sources.ImageFolder(root, 'train', allow_empty=True)
  assert source.class_names == ('a', 'e', 'f') and source.num_classes == 3
  assert _labels(source) == [0, 2]


def test_numbers_as_folder_names_are_sorted_as_text(tmp_path):
  """modestyachts/ImageNetV2#4: one rule, and the map is told."""
  root = _write(tmp_path, '0/1.jpg', '10/1.jpg', '2/1.jpg', '90/1.jpg')
  source = sources.ImageFolder(root)
  assert source.class_names == ('0', '10', '2', '90')
  assert _labels(source) == [0, 1, 2, 3]


def test_classes_come_from_the_training_split(tmp_path):
  root = _write(
      tmp_path,
      'train/a/1.jpg',
      'train/b/1.jpg',
      'train/c/1.jpg',
      'test/c/1.jpg',
      'val/b/1.jpg',
      'val/d/1.jpg',
  )
  train = sources.ImageFolder(root, 'train')
  test = sources.ImageFolder(root, 'test', train.class_names)
  assert _labels(test) == [2] and test.class_names == train.class_names
  with pytest.raises(ValueError, match=r"val/d: .*no class 'd', only a, b, c"):
    sources.ImageFolder(root, 'val', train.class_names)


def test_missing_and_empty_folders(tmp_path):
  with pytest.raises(FileNotFoundError, match=f'{tmp_path}/train'):
    sources.ImageFolder(str(tmp_path), 'train')
  with pytest.raises(FileNotFoundError, match='has no class folders: expected'):
    sources.ImageFolder(str(tmp_path))


def _csv(root, text, name='train.csv'):
  path = root / name
  path.write_text(text)
  return str(path)


def test_csv_with_names(tmp_path):
  _write(tmp_path, 'x/1.jpg', 'x/2.jpg')
  path = _csv(tmp_path, 'path,label\nx/1.jpg,dog\n\nx/2.jpg,"cat, big"\n')
  source = sources.CsvSource(path)
  assert source.class_names == ('cat, big', 'dog')
  assert source.paths == [f'{tmp_path}/x/1.jpg', f'{tmp_path}/x/2.jpg']
  assert _labels(source) == [1, 0]
  assert source.where(1) == f'{tmp_path}/x/2.jpg ({path}:4)'


def test_csv_with_numbers(tmp_path):
  """Absolute paths, a byte order mark and CRLF, as Excel writes them."""
  _write(tmp_path, '1.jpg')
  text = f'\ufeffpath,label\r\n{tmp_path}/1.jpg,5\r\n1.jpg,0\r\n1.jpg,\r\n'
  train = sources.CsvSource(_csv(tmp_path, text))
  assert train.class_names is None and train.num_classes == 6
  assert _labels(train) == [5, 0, -1]


def test_csv_of_evaluation_takes_the_classes_of_training(tmp_path):
  _write(tmp_path, '1.jpg')
  names = _csv(tmp_path, 'path,label\n1.jpg,c\n')
  assert _labels(sources.CsvSource(names, ('a', 'b', 'c'))) == [2]
  with pytest.raises(ValueError, match=r"train.csv:2: .*label 'c', only a, b"):
    sources.CsvSource(names, ('a', 'b'))
  numbers = _csv(tmp_path, 'path,label\n1.jpg,0\n1.jpg,6\n', 'numbers.csv')
  message = r'1.jpg \(.*numbers.csv:3\): label 6 is not in \[0, 6\)'
  with pytest.raises(ValueError, match=message):
    sources.CsvSource(numbers, num_classes=6)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'the first line must be path,label'),
        ('file,class\n', 'the first line must be path,label'),
        ('path,label\n', 'has no examples'),
        (
            'path,label\na.jpg\n',
            r"train.csv:2: expected path,label, found 'a.jpg'",
        ),
        ('path,label\na.jpg,1\n,2\n', 'train.csv:3: expected'),
        ('path,label\na.jpg,-3\n', 'label -3 is not in'),
    ],
)
def test_csv_mistakes(tmp_path, text, message):
  with pytest.raises(ValueError, match=message):
    sources.CsvSource(_csv(tmp_path, text))


def test_csv_missing(tmp_path):
  with pytest.raises(FileNotFoundError, match=f'{tmp_path}/train.csv'):
    sources.CsvSource(f'{tmp_path}/train.csv')


def test_the_first_examples(tmp_path):
  source = sources.ImageFolder(_write(tmp_path, *[f'a/{i}.jpg' for i in '123']))
  part = source.first(2)
  assert len(part) == 2 and len(source) == 3 and len(source.first(9)) == 3
  (batch,) = pipeline.eval_batches(part, batch_size=2, ops='decode|resize(2)')
  assert batch['id'].tolist() == [0, 1]
