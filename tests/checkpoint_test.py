"""Checkpoints: exact, on any mesh, never lost, never half."""

import os
import resource
import shutil

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigtransfer import checkpoint, retention, saved
from bigtransfer import state as state_lib

PARAMS = {'a': {'kernel': np.arange(64, dtype=np.float32).reshape(8, 8)}}
TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def section(**changes):
  values = dict(
      keep=2, keep_every=None, best_metric=None, best_mode='max'
  ) | changes
  return ml_collections.ConfigDict(values)


def new_state(tx=TX, with_ema=False):
  return jax.jit(
      lambda: state_lib.create(
          jax.tree.map(jnp.asarray, PARAMS), tx, with_ema=with_ema
      )
  )()


def abstract_on(devices, **kwargs):
  mesh = Mesh(np.array(devices), ('data',))

  def place(x):
    spec = P('data') if x.shape == (8, 8) else P()
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree.map(place, jax.eval_shape(lambda: new_state(**kwargs)))


@jax.jit
def bump(state):
  return jax.tree.map(lambda x: x + jnp.ones((), x.dtype), state)


donating_bump = jax.jit(bump, donate_argnums=0)


def assert_equal(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize('with_ema', [False, True])
def test_restores_bit_equal_on_other_meshes(tmp_path, with_ema):
  state = bump(new_state(with_ema=with_ema))
  eight = jax.device_put(
      state, jax.tree.map(lambda x: x.sharding,
                          abstract_on(jax.devices(), with_ema=with_ema))
  )
  with checkpoint.CheckpointManager(str(tmp_path), section()) as manager:
    manager.save(1, eight, {})
    manager.wait()
    for count in (8, 2, 1):
      target = abstract_on(jax.devices()[:count], with_ema=with_ema)
      restored = manager.restore(target)
      assert_equal(state, restored)
      for x, a in zip(jax.tree.leaves(restored), jax.tree.leaves(target),
                      strict=True):
        assert x.sharding == a.sharding


def test_each_checkpoint_holds_its_own_step_though_state_is_donated(tmp_path):
  state = new_state()
  with checkpoint.CheckpointManager(str(tmp_path), section(keep=None)) as m:
    for step in range(1, 21):
      state = donating_bump(state)
      m.save(step, state, {})
    m.wait()
    target = abstract_on(jax.devices()[:1])
    for step in range(1, 21):
      restored = m.restore(target, step)
      assert int(restored.step) == step
      np.testing.assert_array_equal(
          restored.params['a']['kernel'], PARAMS['a']['kernel'] + step
      )


@pytest.mark.parametrize(
    'config, losses, stay',
    [
        # Best is 100, newest is 600: both stay.
        (dict(keep=1, best_metric='loss', best_mode='min'),
         {100 * i: float(i) for i in range(1, 7)}, {100, 600}),
        (dict(keep=2, keep_every=300), dict.fromkeys(range(100, 900, 100), 1.),
         {300, 600, 700, 800}),
        (dict(keep=2, keep_every=300), dict.fromkeys(range(0, 1100, 100), 1.),
         {0, 300, 600, 900, 1000}),
        (dict(keep=1), {1: 1.0, 2: 1.0, 3: 1.0}, {3}),
        (dict(keep=None), {1: 1.0, 2: 1.0, 3: 1.0}, {1, 2, 3}),
        # NaN is never best, and never displaces the last good one.
        (dict(keep=1, best_metric='loss', best_mode='max'),
         {1: 2.0, 2: 1.0, 3: float('nan')}, {1, 2, 3}),
        (dict(keep=1), {1: 2.0, 2: float('nan'), 3: float('inf')}, {1, 3}),
        (dict(keep=1, best_metric='loss', best_mode='min'),
         {9000: 1.0, 10000: 1.0}, {10000}),
    ],
)
def test_which_checkpoints_stay(tmp_path, config, losses, stay):
  config = section(**config)
  metrics = {step: {'loss': loss} for step, loss in losses.items()}
  assert retention.kept(metrics, config) == stay
  state = new_state()
  with checkpoint.CheckpointManager(str(tmp_path), config) as manager:
    for step, values in metrics.items():
      manager.save(step, state, values)
    manager.wait()
    assert set(manager.steps()) == stay
    assert manager.latest_step() == max(stay)


def test_the_best_survives_in_a_new_process(tmp_path):
  config = section(keep=1, best_metric='loss', best_mode='min')
  state = new_state()
  with checkpoint.CheckpointManager(str(tmp_path), config) as manager:
    for step, loss in ((1, 0.5), (2, 0.7), (3, float('nan'))):
      manager.save(step, state, {'loss': loss})
  with checkpoint.CheckpointManager(str(tmp_path), config) as manager:
    assert manager.best_step() == 1
    manager.save(4, state, {'loss': 0.6})
    manager.wait()
    assert manager.steps() == [1, 4]


def test_half_written_checkpoints_are_passed_over(tmp_path):
  state = new_state()
  os.makedirs(tmp_path / '10.orbax-checkpoint-tmp-0')
  with checkpoint.CheckpointManager(str(tmp_path), section()) as manager:
    manager.save(5, state, {})
    manager.wait()
    shutil.copytree(tmp_path / '5' / 'params', tmp_path / '10' / 'params')
  with checkpoint.CheckpointManager(str(tmp_path), section()) as manager:
    assert manager.latest_step() == 5
    manager.save(10, bump(state), {})
    manager.wait()
    restored = manager.restore(abstract_on(jax.devices()[:1]))
    assert_equal(restored, bump(state))
    assert manager.steps() == [5, 10]


def test_a_copied_folder_restores_and_loses_nothing(tmp_path):
  state = new_state()
  with checkpoint.CheckpointManager(str(tmp_path / 'a'), section()) as manager:
    manager.save(5, state, {})
  shutil.copytree(tmp_path / 'a', tmp_path / 'b')
  with checkpoint.CheckpointManager(str(tmp_path / 'b'), section()) as manager:
    assert_equal(manager.restore(abstract_on(jax.devices()[:1])), state)
    assert manager.steps() == [5]


def test_another_optimizer_or_model_is_one_short_error(tmp_path):
  with checkpoint.CheckpointManager(str(tmp_path), section()) as manager:
    manager.save(1, bump(new_state()), {})
    manager.wait()
    sgd = optax.sgd(0.1, momentum=0.9)
    other = abstract_on(jax.devices()[:1], tx=sgd)
    with pytest.raises(saved.MismatchError, match='reset_optimizer'):
      manager.restore(other)
    state = manager.restore(other, reset_optimizer=sgd)
    assert_equal(state.opt_state, sgd.init(state.params))
    assert int(state.step) == 1
    with pytest.raises(saved.MismatchError, match='ema_decay'):
      manager.restore(abstract_on(jax.devices()[:1], with_ema=True))
    wider = other._replace(
        params={'a': {'kernel': jax.ShapeDtypeStruct((8, 9), jnp.float32)}}
    )
    with pytest.raises(
        saved.MismatchError, match=r'a/kernel of shape \(8, 8\).*\(8, 9\)'
    ):
      manager.restore(wider)


def test_what_is_not_there_is_named(tmp_path):
  with checkpoint.CheckpointManager(str(tmp_path), section()) as manager:
    with pytest.raises(FileNotFoundError, match='no checkpoint'):
      manager.restore(abstract_on(jax.devices()[:1]))
    manager.save(5, new_state(), {})
    manager.wait()
    with pytest.raises(FileNotFoundError, match=r'no checkpoint 7.*\[5\]'):
      manager.restore(abstract_on(jax.devices()[:1]), 7)
  with pytest.raises(FileNotFoundError, match='nope'):
    saved.restore_params(str(tmp_path / 'nope'))


@pytest.mark.parametrize('keep', [0, -1])
def test_keeping_nothing_is_refused(tmp_path, keep):
  with pytest.raises(ValueError, match=f'keep={keep}'):
    checkpoint.CheckpointManager(str(tmp_path), section(keep=keep))


def test_parameters_alone_prefer_the_average(tmp_path):
  state = new_state(with_ema=True)
  state = state._replace(ema=bump(state.ema))
  with checkpoint.CheckpointManager(str(tmp_path), section()) as manager:
    manager.save(3, state, {})
  params, step = saved.restore_params(str(tmp_path))
  assert step == 3
  assert_equal(params, state.ema)


def test_a_failed_save_keeps_the_last_good_one(tmp_path):
  big = {'a': {'kernel': jnp.asarray(np.random.normal(size=(1000, 1000)))}}
  state = state_lib.create(big, optax.sgd(0.1))
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  manager = checkpoint.CheckpointManager(str(tmp_path), section(keep=1))
  manager.save(1, state, {})
  manager.wait()
  # A file system that is full, as far as the process can tell.
  resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
  try:
    with pytest.raises(checkpoint.SaveError, match='intact'):
      manager.save(2, state, {})
      manager.wait()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert saved.complete_steps(str(tmp_path)) == [1]
  restored, _ = saved.restore_params(str(tmp_path))
  assert_equal(restored, big)


def test_a_bucket_keeps_as_a_folder_does(bucket, tmp_path):
  """And one copied into it is read as one saved there."""
  place, state = 'gs://bucket/run/checkpoints', new_state(with_ema=True)
  for folder in (place, str(tmp_path)):
    with checkpoint.CheckpointManager(folder, section(keep=2)) as manager:
      for step in (1, 2, 3):
        state = bump(state)
        manager.save(step, state, {'loss': 1.0})
      manager.wait()
      assert manager.steps() == [2, 3]
      restored = manager.restore(abstract_on(jax.devices(), with_ema=True))
      assert_equal(restored, state)
  for file in tmp_path.glob('3/**/*'):
    if file.is_file():
      bucket.put(f'copied/{file.relative_to(tmp_path)}', file.read_bytes())
  params, step = saved.restore_params('gs://bucket/copied')
  assert step == 3
  assert_equal(params, state.ema)


def test_half_a_checkpoint_in_a_bucket_is_passed_over(bucket):
  place, state = 'gs://bucket/run/checkpoints', new_state()
  with checkpoint.CheckpointManager(place, section()) as manager:
    manager.save(5, state, {})
    manager.save(10, bump(state), {})
    manager.wait()
    del bucket.objects['run/checkpoints/10/commit_success.txt']
    assert manager.steps() == [5]
  assert saved.restore_params(place)[1] == 5
  bucket.put('run/checkpoints/10/params/left_over', b'')
  with checkpoint.CheckpointManager(place, section()) as manager:
    manager.save(10, bump(state), {})
    manager.wait()
    assert manager.steps() == [5, 10]
    assert 'run/checkpoints/10/params/left_over' not in bucket.objects
    restored = manager.restore(abstract_on(jax.devices()[:1]))
    assert_equal(restored, bump(state))


def test_a_save_in_a_bucket_may_break_off_anywhere(bucket):
  """At each part of its requests: the newest that is there restores."""
  place, state = 'gs://bucket/run/checkpoints', new_state()
  one = abstract_on(jax.devices()[:1])
  with checkpoint.CheckpointManager(place, section(keep=1)) as manager:
    manager.save(1, state, {})
    manager.wait()
    before = dict(bucket.objects), len(bucket.requests)
    manager.save(2, bump(state), {})
    manager.wait()
    count = len(bucket.requests) - before[1]
  found = []
  for part in (0.1, 0.4, 0.7, 0.97):
    bucket.objects = dict(before[0])
    manager = checkpoint.CheckpointManager(place, section(keep=1))
    end = len(bucket.requests) + int(part * count)
    bucket.refuse = lambda *_, e=end: 403 if len(bucket.requests) > e else None
    with pytest.raises(checkpoint.SaveError):
      manager.save(2, bump(state), {})
      manager.close()
    bucket.refuse = lambda *_: None
    with checkpoint.CheckpointManager(place, section(keep=1)) as manager:
      found.append(manager.latest_step())
      wanted = state if found[-1] == 1 else bump(state)
      assert_equal(manager.restore(one), wanted)
  assert found == sorted(found) and found[0] == 1
