"""The loss of pretraining is exact for any masks, devices and micro-batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigtransfer import config as config_lib
from bigtransfer import program, tasks
from bigtransfer import state as state_lib
from bigtransfer.mesh import AXES
from bigtransfer.train_step import make_train_step
from configs import common

RNG = np.random.default_rng(3)
V, B, S = 11, 16, 5
WEIGHTS = (np.arange(S) < np.arange(B)[:, None] % (S + 1)).astype(np.float32)
BATCH = {
    'x': RNG.normal(size=(B, 4)).astype(np.float32),
    'masked_lm_ids': RNG.integers(0, V, (B, S)).astype(np.int32),
    'masked_lm_weights': WEIGHTS,
    'next_sentence_labels': RNG.integers(0, 2, B).astype(np.int32),
    'mask': (np.arange(B) != 3).astype(np.float32),
}
PARAMS = {
    'words': RNG.normal(size=(4, S, V)).astype(np.float32),
    'pairs': RNG.normal(size=(4, 2)).astype(np.float32),
}


class Linear:
  """Logits that are linear in `x`."""

  def apply(self, params, model_state, batch, *, train, rng):
    outputs = {
        'mlm_logits': jnp.einsum('bk,ksv->bsv', batch['x'], params['words']),
        'nsp_logits': batch['x'] @ params['pairs'],
    }
    return outputs, model_state


def task():
  return tasks.build('bert_pretraining', common.base(), Linear())


def reference(batch):
  """The formula, in float64."""
  x = batch['x'].astype(np.float64)

  def losses(logits, labels):
    top = logits.max(-1, keepdims=True)
    log_z = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
    return log_z - np.take_along_axis(logits, labels[..., None], -1)[..., 0]

  words = losses(np.einsum('bk,ksv->bsv', x, PARAMS['words']),
                 batch['masked_lm_ids'])
  pairs = losses(x @ PARAMS['pairs'], batch['next_sentence_labels'])
  weights = batch['masked_lm_weights'] * batch['mask'][:, None]
  mlm = (weights * words).sum() / max(weights.sum(), 1)
  return mlm, (batch['mask'] * pairs).sum() / batch['mask'].sum()


def run(accum_steps, devices, batch=BATCH):
  mesh = Mesh(np.array(jax.devices()[:devices]).reshape(-1, 1, 1), AXES)
  tx = optax.sgd(1.0)
  state = jax.device_put(
      state_lib.create(jax.tree.map(jnp.asarray, PARAMS), tx),
      NamedSharding(mesh, P()),
  )
  step = make_train_step(task(), tx, mesh=mesh, accum_steps=accum_steps)
  batch = jax.device_put(batch, NamedSharding(mesh, P('data')))
  return jax.device_get(step(state, batch))


@pytest.mark.parametrize('accum_steps, devices', [(1, 1), (4, 1), (2, 8)])
def test_uneven_masks_do_not_matter(accum_steps, devices):
  mlm, nsp = reference(BATCH)
  state, metrics = run(accum_steps, devices)
  np.testing.assert_allclose(metrics['loss'], mlm + nsp, rtol=1e-6)
  np.testing.assert_allclose(metrics['mlm_loss'], mlm, rtol=1e-6)
  np.testing.assert_allclose(metrics['nsp_loss'], nsp, rtol=1e-6)
  whole, _ = run(1, 1)
  for name in PARAMS:
    np.testing.assert_allclose(
        state.params[name], whole.params[name], rtol=1e-5, atol=1e-6
    )


def test_a_mean_of_means_would_be_wrong():
  """One prediction of loss 4 and three of loss 1 have mean 1.75, not 2.5."""

  class Given:
    def apply(self, params, model_state, batch, *, train, rng):
      # Of two logits (0, a), the loss of the first is log(1 + e^a).
      a = jnp.log(jnp.expm1(batch['losses'])) + params['zero']
      logits = jnp.stack([jnp.zeros_like(a), a], -1)
      pairs = jnp.stack([jnp.full(len(a), 99.0), jnp.zeros(len(a))], -1)
      return {'mlm_logits': logits, 'nsp_logits': pairs}, model_state

  batch = {
      'losses': np.array([[4, 9, 9], [1, 1, 1]], np.float32),
      'masked_lm_ids': np.zeros((2, 3), np.int32),
      'masked_lm_weights': np.array([[1, 0, 0], [1, 1, 1]], np.float32),
      'next_sentence_labels': np.zeros(2, np.int32),
      'mask': np.ones(2, np.float32),
  }
  mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), AXES)
  given = tasks.build('bert_pretraining', common.base(), Given())
  tx = optax.sgd(0.0)
  for accum_steps in (1, 2):
    state = state_lib.create({'zero': jnp.zeros(())}, tx)
    step = make_train_step(given, tx, mesh=mesh, accum_steps=accum_steps)
    _, metrics = step(state, batch)
    np.testing.assert_allclose(metrics['loss'], 1.75, rtol=1e-6)


def test_without_predictions_the_pairs_are_left():
  batch = BATCH | {'masked_lm_weights': np.zeros_like(WEIGHTS)}
  state, metrics = run(2, 1, batch)
  np.testing.assert_allclose(metrics['loss'], reference(batch)[1], rtol=1e-6)
  np.testing.assert_array_equal(state.params['words'], PARAMS['words'])


def test_a_label_of_id_0_counts():
  batch = {k: v[:1] for k, v in BATCH.items()} | {
      'masked_lm_ids': np.zeros((1, S), np.int32),
      'masked_lm_weights': np.eye(1, S, dtype=np.float32),
  }
  batch = task().prepare(jax.tree.map(jnp.asarray, batch), None)
  metrics = task().loss(PARAMS, {}, batch, None, True)[2]
  assert float(metrics['mlm_loss'][1]) == 1


def test_unused_slots_may_point_anywhere():
  unused = np.where(WEIGHTS > 0, BATCH['masked_lm_ids'], V - 1)
  _, metrics = run(1, 1, BATCH | {'masked_lm_ids': unused.astype(np.int32)})
  assert metrics['loss'] == run(1, 1)[1]['loss']


def test_another_head_is_refused():
  config = common.base()
  config.model.head = 'span'
  with pytest.raises(ValueError, match="head='span'.*needs 'pretraining'"):
    tasks.build('bert_pretraining', config, Linear())


def test_a_batch_of_4096_by_accumulation_is_one_batch_of_4096():
  """The real network, with dropout, uneven masks and a step of LAMB."""
  size, length, most = 4096, 8, 3
  config = common.base()
  config.task = 'bert_pretraining'
  config.batch_size, config.total_steps = size, 10
  config.model.name, config.model.vocab_size = 'bert', 50
  config.model.layers, config.model.hidden = 2, 16
  config.model.heads, config.model.ffn = 2, 32
  config.model.variant = 'tiny'
  config.optimizer.name, config.optimizer.learning_rate = 'lamb', 0.1
  rng = np.random.default_rng(0)
  ids = rng.integers(5, 50, (size, length)).astype(np.int32)
  weights = np.arange(most) < rng.integers(0, most + 1, (size, 1))
  batch = {
      'input_ids': ids,
      'input_mask': np.ones_like(ids),
      'segment_ids': np.zeros_like(ids),
      'masked_lm_positions': np.tile(np.int32([1, 3, 5]), (size, 1)),
      'masked_lm_ids': ids[:, [1, 3, 5]],
      'masked_lm_weights': weights.astype(np.float32),
      'next_sentence_labels': rng.integers(0, 2, size).astype(np.int32),
      'mask': np.ones(size, np.float32),
  }
  mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), AXES)
  ends = []
  for accum_steps in (1, 64):
    config.accum_steps = accum_steps
    spec = {k: (v.shape, v.dtype) for k, v in batch.items()}
    built = program.build(config_lib.resolve(config, 10**6), spec, mesh)
    state, metrics = built.step(built.init(), batch)
    metrics = dict(zip(built.metric_names, metrics.tolist(), strict=True))
    ends.append((jax.device_get(state.params), metrics))
  (whole, one), (split, other) = ends
  for name in ('loss', 'mlm_accuracy', 'nsp_loss', 'grad_norm'):
    assert other[name] == pytest.approx(one[name], rel=1e-5)
  for a, b in zip(
      jax.tree.leaves(whole), jax.tree.leaves(split), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=2e-4)
