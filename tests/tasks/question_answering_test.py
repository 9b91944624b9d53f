"""The span loss against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bigtransfer import tasks
from configs import common

RNG = np.random.default_rng(0)
BATCH = {
    'input_mask': np.array(
        [[1] * 6, [1, 1, 1, 0, 0, 0], [1] * 5 + [0], [0] * 6], np.int32
    ),
    'start_positions': np.array([2, 0, 3, 0], np.int32),
    'end_positions': np.array([5, 0, 4, 0], np.int32),
    'mask': np.array([1, 1, 1, 0], np.float32),
}


class Fixed:
  """A model whose logits are its parameters."""

  def apply(self, params, model_state, batch, *, train, rng):
    return {'start_logits': params[0], 'end_logits': params[1]}, model_state


def loss(logits):
  config = common.base()
  config.model.head = 'span'
  task = tasks.build('question_answering', config, Fixed())
  batch = task.prepare(jax.tree.map(jnp.asarray, BATCH), None)
  return task.loss(logits, {}, batch, None, True)


def test_loss_equals_numpy_and_padding_takes_no_part():
  logits = RNG.normal(size=(2, 4, 6)).astype(np.float32)
  want, hits = 0.0, 0
  for row in range(3):
    length = BATCH['input_mask'][row].sum()
    right = True
    for ends, name in zip(logits, ('start', 'end'), strict=True):
      x = ends[row, :length].astype(np.float64)
      position = BATCH[f'{name}_positions'][row]
      want += (np.log(np.exp(x).sum()) - x[position]) / 2
      right &= x.argmax() == position
    hits += right
  logits[:, BATCH['input_mask'] == 0] = 50
  total, weight, metrics, _ = loss(jnp.asarray(logits))
  np.testing.assert_allclose(total, want, rtol=1e-6)
  assert float(weight) == 3
  assert [float(x) for x in metrics['accuracy']] == [hits, 3]


def test_both_ends_must_be_right():
  logits = np.zeros((2, 4, 6), np.float32)
  logits[0, 0, 2] = logits[1, 0, 5] = logits[0, 2, 3] = 9
  _, _, metrics, _ = loss(jnp.asarray(logits))
  # Row 0 is right; row 1 is, as ties go to [CLS]; row 2 in its start only.
  assert float(metrics['accuracy'][0]) == 2


def test_a_padding_row_has_no_gradient():
  logits = jnp.asarray(RNG.normal(size=(2, 4, 6)), jnp.float32)
  gradient = jax.grad(lambda x: loss(x)[0])(logits)
  assert np.isfinite(gradient).all()
  assert not gradient[:, 3].any()
  assert not gradient[:, BATCH['input_mask'] == 0].any()


def test_another_head_is_refused():
  with pytest.raises(ValueError, match="head='pretraining'.* needs 'span'"):
    tasks.build('question_answering', common.base(), Fixed())
