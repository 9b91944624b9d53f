"""Images that cannot be decoded are named, or skipped and listed."""

import io

import numpy as np
import pytest
from PIL import Image

from input_pipeline import pipeline, records, sources
from input_pipeline.host import tf

_CROP = 'decode_inception_crop(8)'
_PLAIN = 'decode|resize(8)'


def _encoded(kind, size=(60, 40), **kwargs):
  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
  data = io.BytesIO()
  Image.fromarray(pixels).resize(size).save(data, kind, **kwargs)
  return data.getvalue()


GOOD = _encoded('JPEG')
BAD = {
    'cut.jpg': GOOD[: len(GOOD) // 2],
    'empty.jpg': b'',
    'text.png': b'not an image',
    'photo.tif': _encoded('TIFF'),
    'tiff.jpg': _encoded('TIFF'),
}


@pytest.fixture
def folder(tmp_path):
  """Returns a function that makes a source of good files and the given."""

  def make(files, good=7):
    (tmp_path / 'train' / 'a').mkdir(parents=True)
    files = {f'{i}.jpg': GOOD for i in range(good)} | files
    for name, content in files.items():
      (tmp_path / 'train' / 'a' / name).write_bytes(content)
    return sources.ImageFolder(str(tmp_path), 'train')

  return make


def _train(source, ops=_PLAIN, **kwargs):
  return pipeline.train_batches(
      source, batch_size=4, ops=ops, seed=0, threads=1, **kwargs
  )


@pytest.mark.parametrize('ops', [_CROP, _PLAIN])
@pytest.mark.parametrize('name', BAD)
def test_the_run_stops_and_names_the_file(folder, name, ops):
  source = folder({name: BAD[name]})
  bad = [path.endswith(name) for path in source.paths].index(True)
  batches = _train(source, ops)
  with pytest.raises(pipeline.BadImage) as error:
    for _ in range(2):
      batch = next(batches)
      assert bad not in batch['id']
  message = str(error.value)
  assert message.startswith(f'{source.paths[bad]} (id {bad}): ')
  assert '{{' not in message and '\n' not in message and 'Op:' not in message


def test_evaluation_stops_too(folder):
  source = folder({'cut.jpg': BAD['cut.jpg']})
  batches = pipeline.eval_batches(source, batch_size=3, ops=_PLAIN, threads=1)
  with pytest.raises(pipeline.BadImage, match=r'cut.jpg \(id 7\): '):
    list(batches)


def test_a_file_that_went_away_is_named(folder, tmp_path):
  source = folder({})
  (tmp_path / 'train' / 'a' / '3.jpg').unlink()
  message = r'3.jpg \(id 3\): .*No such file'
  with pytest.raises(pipeline.BadImage, match=message):
    list(_train(source))


@pytest.mark.parametrize('ops', [_CROP, _PLAIN])
def test_skipped_images_are_masked_and_listed(folder, ops):
  source = folder(BAD, good=15)
  clean = _train(source, ops, bad_images='skip')
  seen = [next(clean) for _ in range(5)]
  batch = {k: np.concatenate([b[k] for b in seen]) for k in seen[0]}
  bad = {i for i in range(20) if source.paths[i].rsplit('/', 1)[1] in BAD}
  np.testing.assert_array_equal(np.sort(batch['id']), np.arange(20))
  assert set(batch['id'][batch['mask'] == 0]) == bad
  assert not batch['image'][batch['mask'] == 0].any()
  assert batch['image'][batch['mask'] == 1].any(axis=(1, 2, 3)).all()
  assert sorted(clean.bad) == [(i, source.paths[i]) for i in sorted(bad)]


def test_skipping_changes_nothing_else(folder):
  source = folder({}, good=16)
  stop = [next(b) for b in [_train(source, _CROP)] for _ in range(6)]
  skip = [
      next(b)
      for b in [_train(source, _CROP, bad_images='skip', prefetch=1)]
      for _ in range(6)
  ]
  for a, b in zip(stop, skip, strict=True):
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def test_skipping_in_evaluation_counts_the_rest(folder):
  source = folder({'cut.jpg': BAD['cut.jpg']})
  batches = pipeline.eval_batches(
      source, batch_size=3, ops=_PLAIN, threads=1, bad_images='skip'
  )
  for _ in range(2):
    assert sum(b['mask'].sum() for b in batches) == 7
    assert batches.bad == [(7, source.paths[7])]


def test_trailing_bytes_do_not_make_an_image_bad(folder):
  """tensorflow/datasets#2188: cats-vs-dogs has hundreds of these."""
  source = folder({'trailing.jpg': GOOD + bytes(245)}, good=1)
  (batch,) = pipeline.eval_batches(source, batch_size=2, ops=_PLAIN)
  assert batch['mask'].tolist() == [1, 1]
  np.testing.assert_array_equal(batch['image'][0], batch['image'][1])


def _tfrecord(path, images, labels):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for image, label in zip(images, labels, strict=True):
      example = tf.train.Example()
      feature = example.features.feature
      feature['image/encoded'].bytes_list.value.append(image)
      feature['image/class/label'].int64_list.value.append(label)
      writer.write(example.SerializeToString())
  return records.TfRecord(str(path), num_classes=3)


@pytest.mark.parametrize('bad_images', ['stop', 'skip'])
def test_records_are_named_by_file_and_number(tmp_path, bad_images):
  path = tmp_path / 'train-0'
  source = _tfrecord(path, [GOOD] * 5 + [b'?'] + [GOOD] * 2, [0] * 8)
  batches = _train(source, bad_images=bad_images)
  if bad_images == 'stop':
    with pytest.raises(pipeline.BadImage, match=rf'{path} record 5 \(id 5\): '):
      [next(batches) for _ in range(2)]
  else:
    [next(batches) for _ in range(2)]
    assert batches.bad == [(5, f'{path} record 5')]


def test_labels_out_of_range_name_the_record(tmp_path):
  source = _tfrecord(tmp_path / 'train-0', [GOOD] * 4, [0, 1, 2, 3])
  message = r'train-0 record 3 \(id 3\): label 3 is not in \[(0|-1), 3\)'
  with pytest.raises(pipeline.BadImage, match=message):
    next(_train(source))
  with pytest.raises(pipeline.BadImage, match=message):
    list(pipeline.eval_batches(source, batch_size=4, ops=_PLAIN))
