"""Metrics and submission files of GLUE from logits that are given."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bigtransfer.evaluators import glue
from configs import common


def make(logits, labels, written, metrics, *, parts=None, task='csv', size=4):
  """An evaluator over padded batches with `logits` as model."""
  config = common.base()
  config.data.task = task
  logits = np.array(logits, np.float32)
  count = len(logits)
  references = SimpleNamespace(
      labels=np.array(labels),
      written=written,
      parts=parts or (('', 0, count),),
      metrics=metrics,
  )
  data = SimpleNamespace(
      evaluate=lambda config: SimpleNamespace(references=references)
  )

  def batches():
    rows = -(-count // size) * size
    padded = np.full((rows, logits.shape[1]), 99, np.float32)
    padded[:count] = logits
    mask = (np.arange(rows) < count).astype(np.float32)
    for i in range(0, rows, size):
      part = slice(i, i + size)
      yield jax.device_put({'logits': padded[part], 'mask': mask[part]})

  return glue.Evaluator(
      config,
      predict=lambda params, state, batch: {'logits': batch['logits']},
      batches=batches,
      data=data,
  )


def test_classes():
  logits = [[1, 0], [0, 2], [3, 0], [0, 1], [0, 1], [0, 0.5]]
  labels = [0, 1, 1, 1, 0, -1]
  evaluator = make(logits, labels, ('no', 'yes'), ('f1', 'accuracy'))
  got = evaluator.run({}, {})
  gap = np.array([1, 2, -3, 1, -1])
  assert got['loss'] == pytest.approx(np.log1p(np.exp(-gap)).mean(), rel=1e-6)
  assert got['accuracy'] == 0.6
  assert got['f1'] == pytest.approx(4 / 6)
  assert got['num_examples'] == 5
  assert evaluator.tables() == {
      'predictions.tsv': 'index\tprediction\n0\tno\n1\tyes\n2\tno\n3\tyes\n'
      '4\tyes\n5\tyes\n'
  }


def test_regression():
  logits = [[1.0], [2.0], [4.0], [6.0], [-1.0]]
  labels = [1, 2, 3, 5, np.nan]
  metrics = ('pearson', 'spearman')
  evaluator = make(logits, labels, (), metrics, task='stsb')
  got = evaluator.run({}, {})
  assert got['loss'] == 0.5
  assert got['spearman'] == pytest.approx(1)
  want = np.corrcoef([1, 2, 4, 6], [1, 2, 3, 5])[0, 1]
  assert got['pearson'] == pytest.approx(want)
  # GLUE wants STS-B within 0 and 5.
  table = evaluator.tables()['predictions.tsv']
  assert table.endswith('\n2\t4.000\n3\t5.000\n4\t0.000\n')
  evaluator = make(logits, labels, (), metrics)
  evaluator.run({}, {})
  assert '3\t6.000' in evaluator.tables()['predictions.tsv']


def test_parts_are_scored_and_written_apart():
  parts = (('matched', 0, 2), ('mismatched', 2, 5))
  labels = [0, 0, 0, 1, 1]
  evaluator = make(
      np.eye(2)[[0, 0, 1, 1, 1]],
      labels,
      ('a', 'b'),
      ('accuracy',),
      parts=parts,
  )
  got = evaluator.run({}, {})
  assert got['accuracy'] == 1
  assert got['accuracy_mismatched'] == pytest.approx(2 / 3)
  assert got['num_examples'] == 2 and got['num_examples_mismatched'] == 3
  tables = evaluator.tables()
  assert tables['predictions.tsv'] == 'index\tprediction\n0\ta\n1\ta\n'
  assert tables['predictions_mismatched.tsv'].endswith('\n0\tb\n1\tb\n2\tb\n')


def test_an_unlabelled_split_is_predicted_only():
  evaluator = make(np.eye(3)[[2, 1]], [-1, -1], ('a', 'b'), ('accuracy',))
  assert evaluator.run({}, {}) == {'num_examples': 0.0}
  # The head's third output is no class.
  assert evaluator.tables()['predictions.tsv'].endswith('\n0\ta\n1\tb\n')
