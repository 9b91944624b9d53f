"""Splits and counts of every kind of source."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from input_pipeline import splits


def image(path):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.touch()


def test_embedded():
  expected = {'train': 10000, 'test': 2000}
  assert splits.count('embedded', name='fashion_mnist')[1] == expected


def test_folder(tmp_path):
  for i in range(3):
    image(tmp_path / 'train' / 'a' / f'{i}.jpg')
  image(tmp_path / 'train' / 'b' / '0.jpg')
  image(tmp_path / 'test' / 'a' / '0.png')
  image(tmp_path / '.cache' / 'a' / '0.png')
  found = splits.count('folder', str(tmp_path))
  assert found == (str(tmp_path), {'test': 1, 'train': 4})
  assert splits.count('folder', str(tmp_path / 'train'))[1] == {'all': 4}


def test_csv(tmp_path):
  (tmp_path / 'train.csv').write_text('path,label\na.jpg,0\nb.jpg,1\n')
  (tmp_path / 'val.csv').write_text('path,label\na.jpg,0\n')
  assert splits.count('csv', str(tmp_path))[1] == {'train': 2, 'val': 1}


def write(path, count):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for _ in range(count):
      writer.write(b'x')


def test_tfrecord(tmp_path):
  write(tmp_path / 'train-00000-of-00002.tfrecord', 3)
  write(tmp_path / 'train-00001-of-00002.tfrecord', 2)
  write(tmp_path / 'test.tfrecord', 1)
  (tmp_path / 'README').write_text('x')
  assert splits.count('tfrecord', str(tmp_path))[1] == {'train': 5, 'test': 1}


def test_records_that_describe_themselves(tmp_path):
  names = ['train-00000-of-00002.array_record',
           'train-00001-of-00002.array_record']
  for name in names:
    (tmp_path / name).write_bytes(b'1234')
  shards = {name: (7, 4) for name in names}
  (tmp_path / 'metadata.json').write_text(json.dumps({'shards': shards}))
  assert splits.count('tfrecord', str(tmp_path))[1] == {'train': 14}
  (tmp_path / names[0]).write_bytes(b'12')
  with pytest.raises(ValueError, match='has 2 bytes and not 4'):
    splits.count('tfrecord', str(tmp_path))


class TinyNumbers(tfds.core.GeneratorBasedBuilder):
  """Ten numbers to train on, four to test."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    features = tfds.features.FeaturesDict({'x': tfds.features.Scalar(np.int64)})
    return self.dataset_info_from_configs(features=features)

  def _split_generators(self, dl_manager):
    sizes = {'train': 10, 'test': 4}
    return {k: self._generate_examples(size) for k, size in sizes.items()}

  def _generate_examples(self, count):
    for i in range(count):
      yield i, {'x': i}


def test_tfds(tmp_path, monkeypatch, capfd):
  TinyNumbers(data_dir=str(tmp_path)).download_and_prepare()
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  where, found = splits.count('tfds', name='tiny_numbers')
  assert found == {'test': 4, 'train': 10}
  assert where == f'{tmp_path}/tiny_numbers/1.0.0 (from TFDS_DATA_DIR)'
  path = str(tmp_path / 'tiny_numbers')  # a level too deep, as often
  capfd.readouterr()
  arguments = ['--source', 'tfds', '--name', 'tiny_numbers', '--path', path]
  assert splits.main(arguments) == 1
  error = capfd.readouterr().err.strip().split('\n')[-1]
  assert f'no {path}/tiny_numbers/VERSION' in error
  assert f'The data dir seen is {path}, from --path: it holds 1.0.0' in error
  next((tmp_path / 'tiny_numbers' / '1.0.0').glob('*test*')).unlink()
  with pytest.raises(FileNotFoundError, match='is missing, of the split test'):
    splits.count('tfds', name='tiny_numbers')


@pytest.mark.parametrize(
    ('source', 'message'),
    [
        ('folder', 'has no splits of the source .folder.; it holds README'),
        ('csv', 'has no splits'),
        ('tfrecord', 'has no splits'),
    ],
)
def test_a_folder_of_something_else(source, message, tmp_path):
  (tmp_path / 'README').write_text('x')
  with pytest.raises(FileNotFoundError, match=message):
    splits.count(source, str(tmp_path))
  with pytest.raises(FileNotFoundError, match='there is no folder'):
    splits.count(source, str(tmp_path / 'a'))
  with pytest.raises(ValueError, match='--path is missing'):
    splits.count(source)


def test_the_answer_is_one_line(capfd):
  arguments = ['--source', 'embedded', '--name', 'fashion_mnist']
  assert splits.main(arguments) == 0
  answer = json.loads(capfd.readouterr().out)
  assert answer['splits'] == {'train': 10000, 'test': 2000}
  assert splits.main(['--source', 'embedded', '--name', 'nothing']) == 1
