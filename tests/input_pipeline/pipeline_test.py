"""Batches: the same for any number of processes, after any seek."""

import os

import numpy as np
import psutil
import pytest
from PIL import Image

from input_pipeline import order, pipeline, sources
from input_pipeline.host import tf

_OPS = 'pad(2)|random_crop(8)|flip_lr|value_range(-1,1)'


def _arrays(size=20, shape=(8, 8, 3)):
  rng = np.random.default_rng(0)
  return sources.ArraySource(
      {
          'image': rng.integers(0, 256, (size, *shape), dtype=np.uint8),
          'label': np.arange(size) % 4,
      }
  )


def _train(source, **kwargs):
  defaults = {'batch_size': 4, 'ops': _OPS, 'seed': 0, 'threads': 1}
  return pipeline.train_batches(source, **(defaults | kwargs))


def _take(batches, count):
  return [next(batches) for _ in range(count)]


def _joined(parts):
  return {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}


def _assert_same(a, b):
  assert set(a) == set(b)
  for key in a:
    np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def _folder(root, files):
  """Writes {'train/cat/0.jpg': bytes or an image}; returns the root."""
  for name, content in files.items():
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if isinstance(content, bytes):
      with open(path, 'wb') as file:
        file.write(content)
    else:
      content.save(path)
  return str(root)


def _photo(seed, size=(40, 30)):
  rng = np.random.default_rng(seed)
  pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
  return Image.fromarray(pixels).resize(size)


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
  files = {f'train/{"ab"[i % 2]}/{i}.jpg': _photo(i) for i in range(12)}
  root = _folder(tmp_path_factory.mktemp('photos'), files)
  return sources.ImageFolder(root, 'train')


def test_keys_types_and_spec():
  batches = _train(_arrays())
  batch = next(batches)
  assert set(batch) == {'image', 'label', 'mask', 'id'}
  assert {k: (v.shape, v.dtype) for k, v in batch.items()} == batches.spec
  assert batches.spec == {
      'id': ((4,), np.int64),
      'image': ((4, 8, 8, 3), np.float32),
      'label': ((4,), np.int32),
      'mask': ((4,), np.float32),
  }
  assert batch['image'].min() >= -1 and batch['image'].max() <= 1
  np.testing.assert_array_equal(batch['label'], batch['id'] % 4)


def test_the_spec_is_of_the_global_batch():
  batches = _train(_arrays(), process_index=1, process_count=2)
  assert batches.spec['image'][0] == (4, 8, 8, 3)
  assert next(batches)['image'].shape == (2, 8, 8, 3)


def test_ids_are_those_of_the_order():
  for step, batch in enumerate(_take(_train(_arrays(), batch_size=6), 8)):
    expected = order.ids_at(step, num_examples=20, batch_size=6, seed=0)
    np.testing.assert_array_equal(batch['id'], expected)


@pytest.mark.parametrize(
    ('ops', 'count'), [(_OPS, 2), (_OPS, 4), ('inception_crop(8)|flip_lr', 4)]
)
def test_the_global_batch_does_not_depend_on_processes(ops, count):
  """Augmentation included: google-research/big_vision draws per process."""
  whole = _take(_train(_arrays(), ops=ops), 7)
  parts = [
      _take(_train(_arrays(), ops=ops, process_index=i, process_count=count), 7)
      for i in range(count)
  ]
  for step in range(7):
    _assert_same(_joined([part[step] for part in parts]), whole[step])


@pytest.mark.parametrize('start', [1, 5, 6, 13])
def test_a_seek_equals_reading_on(start):
  whole = _take(_train(_arrays()), 16)
  for batch, after in zip(
      _take(_train(_arrays(), start_step=start), 3), whole[start:], strict=False
  ):
    _assert_same(batch, after)


def test_a_seek_is_as_fast_far_out():
  batch = next(_train(_arrays(), start_step=10**12))
  expected = order.ids_at(10**12, num_examples=20, batch_size=4, seed=0)
  np.testing.assert_array_equal(batch['id'], expected)


def test_another_batch_size_goes_on_at_the_same_example():
  """allenai/OLMo PR#182: batch 8 for 10 steps, then batch 4 from step 20."""
  whole = _joined(_take(_train(_arrays(), batch_size=8), 12))
  after = _joined(_take(_train(_arrays(), start_step=20), 4))
  _assert_same({k: v[80:] for k, v in whole.items()}, after)


def test_augmentation_depends_on_epoch_and_example():
  image = np.tile(np.arange(64, dtype=np.uint8), (20, 64, 1))[..., None]
  source = sources.ArraySource({'image': image, 'label': np.zeros(20, int)})
  batches = _take(_train(source, batch_size=20, ops='random_crop(8)'), 2)
  lefts = [b['image'][np.argsort(b['id']), 0, 0, 0] for b in batches]
  assert len(set(lefts[0])) > 10
  assert (lefts[0] != lefts[1]).mean() > 0.8


def test_folder_batches(photos):
  ops = 'decode_inception_crop(16)|flip_lr|value_range(0,1)'
  whole = _take(_train(photos, ops=ops), 5)
  assert whole[0]['image'].shape == (4, 16, 16, 3)
  parts = [
      _take(_train(photos, ops=ops, process_index=i, process_count=2), 5)
      for i in range(2)
  ]
  for step in range(5):
    _assert_same(_joined([part[step] for part in parts]), whole[step])
  _assert_same(next(_train(photos, ops=ops, start_step=4)), whole[4])
  names = [photos.paths[i] for i in whole[0]['id']]
  labels = ['ab'.index(os.path.basename(os.path.dirname(n))) for n in names]
  assert whole[0]['label'].tolist() == labels


@pytest.mark.parametrize('threads', [1, 3])
def test_threads_do_not_change_batches(photos, threads):
  ops = 'decode|random_crop(16)'
  _assert_same(
      _joined(_take(_train(photos, ops=ops, threads=threads), 4)),
      _joined(_take(_train(photos, ops=ops, threads=0), 4)),
  )


@pytest.mark.parametrize(
    ('size', 'batch_size', 'steps'),
    [(10, 4, 3), (3, 8, 1), (8, 4, 2), (1, 1, 1)],
)
def test_evaluation_counts_each_example_once(size, batch_size, steps):
  batches = pipeline.eval_batches(
      _arrays(size), batch_size=batch_size, ops='', threads=1
  )
  assert len(batches) == steps
  for _ in range(2):
    seen = list(batches)
    assert len(seen) == steps
    assert {b['image'].shape for b in seen} == {(batch_size, 8, 8, 3)}
    every = _joined(seen)
    np.testing.assert_array_equal(every['id'][:size], np.arange(size))
    assert every['mask'].sum() == size
    padding = every['mask'] == 0
    assert (every['id'][padding] == -1).all()
    assert not every['image'][padding].any()
    assert not every['label'][padding].any()


@pytest.mark.parametrize(
    ('batch_size', 'count'), [(1, 2), (3, 4), (4, 2), (4, 8), (10, 4), (13, 8)]
)
def test_evaluation_on_processes(batch_size, count):
  parts = [
      pipeline.eval_batches(
          _arrays(10),
          batch_size=batch_size,
          ops='',
          process_index=i,
          process_count=count,
          threads=1,
      )
      for i in range(count)
  ]
  local = -(-batch_size // count)
  assert {len(part) for part in parts} == {-(-10 // (local * count))}
  every = _joined([b for part in parts for b in part])
  assert len(every['id']) == len(parts[0]) * local * count
  assert sorted(every['id'][every['mask'] == 1]) == list(range(10))


def test_unlabelled_examples_are_for_evaluation_only():
  source = sources.ArraySource(
      {'image': np.zeros((10, 4, 4), np.uint8), 'label': [0, -1, 1, 1, -1] * 2}
  )
  (batch,) = pipeline.eval_batches(source, batch_size=10, ops='')
  assert batch['mask'].tolist() == [1] * 10
  assert batch['label'].tolist() == [0, -1, 1, 1, -1] * 2
  message = r'example \d \(id \d\): label -1 is not in \[0, 2\)'
  with pytest.raises(pipeline.BadImage, match=message):
    next(_train(source, batch_size=10, ops=''))


def test_memory_does_not_grow(tmp_path):
  """google-research/big_vision#36, scaled down: epoch 10 against epoch 3."""
  files = {f'train/a/{i}.jpg': _photo(i, (256, 256)) for i in range(200)}
  source = sources.ImageFolder(_folder(tmp_path, files), 'train')
  batches = _train(
      source, batch_size=100, ops='decode_inception_crop(64)|flip_lr'
  )
  used = []
  for _ in range(10):
    _take(batches, 2)
    used.append(psutil.Process().memory_info().rss)
  assert used[9] < 1.1 * used[2]


def test_closing_ends_the_batches():
  batches = _train(_arrays())
  next(batches)
  batches.close()
  with pytest.raises(ValueError, match='closed'):
    next(batches)


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ({'bad_images': 'ignore'}, "bad_images='ignore'"),
        ({'cache': 'final'}, "cache='final'"),
        ({'ops': 'resise(8)'}, "did you mean 'resize'"),
        ({'ops': 'random_crop(9)'}, r'\(9, 9\).*\(8, 8'),
        ({'batch_size': 10, 'process_count': 4}, 'nearest: 8 and 12'),
    ],
)
def test_mistakes_are_found_before_reading(wrong, message):
  with pytest.raises(ValueError, match=message):
    _train(_arrays(), **wrong)


def test_encoded_images_need_a_size_and_decoding(photos):
  with pytest.raises(ValueError, match='leave the image size open'):
    _train(photos, ops='decode|resize_small(8)')
  with pytest.raises(ValueError, match='must begin with decode'):
    _train(photos, ops='resize(8)')


def test_tensorflow_sees_no_accelerator():
  next(_train(_arrays()))
  assert tf.config.get_visible_devices('GPU') == []
  assert tf.config.get_visible_devices('TPU') == []


@pytest.mark.parametrize('size', [8, 300])  # In chunks of 64, and not.
def test_files_in_chunks_are_what_they_are_one_by_one(tmp_path, size):
  """With 'skip' every example stays a row of its own up to the batch."""
  files = {f'train/cat/{i}.jpg': _photo(i) for i in range(5)}
  source = sources.ImageFolder(_folder(tmp_path, files), 'train')
  ops = f'decode|resize({size})|random_crop({size - 2})|flip_lr|value_range'
  chunks, single = (
      _train(source, ops=ops, bad_images=how) for how in ('stop', 'skip')
  )
  for _ in range(3):
    _assert_same(next(chunks), next(single))
