"""Losses of sentences against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from bigtransfer import tasks
from configs import common

MASK = np.array([1, 1, 1, 0], np.float32)


class Fixed:
  """A model whose logits are its parameters."""

  def apply(self, params, model_state, batch, *, train, rng):
    return {'logits': params}, model_state


def loss(logits, label, train=True, **loss_config):
  config = common.base()
  config.model.head = 'classification'
  config.model.num_classes = logits.shape[1]
  for key, value in loss_config.items():
    config.loss[key] = value
  task = tasks.build('sequence_classification', config, Fixed())
  batch = task.prepare({'label': jnp.asarray(label), 'mask': MASK}, None)
  return task.loss(jnp.asarray(logits, jnp.float32), {}, batch, None, train)


def test_cross_entropy_equals_numpy():
  logits = np.random.default_rng(0).normal(size=(4, 3))
  logits[3] = np.nan  # Padding may hold anything.
  label = np.array([2, 0, 1, 0], np.int32)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  nll = -log_p[np.arange(3), label[:3]]
  total, weight, metrics, _ = loss(logits, label)
  assert float(weight) == 3
  np.testing.assert_allclose(total, nll.sum(), rtol=1e-6)
  hits = (logits[:3].argmax(-1) == label[:3]).sum()
  assert [float(x) for x in metrics['accuracy']] == [hits, 3]
  smooth = 0.9 * nll - 0.1 * log_p[:3].mean(-1)
  total, *_ = loss(logits, label, label_smoothing=0.1)
  np.testing.assert_allclose(total, smooth.sum(), rtol=1e-6)
  total, *_ = loss(logits, label, train=False, label_smoothing=0.1)
  np.testing.assert_allclose(total, nll.sum(), rtol=1e-6)


def test_number_labels_are_regression():
  logits = np.array([[1.0], [2.5], [0.0], [np.nan]])
  label = np.array([0, 3, 2, 0], np.float32)
  total, weight, metrics, _ = loss(logits, label)
  assert (float(total), float(weight), metrics) == (5.25, 3.0, {})
  with pytest.raises(ValueError, match='num_classes=2: regression'):
    loss(np.zeros((4, 2)), label)


def test_another_head_is_refused():
  config = common.base()
  with pytest.raises(ValueError, match="head='pretraining'.*'classification'"):
    tasks.build('sequence_classification', config, Fixed())
