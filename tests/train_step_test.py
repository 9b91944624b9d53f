"""The step is exact under accumulation, devices, padding and bad values."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigtransfer import state as state_lib
from bigtransfer.mesh import AXES
from bigtransfer.optim import factory
from bigtransfer.train_step import make_train_step

RNG = np.random.default_rng(0)
PARAMS = {'dense': {'kernel': RNG.normal(size=(3, 2)).astype(np.float32)}}
BATCH = {
    'x': RNG.normal(size=(32, 3)).astype(np.float32),
    'y': RNG.normal(size=(32, 2)).astype(np.float32),
    # Uneven on purpose: some micro-batches hold far more weight than others.
    'mask': (np.arange(32) % 4 < np.arange(32) // 8).astype(np.float32),
}


class Regression:
  """Masked squared error; the mean of means over micro-batches is wrong."""

  def loss(self, params, model_state, batch, rng, train):
    error = batch['x'] @ params['dense']['kernel'] - batch['y']
    losses = jnp.sum(jnp.square(error), axis=-1)
    weight = jnp.sum(batch['mask'])
    loss_sum = jnp.sum(batch['mask'] * losses)
    size = jnp.sum(batch['mask'] * jnp.abs(error[:, 0]))
    return loss_sum, weight, {'size': (size, weight)}, model_state


def mesh_of(count):
  return Mesh(np.array(jax.devices()[:count]).reshape(count, 1, 1), AXES)


def run(steps=1, *, devices=1, batch=BATCH, tx=None, with_ema=False,
        task=None, **kwargs):
  mesh = mesh_of(devices)
  tx = tx or optax.sgd(0.1, momentum=0.9)
  replicated = NamedSharding(mesh, P())
  state = jax.jit(
      lambda: state_lib.create(
          jax.tree.map(jnp.asarray, PARAMS), tx, with_ema=with_ema
      ),
      out_shardings=replicated,
  )()
  step = make_train_step(task or Regression(), tx, mesh=mesh, **kwargs)
  batch = jax.device_put(batch, NamedSharding(mesh, P('data')))
  history = []
  for _ in range(steps):
    state, metrics = step(state, batch)
    history.append(jax.device_get(metrics))
  assert step._cache_size() == min(steps, 1)  # It compiled once.
  return jax.device_get(state), history


def reference_gradient():
  x, y, mask = (BATCH[k].astype(np.float64) for k in ('x', 'y', 'mask'))
  error = x @ PARAMS['dense']['kernel'] - y
  loss = (mask * (error**2).sum(-1)).sum() / mask.sum()
  return 2 * x.T @ (mask[:, None] * error) / mask.sum(), loss


def test_loss_and_update_equal_the_formula():
  gradient, loss = reference_gradient()
  state, [metrics] = run(tx=optax.sgd(0.1))
  want = PARAMS['dense']['kernel'] - 0.1 * gradient
  np.testing.assert_allclose(state.params['dense']['kernel'], want, rtol=1e-6)
  np.testing.assert_allclose(metrics['loss'], loss, rtol=1e-6)
  norm = np.linalg.norm(gradient)
  np.testing.assert_allclose(metrics['grad_norm'], norm, rtol=1e-6)
  np.testing.assert_allclose(metrics['update_norm'], 0.1 * norm, rtol=1e-6)


@pytest.mark.parametrize('devices', [1, 8])
@pytest.mark.parametrize('accum_steps', [1, 2, 4])
def test_accumulation_and_devices_leave_everything_as_it_is(
    devices, accum_steps
):
  want_state, want = run(3)
  state, got = run(3, devices=devices, accum_steps=accum_steps)
  for a, b in zip(jax.tree.leaves(want_state), jax.tree.leaves(state),
                  strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-6)
  for a, b in zip(want, got, strict=True):
    assert a.keys() == b.keys()
    for name in a:
      np.testing.assert_allclose(a[name], b[name], rtol=2e-6, err_msg=name)


def test_two_micro_batches_of_uneven_weight():
  # A: one token of loss 4; B: three of loss 1. The mean is 7/4, not 2.5.
  class Tokens:

    def loss(self, params, model_state, batch, rng, train):
      scale = params['dense']['kernel'][0, 0] / PARAMS['dense']['kernel'][0, 0]
      loss = jnp.sum(batch['mask'] * batch['loss']) * scale
      return loss, jnp.sum(batch['mask']), {}, model_state

  batch = {
      'loss': np.array([4, 1, 0, 1, 0, 1], np.float32),
      'mask': np.array([1, 1, 0, 1, 0, 1], np.float32),
  }
  _, [metrics] = run(task=Tokens(), batch=batch, accum_steps=2)
  assert metrics['loss'] == pytest.approx(1.75)


def test_a_batch_without_weight_changes_nothing():
  batch = BATCH | {'mask': np.zeros(32, np.float32)}
  state, [metrics] = run(batch=batch, tx=optax.sgd(0.1))
  assert metrics['loss'] == 0 and metrics['grad_norm'] == 0
  np.testing.assert_array_equal(
      state.params['dense']['kernel'], PARAMS['dense']['kernel']
  )


@pytest.mark.parametrize('nonfinite', ['stop', 'skip'])
def test_a_bad_step_changes_only_position_and_counter(nonfinite):
  bad = BATCH | {'x': np.where(np.arange(32)[:, None] == 31, np.nan,
                               BATCH['x']).astype(np.float32)}
  tx = optax.adam(0.1)
  kwargs = dict(tx=tx, with_ema=True, ema_decay=0.5, nonfinite=nonfinite)
  # optax.adam takes a float to the power of its int32 count.
  with jax.numpy_dtype_promotion('standard'):
    before, _ = run(0, **kwargs)
    after, history = run(2, batch=bad, **kwargs)
  for part in ('params', 'opt_state', 'ema', 'model_state'):
    for a, b in zip(jax.tree.leaves(getattr(before, part)),
                    jax.tree.leaves(getattr(after, part)), strict=True):
      np.testing.assert_array_equal(a, b)
  assert (after.step, after.skipped) == (2, 2)
  assert [m['skipped'] for m in history] == [1, 2]
  assert history[0]['nonfinite_leaf'] == 0
  assert not np.isfinite(history[0]['loss'])


def test_an_unknown_nonfinite_is_refused():
  with pytest.raises(ValueError, match="nonfinite='ignore'.*'stop', 'skip'"):
    run(nonfinite='ignore')


def test_the_logged_rate_is_the_one_used():
  # Warm-up over 4 updates, plain SGD: the change is the rate * gradient.
  rate = optax.linear_schedule(0.0, 1.0, 4)
  logged = lambda opt_state: rate(factory.clock(opt_state))  # noqa: E731
  _, history = run(6, tx=optax.sgd(rate), learning_rate=logged)
  for k, m in enumerate(history):
    assert m['lr'] == pytest.approx(min(k / 4, 1))
    assert m['update_norm'] == pytest.approx(m['lr'] * m['grad_norm'], 1e-5)


def test_the_average_is_a_copy_that_follows():
  state, _ = run(0, with_ema=True, ema_decay=0.75)
  np.testing.assert_array_equal(
      state.ema['dense']['kernel'], PARAMS['dense']['kernel']
  )
  state, _ = run(1, with_ema=True, ema_decay=0.75)
  want = 0.75 * PARAMS['dense']['kernel'] + 0.25 * state.params['dense'][
      'kernel'
  ]
  np.testing.assert_allclose(state.ema['dense']['kernel'], want, rtol=1e-6)


def test_preparation_sees_the_global_batch_once():
  class Reversing(Regression):

    def prepare(self, batch, rng):
      return batch | {'y': batch['y'][::-1] + jax.random.normal(rng, (32, 2))}

  want, _ = run(task=Reversing())
  got, _ = run(task=Reversing(), accum_steps=4, devices=8)
  plain, _ = run()
  a, b, c = (s.params['dense']['kernel'] for s in (want, got, plain))
  np.testing.assert_allclose(a, b, rtol=2e-6)
  assert np.abs(a - c).max() > 1e-3


def test_what_is_drawn_by_row_does_not_depend_on_micro_batches():
  class Noisy(Regression):
    def loss(self, params, model_state, batch, rng, train):
      keys = jax.vmap(jax.random.fold_in, (None, 0))(rng, batch['row'])
      noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)
      batch = batch | {'x': batch['x'] + noise}
      return super().loss(params, model_state, batch, rng, train)

  runs = [run(2, task=Noisy(), **kwargs)[1][-1]['loss'] for kwargs in (
      {}, {'accum_steps': 4}, {'accum_steps': 2, 'devices': 8})]
  np.testing.assert_allclose(runs[1:], runs[:1] * 2, rtol=1e-6)
  assert abs(runs[0] - run(2)[1][-1]['loss']) > 1e-3
