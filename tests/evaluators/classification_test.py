"""Every example counts once, padding and unknown labels never."""

import csv
import io
import types

import jax.numpy as jnp
import numpy as np
import pytest

from bigtransfer import evaluators
from bigtransfer.evaluators import classification
from configs import common

RNG = np.random.default_rng(1)


def make(logits, labels, sizes, *, mask=None, k=5, loss='softmax', top_k=5):
  """An evaluator over batches of the given sizes, with `logits` as model."""
  config = common.base()
  config.model.num_classes = k
  config.loss.name = loss
  config.classification.top_k = top_k
  mask = np.ones(len(labels), np.float32) if mask is None else mask

  def batches():
    begin = 0
    for size in sizes:
      rows = slice(begin, begin + size)
      yield {
          'logits': jnp.asarray(logits[rows]),
          'label': jnp.asarray(labels[rows]),
          'mask': jnp.asarray(mask[rows]),
      }
      begin += size

  return classification.Evaluator(
      config,
      predict=lambda params, state, batch: {'logits': batch['logits']},
      batches=batches,
      data=types.SimpleNamespace(
          class_names=[f'class {i}' for i in range(k)]
      ),
  )


def test_uneven_batches_equal_numpy():
  logits = RNG.normal(size=(10, 7)).astype(np.float32)
  labels = RNG.integers(0, 7, 10).astype(np.int32)
  got = make(logits, labels, [4, 4, 2], k=7, top_k=3).run({}, {})
  log_z = np.log(np.exp(logits.astype(np.float64)).sum(-1))
  loss = (log_z - logits[np.arange(10), labels]).mean()
  order = np.argsort(-logits, axis=-1)
  assert got['loss'] == pytest.approx(loss, rel=1e-6)
  assert got['accuracy'] == (order[:, 0] == labels).mean()
  assert got['top_3'] == (order[:, :3] == labels[:, None]).any(-1).mean()
  assert got['num_examples'] == 10


def test_sigmoid_loss_equals_numpy():
  logits = RNG.normal(size=(4, 3)).astype(np.float32)
  labels = np.array([0, 1, 2, 0], np.int32)
  target = np.eye(3)[labels]
  p = 1 / (1 + np.exp(-logits.astype(np.float64)))
  want = -(target * np.log(p) + (1 - target) * np.log(1 - p)).sum(-1).mean()
  got = make(logits, labels, [4], k=3, loss='sigmoid').run({}, {})
  assert got['loss'] == pytest.approx(want, rel=1e-6)


def test_the_mean_is_over_examples_not_over_batches():
  labels = np.zeros(10, np.int32)
  logits = np.eye(2, dtype=np.float32)[[0] * 8 + [1] * 2]
  got = make(logits, labels, [4, 4, 2], k=2).run({}, {})
  assert got['accuracy'] == 0.8


def test_padding_and_unknown_labels_weigh_nothing():
  logits = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 0, 0]]
  logits[4:] = np.nan  # Padding may hold anything.
  labels = np.array([0, 1, 1, -1, 0, 0], np.int32)
  mask = np.array([1, 1, 1, 1, 0, 0], np.float32)
  evaluator = make(logits, labels, [6], mask=mask, k=3)
  got = evaluator.run({}, {})
  assert got['num_examples'] == 3
  assert got['accuracy'] == pytest.approx(2 / 3)
  assert np.isfinite(got['loss'])
  table = list(csv.DictReader(io.StringIO(evaluator.tables()['per_class.csv'])))
  assert [(r['images'], r['correct']) for r in table] == [
      ('1', '1'), ('2', '1'), ('0', '0')
  ]
  assert (table[1]['taken_for'], table[1]['times']) == ('class 2', '1')
  assert table[2]['accuracy'] == ''


def test_top_k_is_at_most_the_number_of_classes():
  logits = RNG.normal(size=(10, 2)).astype(np.float32)
  got = make(logits, np.zeros(10, np.int32), [10], k=2).run({}, {})
  assert got['top_2'] == 1.0
  got = make(logits, np.zeros(10, np.int32), [10], k=2, top_k=1).run({}, {})
  assert not [name for name in got if name.startswith('top')]


def test_nothing_to_evaluate_is_an_error():
  logits = np.zeros((2, 2), np.float32)
  labels = np.full(2, -1, np.int32)
  with pytest.raises(ValueError, match='no labelled example'):
    make(logits, labels, [2], k=2).run({}, {})


def test_unknown_evaluators_are_answered_with_the_known_ones():
  with pytest.raises(ValueError, match="'clasification'.*classification"):
    evaluators.load('clasification')
