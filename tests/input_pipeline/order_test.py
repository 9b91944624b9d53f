"""The order of examples: a permutation per epoch, free to seek and to share."""

import numpy as np
import pytest

from input_pipeline import order
from input_pipeline.host import tf


def _ids(steps, **kwargs):
  return np.stack([order.ids_at(step, **kwargs) for step in steps])


def _epochs(count, size):
  positions = tf.range(count * size, dtype=tf.int64)
  ids, epochs = order.shuffled(positions, num_examples=size, seed=0)
  np.testing.assert_array_equal(epochs, np.repeat(np.arange(count), size))
  return ids.numpy().reshape(count, size)


@pytest.mark.parametrize('size', [1, 2, 7, 10, 103, 1000])
def test_every_epoch_is_a_permutation(size):
  ids = _ids(range(3), num_examples=size, batch_size=size, seed=0)
  assert ids.dtype == np.int64
  np.testing.assert_array_equal(np.sort(ids), [np.arange(size)] * 3)


def test_a_batch_spans_epochs_and_nothing_is_dropped():
  ids = _ids(range(15), num_examples=20, batch_size=8, seed=1).reshape(-1)
  np.testing.assert_array_equal(np.bincount(ids), [6] * 20)
  for epoch in ids.reshape(6, 20):
    np.testing.assert_array_equal(np.sort(epoch), np.arange(20))


@pytest.mark.parametrize('count', [2, 4, 8])
def test_processes_have_contiguous_blocks_of_one_global_batch(count):
  kwargs = {'num_examples': 101, 'batch_size': 16, 'seed': 3}
  for step in range(14):
    blocks = [
        order.ids_at(step, process_index=i, process_count=count, **kwargs)
        for i in range(count)
    ]
    assert {block.shape for block in blocks} == {(16 // count,)}
    np.testing.assert_array_equal(
        np.concatenate(blocks), order.ids_at(step, **kwargs)
    )


def test_sizes_of_103_examples_on_8_processes_differ_by_one():
  """tensorflow/datasets#3119: percentages gave 6,000 and 6,500 of 50,000."""
  seen = [[] for _ in range(8)]
  for step in range(13):
    for i in range(8):
      row = order.ids_at(
          step,
          num_examples=103,
          batch_size=8,
          seed=0,
          process_index=i,
          process_count=8,
      )
      if step * 8 + i < 103:
        seen[i] += row.tolist()
  assert {len(ids) for ids in seen} == {12, 13}
  assert sorted(sum(seen, [])) == list(range(103))


def test_epochs_and_seeds_differ_and_repeat():
  kwargs = {'num_examples': 1000, 'batch_size': 1000}
  first, second = _ids(range(2), seed=0, **kwargs)
  assert (first == second).mean() < 0.01
  other = order.ids_at(0, seed=1, **kwargs)
  assert (first == other).mean() < 0.01
  np.testing.assert_array_equal(order.ids_at(0, seed=0, **kwargs), first)


def test_small_sets_do_not_repeat_an_epoch():
  """The cipher below reads 8 bits of a key word for a set this small."""
  ids = _epochs(1000, 30)
  assert len({tuple(row) for row in ids}) == 1000


def test_places_are_uniform():
  ids = _epochs(500, 10)
  counts = np.stack([(ids == i).sum(0) for i in range(10)])
  chi2 = ((counts - 50) ** 2 / 50).sum()
  assert chi2 < 136  # 99.99% of chi squared with 81 degrees of freedom.


def test_neighbours_of_one_epoch_are_not_neighbours_in_the_next():
  first, second = _ids(range(2), num_examples=10000, batch_size=10000, seed=0)
  correlation = np.corrcoef(np.argsort(first), np.argsort(second))[0, 1]
  assert abs(correlation) < 0.04  # Four standard deviations.


def test_order_is_pinned():
  """Another order makes a resumed run see other examples than before."""
  ids = order.ids_at(5, num_examples=50000, batch_size=8, seed=42)
  expected = [330, 29935, 31595, 12218, 22298, 8630, 12728, 46996]
  assert ids.tolist() == expected


@pytest.mark.parametrize(
    'wrong',
    [
        {'batch_size': 10, 'process_count': 4},
        {'batch_size': 0},
        {'process_index': 2, 'process_count': 2},
        {'num_examples': 0},
        {'step': -1},
    ],
)
def test_sizes_that_do_not_fit(wrong):
  kwargs = {'step': 0, 'num_examples': 5, 'batch_size': 4, 'seed': 0} | wrong
  with pytest.raises(ValueError, match='=') as error:
    order.ids_at(**kwargs)
  if kwargs['batch_size'] == 10:
    assert 'nearest: 8 and 12' in str(error.value)
