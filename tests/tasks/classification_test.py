"""Losses and targets of image classification against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bigtransfer import tasks
from configs import common

RNG = np.random.default_rng(2)
LOGITS = RNG.normal(size=(6, 4)).astype(np.float32)
BATCH = {
    'image': np.zeros((6, 2, 2, 1), np.float32),
    'label': np.array([0, 1, 2, 3, 0, 1], np.int32),
    'mask': np.array([1, 1, 1, 1, 1, 0], np.float32),
}


class Fixed:
  """A model whose logits are its parameters."""

  def apply(self, params, model_state, batch, *, train, rng):
    return {'logits': params}, model_state


def make(**loss):
  config = common.base()
  config.model.num_classes = 4
  for name, value in loss.items():
    config.loss[name] = value
  return tasks.build('classification', config, Fixed())


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.parametrize('name', ['softmax', 'sigmoid'])
def test_loss_equals_numpy(name, smoothing):
  task = make(name=name, label_smoothing=smoothing)
  batch = task.prepare(
      jax.tree.map(jnp.asarray, BATCH), jax.random.key(0)
  )
  total, weight, metrics, _ = task.loss(
      jnp.asarray(LOGITS), {}, batch, None, True
  )
  x = LOGITS.astype(np.float64)
  t = (1 - smoothing) * np.eye(4)[BATCH['label']] + smoothing / 4
  if name == 'softmax':
    losses = -(t * (x - np.log(np.exp(x).sum(-1, keepdims=True)))).sum(-1)
  else:
    losses = (np.log1p(np.exp(x)) - t * x).sum(-1)
  assert float(weight) == 5
  np.testing.assert_allclose(total, losses[:5].sum(), rtol=1e-6)
  hits = (x.argmax(-1) == BATCH['label'])[:5].sum()
  assert (float(metrics['accuracy'][0]), float(metrics['accuracy'][1])) == (
      hits, 5
  )


def test_a_padded_row_may_hold_anything():
  logits = LOGITS.copy()
  logits[5] = np.nan
  total, _, metrics, _ = make().loss(
      jnp.asarray(logits), {}, BATCH, None, False
  )
  assert np.isfinite(float(total)) and np.isfinite(
      float(metrics['accuracy'][0])
  )


def test_an_unknown_task_is_answered_with_the_known_ones():
  with pytest.raises(ValueError, match="'clasify'.*classification"):
    tasks.build('clasify', common.base(), Fixed())
