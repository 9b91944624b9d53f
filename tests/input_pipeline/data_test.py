"""The data of a config: opened and checked before anything trains."""

import ml_collections
import numpy as np
import pytest
from PIL import Image

from input_pipeline import pipeline


def _config(**data):
  config = ml_collections.ConfigDict()
  config.seed = 3
  config.batch_size = 4
  config.eval_batch_size = None
  config.data = {
      'source': 'embedded',
      'name': 'fashion_mnist',
      'path': None,
      'train_split': 'train',
      'eval_split': 'test',
      'bad_images': 'stop',
      'train_ops': 'random_crop(24)|value_range(-1, 1)',
      'eval_ops': 'central_crop(24)|value_range(-1, 1)',
      'allow_empty_classes': False,
      'cache': 'none',
      'shuffle_buffer': 100,
      'lanes': 0,
      'threads': 1,
      'prefetch': 1,
      'tfrecord': {'num_classes': 3},
      **data,
  }
  return config


@pytest.fixture
def photos(tmp_path):
  for split, count in {'train': 6, 'test': 3}.items():
    for i in range(count):
      folder = tmp_path / split / 'ab'[i % 2]
      folder.mkdir(parents=True, exist_ok=True)
      image = Image.new('RGB', (32, 30), (i, 100, 200))
      image.save(folder / f'{i}.png')
  return str(tmp_path)


def _of_folder(path, **kwargs):
  ops = 'decode|resize(24)|value_range(-1, 1)'
  return _config(
      source='folder', path=path, train_ops=ops, eval_ops=ops, **kwargs
  )


def test_embedded():
  config = _config()
  data = pipeline.Data(config, process_index=1, process_count=2)
  assert (data.num_examples, data.model_fields()) == (
      10000, {'num_classes': 10})
  assert data.class_names[0] == 'T-shirt/top'
  assert data.spec['image'] == ((4, 24, 24, 1), np.float32)
  batch = next(data.train(config, 7))
  expected = pipeline.Data(config).train(config, 7)
  np.testing.assert_array_equal(batch['id'], next(expected)['id'][2:])
  assert len(data.evaluate(config)) == 500
  assert len(data.evaluate(config, 'train')) == 2500
  config.eval_batch_size = 1000
  assert len(data.evaluate(config)) == 2


def test_folder(photos):
  config = _of_folder(photos)
  data = pipeline.Data(config)
  assert data.class_names == ('a', 'b') and data.num_examples == 6
  (batch,) = data.evaluate(config)
  assert batch['label'].tolist() == [0, 0, 1, 0]
  assert batch['mask'].tolist() == [1, 1, 1, 0]
  assert data.evaluate(config) is data.evaluate(config)


def test_csv(photos, tmp_path):
  for split in ('train', 'test'):
    text = f'path,label\n{split}/a/0.png,x\n{split}/b/1.png,y\n'
    (tmp_path / f'{split}.csv').write_text(text)
  config = _of_folder(photos, bad_images='skip')
  config.data.source = 'csv'
  data = pipeline.Data(config)
  assert data.class_names == ('x', 'y')
  assert next(data.train(config))['image'].shape == (4, 24, 24, 3)


def test_classes_of_evaluation_are_those_of_training(photos, tmp_path):
  (tmp_path / 'test' / 'a').rename(tmp_path / 'gone')
  config = _of_folder(photos)
  (batch,) = pipeline.Data(config).evaluate(config)
  assert batch['label'][batch['mask'] == 1].tolist() == [1]


def test_cached_images_are_the_same(photos):
  plain, cached = _of_folder(photos), _of_folder(photos, cache='raw')
  a = pipeline.Data(plain).train(plain)
  b = pipeline.Data(cached).train(cached)
  for _ in range(4):
    expected, batch = next(a), next(b)
    for key in expected:
      np.testing.assert_array_equal(batch[key], expected[key])


def test_the_cache_reads_files_once(photos, tmp_path):
  config = _of_folder(photos, cache='raw')
  data = pipeline.Data(config)
  for path in tmp_path.glob('*/*/*.png'):
    path.unlink()
  batches = data.train(config)
  assert {next(batches)['mask'].sum() for _ in range(3)} == {4}
  assert sum(batch['mask'].sum() for batch in data.evaluate(config)) == 3


def test_a_phase_can_have_other_data(photos):
  first = _config()
  data = pipeline.Data(first)
  second = _of_folder(photos)
  assert next(data.train(second))['image'].shape == (4, 24, 24, 3)


@pytest.mark.parametrize(
    ('wrong', 'error', 'message'),
    [
        (
            {'source': 'foldr'},
            ValueError,
            "'foldr'; there is csv, embedded, fol",
        ),
        ({'source': 'folder'}, ValueError, 'data.path is not set'),
        (
            {'source': 'csv', 'path': '/nope'},
            FileNotFoundError,
            '/nope/train.csv',
        ),
        (
            {'source': 'folder', 'path': '/nope'},
            FileNotFoundError,
            '/nope/train',
        ),
        (
            {'source': 'tfrecord', 'path': '/nope'},
            FileNotFoundError,
            '/nope/train',
        ),
        (
            {'source': 'tfds', 'path': '/nope'},
            FileNotFoundError,
            '/nope/fashion',
        ),
        ({'eval_split': 'val'}, ValueError, "split 'val'"),
        (
            {'eval_ops': 'central_crop(24)|value_rnge'},
            ValueError,
            'value_range',
        ),
        ({'train_ops': 'random_crop(29)'}, ValueError, 'does not fit'),
    ],
)
def test_mistakes_are_found_at_once(wrong, error, message):
  with pytest.raises(error, match=message):
    pipeline.Data(_config(**wrong))
