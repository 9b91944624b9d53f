"""Layout of sequences, order, resume, processes and padding."""

import numpy as np
import pytest

from input_pipeline import order, token_batches

CLS, SEP = 1, 2


def make(first, second=None, length=8):
  return token_batches.Sequences(
      first, second, cls_id=CLS, sep_id=SEP, length=length
  )


def examples(n=10):
  rows = [[10 + i] * (i % 4 + 1) for i in range(n)]
  label = np.arange(n, dtype=np.int32)
  return token_batches.Examples(make(rows), {'label': label})


def test_pairs_are_laid_out_as_bert_does():
  # [CLS] a a [SEP] b b b [SEP] and padding to 12.
  row = make([[5, 5]], [[6, 6, 6]], 12).rows(np.array([0]))
  assert row['input_ids'][0].tolist() == [1, 5, 5, 2, 6, 6, 6, 2] + [0] * 4
  assert row['segment_ids'][0].tolist() == [0] * 4 + [1] * 4 + [0] * 4
  assert row['input_mask'][0].tolist() == [1] * 8 + [0] * 4


def test_single_texts_have_one_segment_and_are_cut():
  rows = make([[5] * 9, []], length=6).rows(np.array([0, 1]))
  assert rows['input_ids'].tolist() == [[1, 5, 5, 5, 5, 2], [1, 2, 0, 0, 0, 0]]
  assert not rows['segment_ids'].any()


def test_pairs_are_cut_as_the_loop_of_bert_does():
  for a in range(9):
    for b in range(9):
      for limit in range(2, 12):
        x, y = [0] * a, [0] * b
        while len(x) + len(y) > limit:
          (x if len(x) > len(y) else y).pop()
        assert token_batches.pair_lengths(a, b, limit) == (len(x), len(y))


def test_too_short_a_length_is_refused():
  with pytest.raises(ValueError, match='seq_length=4'):
    make([[5]], length=4)


@pytest.mark.parametrize('count', [1, 2, 4])
def test_batches_do_not_depend_on_processes_and_resume(count):
  def ids(step, process):
    batches = token_batches.TrainBatches(
        examples(),
        batch_size=4,
        seed=3,
        start_step=step,
        process=(process, count),
    )
    return next(batches)

  for step in range(6):
    parts = [ids(step, p) for p in range(count)]
    got = np.concatenate([p['id'] for p in parts])
    want = order.ids_at(step, num_examples=10, batch_size=4, seed=3)
    np.testing.assert_array_equal(got, want)
    labels = np.concatenate([p['label'] for p in parts])
    np.testing.assert_array_equal(labels, want)


def test_an_iterator_goes_on_where_a_later_start_begins():
  kwargs = {'batch_size': 4, 'seed': 0}
  whole = token_batches.TrainBatches(examples(), **kwargs)
  for _ in range(3):
    next(whole)
  later = token_batches.TrainBatches(examples(), start_step=3, **kwargs)
  np.testing.assert_equal(next(whole), next(later))
  whole.close()
  with pytest.raises(ValueError, match='closed'):
    next(whole)


@pytest.mark.parametrize('count', [1, 2, 3])
def test_evaluation_has_each_example_once_and_padding_last(count):
  batches = [
      token_batches.EvalBatches(
          examples(), None, batch_size=4, process=(p, count)
      )
      for p in range(count)
  ]
  size = -(-4 // count) * count
  assert {len(b) for b in batches} == {-(-10 // size)}
  steps = zip(*batches, strict=True)
  rows = [
      {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
      for parts in steps
  ]
  for row in rows:
    assert {k: (v.shape, v.dtype) for k, v in row.items()} == batches[0].spec
  ids = np.concatenate([row['id'] for row in rows])
  assert ids.tolist() == [*range(10), *[-1] * (len(rows) * size - 10)]
  padding = {k: v[ids[-size:] < 0] for k, v in rows[-1].items() if k != 'id'}
  assert not any(v.any() for v in padding.values())
  mask = np.concatenate([row['mask'] for row in rows])
  np.testing.assert_array_equal(mask, ids >= 0)
