"""TFDS data sets that a real builder wrote, in both formats."""

import os
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds

from input_pipeline import pipeline, records, tfds_source

SIZE = 30


class TinyPhotos(tfds.core.GeneratorBasedBuilder):
  """Thirty images whose pixels and labels tell their number."""

  VERSION = tfds.core.Version('1.2.10')

  def _info(self):
    features = {
        'file_name': tfds.features.Text(),
        'image': tfds.features.Image(shape=(None, None, 3)),
        'label': tfds.features.ClassLabel(names=['x', 'y', 'z']),
    }
    return self.dataset_info_from_configs(
        features=tfds.features.FeaturesDict(features)
    )

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples(SIZE)}

  def _generate_examples(self, size):
    for i in range(size):
      yield i, {
          'file_name': f'{i}.png',
          'image': np.full((4, 6, 3), i, np.uint8),
          'label': i % 3,
      }


@pytest.fixture(scope='module', params=['tfrecord', 'array_record'])
def data_dir(request, tmp_path_factory):
  path = str(tmp_path_factory.mktemp(request.param))
  builder = TinyPhotos(data_dir=path, file_format=request.param)
  builder.download_and_prepare(
      download_config=tfds.download.DownloadConfig(num_shards=3)
  )
  return path


def _ids_and_pixels(source, steps, **kwargs):
  batches = pipeline.train_batches(
      source, batch_size=6, ops='decode|resize(2)', seed=0, threads=1, **kwargs
  )
  seen = [next(batches) for _ in range(steps)]
  return [
      np.concatenate(values)
      for values in ([b['id'] for b in seen], [b['image'] for b in seen])
  ]


def test_both_formats(data_dir):
  source = tfds_source.make('tiny_photos', 'train', data_dir)
  assert len(source) == SIZE
  assert source.class_names == ('x', 'y', 'z')
  assert source.streaming == ('tfrecord' in data_dir)
  ids, pixels = _ids_and_pixels(source, 10)
  for epoch in ids.reshape(2, -1):
    np.testing.assert_array_equal(np.sort(epoch), np.arange(SIZE))
  number = {}
  for i, image in zip(ids, pixels, strict=True):
    assert number.setdefault(i, image[0, 0, 0]) == image[0, 0, 0]
  assert sorted(number.values()) == list(range(SIZE))
  after, _ = _ids_and_pixels(source, 4, start_step=6)
  np.testing.assert_array_equal(after, ids[36:])
  batches = pipeline.eval_batches(source, batch_size=8, ops='decode|resize(2)')
  labels = np.concatenate([b['label'][b['mask'] == 1] for b in batches])
  np.testing.assert_array_equal(np.bincount(labels), [10, 10, 10])
  assert os.path.basename(source.where(0)).startswith('tiny_photos-train.')


def test_part_of_a_split(data_dir):
  source = tfds_source.make('tiny_photos:1.2.10', 'train[10%:50%]', data_dir)
  ids, pixels = _ids_and_pixels(source, 2)
  assert sorted(ids) == list(range(12))
  whole = tfds_source.make('tiny_photos', 'train', data_dir)
  every = dict(zip(*_ids_and_pixels(whole, 5), strict=True))
  for i, image in zip(ids, pixels, strict=True):
    np.testing.assert_array_equal(image, every[i + 3])


def test_the_newest_version_is_read(data_dir, tmp_path):
  """By number: 1.2.10 is newer than 1.2.9."""
  root = tmp_path / 'tiny_photos'
  root.mkdir()
  (root / '1.2.9').mkdir()
  (root / '1.2.10').symlink_to(f'{data_dir}/tiny_photos/1.2.10')
  assert len(tfds_source.make('tiny_photos', 'train', str(tmp_path))) == SIZE


def test_a_split_that_is_not_there(data_dir):
  with pytest.raises(ValueError, match=r"split 'test'; there is \['train'\]"):
    tfds_source.make('tiny_photos', 'test', data_dir)


@pytest.mark.parametrize(
    ('name', 'path', 'command'),
    [
        ('cifar10', 'cifar10/VERSION', 'tfds build cifar10 --data_dir='),
        ('mnist:3.0.1', 'mnist/3.0.1', 'tfds build mnist --data_dir='),
        ('no/such', 'no/such/VERSION', 'tfds build no/such --data_dir='),
        ('tiny_photos:9.0.0', 'tiny_photos/9.0.0', r'found there: 1.2.10'),
    ],
)
def test_what_is_not_prepared_is_refused_at_once(data_dir, name, path, command):
  """tensorflow/datasets#4115: it hung, or looked for a missing JSON file."""
  start = time.monotonic()
  with pytest.raises(FileNotFoundError, match=command) as error:
    tfds_source.make(name, 'train', data_dir)
  assert f'no {data_dir}/{path}' in str(error.value)
  assert time.monotonic() - start < 10


def test_the_default_folder_is_that_of_tfds(data_dir, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', data_dir)
  assert isinstance(tfds_source.make('tiny_photos', 'train'), records.Records)
