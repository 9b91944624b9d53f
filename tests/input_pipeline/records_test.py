"""TFRecord files: counts, keys, labels, broken files."""

import json

import numpy as np
import pytest

from input_pipeline import pipeline, records
from input_pipeline.host import tf


def _write(path, count, label=1, image_key='image/encoded'):
  png = tf.io.encode_png(np.zeros((2, 2, 3), np.uint8)).numpy()
  with tf.io.TFRecordWriter(str(path)) as writer:
    for _ in range(count):
      example = tf.train.Example()
      feature = example.features.feature
      feature[image_key].bytes_list.value.append(png)
      feature['image/class/label'].int64_list.value.append(label)
      writer.write(example.SerializeToString())
  return str(path)


@pytest.mark.parametrize('count', [0, 1, 57])
def test_counts(tmp_path, count):
  path = _write(tmp_path / 'train-0', count)
  assert records.count_records(path) == count
  assert sum(1 for _ in tf.data.TFRecordDataset(path)) == count


def test_a_million_small_records_are_counted_in_no_time(tmp_path):
  path = str(tmp_path / 'train-0')
  record = (0).to_bytes(8, 'little') + bytes(8)
  with open(path, 'wb') as file:
    file.write(record * 100_000)
  assert records.count_records(path) == 100_000


def test_cut_off_files(tmp_path):
  path = tmp_path / 'train-0'
  _write(path, 3)
  path.write_bytes(path.read_bytes()[:-5])
  with pytest.raises(ValueError, match='train-0 is cut off.* record 3'):
    records.TfRecord(str(path), num_classes=2)
  _write(path, 3)
  path.write_bytes(path.read_bytes() + b'more')
  with pytest.raises(ValueError, match='train-0 is cut off.* record 3'):
    records.TfRecord(str(path), num_classes=2)
  path.write_bytes(b'no records at all')
  with pytest.raises(ValueError, match='train-0 is cut off or no TFRecord'):
    records.TfRecord(str(path), num_classes=2)


def test_counts_beside_the_files(tmp_path):
  for i in range(3):
    _write(tmp_path / f'train-{i}', i + 1)
  pattern = str(tmp_path / 'train-*')
  records.write_counts(pattern)
  with open(tmp_path / 'record_counts.json') as file:
    counts = json.load(file)
  assert [counts[f'train-{i}'][0] for i in range(3)] == [1, 2, 3]
  # A count that only the table can give: it is not counted again.
  counts['train-0'][0] = 5
  (tmp_path / 'record_counts.json').write_text(json.dumps(counts))
  assert len(records.TfRecord(pattern, num_classes=2)) == 10
  _write(tmp_path / 'train-1', 4)
  with pytest.raises(ValueError, match=r'train-1 has \d+ bytes and not \d+'):
    records.TfRecord(pattern, num_classes=2)


def test_no_files(tmp_path):
  with pytest.raises(FileNotFoundError, match=f'{tmp_path}/train-'):
    records.TfRecord(f'{tmp_path}/train-*', num_classes=2)


def test_keys_and_labels_from_one(tmp_path):
  path = _write(tmp_path / 'a', 4, label=1000, image_key='jpeg')
  source = records.TfRecord(
      path, num_classes=1000, image_key='jpeg', label_offset=-1
  )
  (batch,) = pipeline.eval_batches(source, batch_size=4, ops='decode|resize(2)')
  assert batch['label'].tolist() == [999] * 4


def test_missing_features_name_the_record(tmp_path):
  source = records.TfRecord(
      _write(tmp_path / 'a', 4), num_classes=2, image_key='jpeg'
  )
  batches = pipeline.eval_batches(source, batch_size=4, ops='decode|resize(2)')
  with pytest.raises(pipeline.BadImage, match=r'a record 0 .*jpeg'):
    list(batches)


@pytest.mark.parametrize('bad_images', ['stop', 'skip'])
def test_damaged_files_are_named(tmp_path, bad_images):
  """A record with a wrong checksum says only how far into its file it is."""
  for i in range(3):
    _write(tmp_path / f'train-{i}', 8)
  damaged = bytearray((tmp_path / 'train-1').read_bytes())
  damaged[60] ^= 255
  (tmp_path / 'train-1').write_bytes(damaged)
  source = records.TfRecord(str(tmp_path / 'train-*'), num_classes=2)
  batches = pipeline.eval_batches(
      source, batch_size=4, ops='decode|resize(2)', bad_images=bad_images
  )
  with pytest.raises(pipeline.BadImage, match='train-1: corrupted record'):
    list(batches)


def test_first(tmp_path):
  for i in range(3):
    _write(tmp_path / f'train-{i}', 4)
  source = records.TfRecord(str(tmp_path / 'train-*'), num_classes=2).first(6)
  batches = pipeline.eval_batches(source, batch_size=3, ops='decode|resize(2)')
  ids = np.concatenate([batch['id'] for batch in batches])
  assert sorted(ids) == list(range(6))
  training = pipeline.train_batches(
      source, batch_size=6, ops='decode|resize(2)', seed=0
  )
  for _ in range(3):
    assert sorted(next(training)['id']) == list(range(6))
