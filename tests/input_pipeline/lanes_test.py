"""The order of sources read front to back, against lists of record numbers."""

import collections
import os

import numpy as np
import pytest

from input_pipeline import lanes, pipeline, records
from input_pipeline.host import tf


def _png(value):
  return tf.io.encode_png(np.full((2, 2, 1), value, np.uint8)).numpy()


def _write(folder, sizes, labels=None):
  """Shards of `sizes`; pixel and label of a record tell its number."""
  number = 0
  for shard, size in enumerate(sizes):
    name = f'{folder}/train-{shard:05d}-of-{len(sizes):05d}'
    with tf.io.TFRecordWriter(name) as writer:
      for _ in range(size):
        label = number % 5 if labels is None else labels[number]
        feature = {
            'image/encoded': tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[_png(number)])
            ),
            'image/class/label': tf.train.Feature(
                int64_list=tf.train.Int64List(value=[label])
            ),
        }
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        writer.write(example.SerializeToString())
        number += 1
  return os.path.join(folder, 'train-*')


@pytest.fixture(scope='module')
def sources_of(tmp_path_factory):
  """Returns a function from shard sizes to a source."""
  made = {}

  def source(*sizes):
    if sizes not in made:
      folder = str(tmp_path_factory.mktemp('records'))
      made[sizes] = records.TfRecord(_write(folder, sizes), num_classes=5)
    return made[sizes]

  return source


def _train(source, **kwargs):
  defaults = {
      'batch_size': 8,
      'ops': 'decode|resize(2)',
      'seed': 0,
      'threads': 1,
      'lanes': 4,
      'shuffle_buffer': 16,
  }
  return pipeline.train_batches(source, **(defaults | kwargs))


def _ids(batches, steps):
  return np.stack([next(batches)['id'] for _ in range(steps)])


@pytest.mark.parametrize(
    ('sizes', 'count'), [((16,), 4), ((7, 9, 1, 12), 2), ((3, 0, 2), 2)]
)
def test_the_global_batch_does_not_depend_on_processes(
    sources_of, sizes, count
):
  whole = _ids(_train(sources_of(*sizes)), 12)
  parts = [
      _ids(_train(sources_of(*sizes), process_index=i, process_count=count), 12)
      for i in range(count)
  ]
  np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize('sizes', [(16,), (7, 9, 1, 12), (3, 0, 2)])
def test_every_epoch_reads_each_record_once(sources_of, sizes):
  """By lane and place: record n of lane l is at position n * L + l."""
  total = sum(sizes)
  ids = _ids(_train(sources_of(*sizes)), 3 * total)
  # [step, lane, place in the lane's rows] -> [n, lane] -> positions.
  positions = ids.reshape(-1, 4, 2).transpose(0, 2, 1).reshape(-1)
  for epoch in range(24):
    seen = positions[epoch * total : (epoch + 1) * total]
    np.testing.assert_array_equal(np.sort(seen), np.arange(total))


@pytest.mark.parametrize('window', [1, 1000])
def test_epochs_and_seeds_differ(sources_of, window):
  """By the order of the shards alone, too."""
  source = sources_of(*(4,) * 12)
  ids = _ids(_train(source, shuffle_buffer=window), 12)
  assert (ids[:6] != ids[6:]).mean() > 0.7
  other = _ids(_train(source, shuffle_buffer=window, seed=1), 12)
  assert (ids != other).mean() > 0.7


@pytest.mark.parametrize(
    ('sizes', 'window', 'start'),
    [
        ((16,), 16, 1),
        ((7, 9, 1, 12), 1, 4),
        ((7, 9, 1, 12), 1000, 11),
        ((5,) * 12, 16, 11),
        ((3, 0, 2), 1000, 4),
    ],
)
def test_a_seek_equals_reading_on(sources_of, sizes, window, start):
  source = sources_of(*sizes)
  whole = _ids(_train(source, shuffle_buffer=window), start + 5)
  after = _train(source, shuffle_buffer=window, start_step=start)
  np.testing.assert_array_equal(_ids(after, 5), whole[start:])


def test_images_and_labels_belong_to_the_ids(sources_of):
  batch = next(_train(sources_of(7, 9, 1, 12)))
  np.testing.assert_array_equal(batch['image'][:, 0, 0, 0], batch['id'])
  np.testing.assert_array_equal(batch['label'], batch['id'] % 5)


def test_a_seek_passes_over_whole_shards():
  """Of a lane's 30 records in shards of 10, a seek to 25 leaves the last 5."""
  pieces = lanes.cut(np.full(6, 10), np.arange(6)[::-1], 30, 60, 25)
  assert pieces.numpy().tolist() == [[0, 0, 10, 5]]
  pieces = lanes.cut(np.full(6, 10), np.arange(6), 5, 25, 0)
  assert pieces.numpy().tolist() == [[0, 5, 5, 0], [1, 0, 10, 0], [2, 0, 5, 0]]


@pytest.mark.parametrize('count', [4])
def test_one_file_for_four_processes(sources_of, count):
  """Four examples each of one file with 16: AI-Hypercomputer/maxtext#3807."""
  source = sources_of(16)
  train = [
      _ids(_train(source, process_index=i, process_count=count), 2)
      for i in range(count)
  ]
  assert sorted(np.concatenate(train, axis=1).reshape(-1)) == list(range(16))
  seen = collections.Counter()
  for i in range(count):
    batches = pipeline.eval_batches(
        source,
        batch_size=8,
        ops='decode|resize(2)',
        process_index=i,
        process_count=count,
        threads=1,
    )
    mine = np.concatenate([b['id'][b['mask'] == 1] for b in batches])
    assert len(mine) == 16 // count
    seen.update(mine.tolist())
  assert seen == collections.Counter(range(16))


@pytest.mark.parametrize(
    ('sizes', 'count'), [((7, 9, 1, 12), 1), ((7, 9, 1, 12), 4), ((3, 0), 4)]
)
def test_evaluation_reads_each_record_once(sources_of, sizes, count):
  parts = [
      pipeline.eval_batches(
          sources_of(*sizes),
          batch_size=6,
          ops='decode|resize(2)',
          process_index=i,
          process_count=count,
          threads=1,
      )
      for i in range(count)
  ]
  assert len({len(part) for part in parts}) == 1
  batches = [b for part in parts for b in part]
  assert len({b['image'].shape for b in batches}) == 1
  ids = np.concatenate([b['id'][b['mask'] == 1] for b in batches])
  assert sorted(ids) == list(range(sum(sizes)))


@pytest.mark.parametrize(
    'wrong', [{'lanes': 3}, {'process_count': 8}, {'lanes': 2, 'batch_size': 3}]
)
def test_lanes_that_do_not_divide(sources_of, wrong):
  with pytest.raises(ValueError, match=r'data.lanes=\d must divide batch_size'):
    _train(sources_of(16), **wrong)


def test_the_default_number_of_lanes_depends_on_the_batch_alone(sources_of):
  source = sources_of(*(5,) * 12)
  default = _ids(_train(source, lanes=0, batch_size=12), 3)
  np.testing.assert_array_equal(
      default, _ids(_train(source, lanes=4, batch_size=12), 3)
  )
