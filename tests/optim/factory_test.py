"""Optimizers against NumPy, freezing, narrow moments, many devices."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from bigtransfer import mesh as mesh_lib
from bigtransfer import sharding, trees
from bigtransfer import state as state_lib
from bigtransfer.optim import factory, lamb, schedules

PEAK = 0.5
RATES = (0.0, 0.25, 0.5, 0.4)  # warm-up 2, then linear to 0 at step 7
RULES = dict(
  decay_rules=(('.*/kernel', 1.0), ('.*', 0.0)),
  lr_rules=(('head/.*', 0.5), ('.*', 1.0)),
)


def make_config(clip_norm=None, **optimizer):
  defaults = dict(
    name='sgd',
    learning_rate=PEAK,
    momentum=0.9,
    nesterov=False,
    b1=0.8,
    b2=0.95,
    eps=1e-2,
    weight_decay=0.1,
    decay='coupled',
    moment_dtype='float32',
    momentum_after_rate=True,
    trust_coefficient=0.01,
    **lamb.preset('tf'),
  )
  schedule = dict(
    name='linear',
    warmup=2,
    warmup_start=0,
    power=1.0,
    end=0.0,
    decay_from='warmup',
    boundaries=(),
    factor=0.1,
    timescale=1,
  )
  return ml_collections.ConfigDict(
    dict(
      total_steps=7,
      clip_norm=clip_norm,
      optimizer=defaults | RULES | optimizer,
      schedule=schedule,
    )
  )


def arrays(seed):
  rng = np.random.default_rng(seed)
  return {
    'body': {'kernel': rng.normal(size=(16, 8)), 'bias': rng.normal(size=8)},
    'head': {'kernel': rng.normal(size=(8, 4))},
  }


def to_device(tree):
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def train(config, params, gradients):
  """Returns the parameters after each gradient, and the last state."""
  params = to_device(params)
  tx = factory.make(config, params)
  state, history = jax.jit(tx.init)(params), []

  @jax.jit
  def step(params, state, grads):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  for grads in gradients:
    params, state = step(params, state, to_device(grads))
    history.append(params)
  assert step._cache_size() == 1
  return history, state


def check(config, reference, rtol=1e-5):
  """Compares four steps with `reference(w, grads, decay, multiplier)`."""
  params, gradients = arrays(0), [arrays(seed) for seed in (1, 2, 3, 4)]
  history, _ = train(config, params, gradients)
  leaves = dict(trees.flatten(params))
  for path, w in leaves.items():
    decay = config.optimizer.weight_decay * path.endswith('kernel')
    multiplier = 0.5 if path.startswith('head') else 1.0
    grads = [dict(trees.flatten(g))[path] for g in gradients]
    expected = reference(w, grads, decay, multiplier)
    actual = [dict(trees.flatten(p))[path] for p in history]
    for k, (a, b) in enumerate(zip(actual, expected, strict=True)):
      np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6, err_msg=f'{k}')
    assert not np.allclose(actual[0], actual[-1])


@pytest.mark.parametrize('decay', ['coupled', 'decoupled', 'independent'])
@pytest.mark.parametrize(
  ('momentum', 'nesterov'), [(0.9, False), (0.9, True), (0.0, False)]
)
def test_sgd_equals_numpy(decay, momentum, nesterov):
  def reference(w, grads, wd, multiplier):
    history, buffer = [], np.zeros_like(w)
    for rate, g in zip(RATES, grads, strict=True):
      if decay == 'coupled':
        g = g + wd * w
      buffer = momentum * buffer + g
      step = g + momentum * buffer if nesterov else buffer
      shrink = {
        'coupled': 0.0,
        'decoupled': multiplier * rate * wd,
        'independent': rate / PEAK * wd,
      }[decay]
      w = w - multiplier * rate * step - shrink * w
      history.append(w)
    return history

  check(
    make_config(momentum=momentum, nesterov=nesterov, decay=decay), reference
  )


@pytest.mark.parametrize(
  ('name', 'decay', 'coupled', 'scale'),
  [
    ('adam', None, True, 0.0),
    ('adam', 'coupled', True, 0.0),
    ('adam', 'decoupled', False, 1.0),
    ('adamw', None, False, 1.0),
    ('adamw', 'decoupled', False, 1.0),
    ('adamw', 'independent', False, 1 / PEAK),
  ],
)
def test_adam_equals_numpy(name, decay, coupled, scale):
  def reference(w, grads, wd, multiplier):
    history, m, v = [], np.zeros_like(w), np.zeros_like(w)
    shrink = wd * scale * (1.0 if decay == 'independent' else multiplier)
    for t, (rate, g) in enumerate(zip(RATES, grads, strict=True), start=1):
      if coupled:
        g = g + wd * w
      m = 0.8 * m + 0.2 * g
      v = 0.95 * v + 0.05 * g**2
      step = m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-2)
      w = w - multiplier * rate * step - rate * shrink * w
      history.append(w)
    return history

  check(make_config(name=name, decay=decay), reference)


def test_adam_without_bias_correction_is_the_original_bert_optimizer():
  def reference(w, grads, wd, multiplier):
    history, m, v = [], np.zeros_like(w), np.zeros_like(w)
    for rate, g in zip(RATES, grads, strict=True):
      m = 0.8 * m + 0.2 * g
      v = 0.95 * v + 0.05 * g**2
      w = w - multiplier * rate * (m / (np.sqrt(v) + 1e-2) + wd * w)
      history.append(w)
    return history

  config = make_config(name='adamw', decay=None, bias_correction=False)
  check(config, reference)


def test_each_update_has_the_rate_of_its_own_step():
  # Fault O07: BERT's warm-up of 4 and its decay line from step 0 to 10.
  config = make_config(
    momentum=0.0,
    weight_decay=0.0,
    learning_rate=1.0,
    lr_rules=(('.*', 1.0),),
  )
  config.total_steps = 10
  config.schedule.update(name='polynomial', warmup=4, decay_from='zero')
  ones = jax.tree.map(np.ones_like, arrays(0))
  history, _ = train(config, arrays(0), [ones] * 6)
  weights = [arrays(0)['head']['kernel']]
  weights += [params['head']['kernel'] for params in history]
  rates = [np.mean(a - b) for a, b in zip(weights, weights[1:], strict=False)]
  np.testing.assert_allclose(rates, [0, 0.25, 0.5, 0.75, 0.6, 0.5], atol=1e-6)
  logged = schedules.make(config, 10)
  np.testing.assert_allclose([logged(k) for k in range(6)], rates, atol=1e-6)


def test_sgd_decays_coupled_unless_told_otherwise():
  runs = [
    train(make_config(decay=decay), arrays(0), [arrays(1), arrays(2)])[0][-1]
    for decay in (None, 'coupled')
  ]
  jax.tree.map(np.testing.assert_array_equal, *runs)


def test_independent_decay_does_not_depend_on_the_peak_rate():
  zeros = [jax.tree.map(np.zeros_like, arrays(0))] * 3
  shrunk = {}
  for peak in (0.5, 5.0):
    config = make_config(decay='independent', learning_rate=peak)
    shrunk[peak] = train(config, arrays(0), zeros)[0][-1]
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
    shrunk[0.5],
    shrunk[5.0],
  )
  ratio = shrunk[0.5]['head']['kernel'] / arrays(0)['head']['kernel']
  np.testing.assert_allclose(ratio, (1 - 0.05) * (1 - 0.1), rtol=1e-5)


@pytest.mark.parametrize('clip_norm', [1.0, 12.0, 1000.0])
def test_the_whole_gradient_is_clipped_before_decay_and_momentum(clip_norm):
  gradients = [arrays(seed) for seed in (1, 2, 3)]
  norms = [
    np.sqrt(sum((x**2).sum() for x in jax.tree.leaves(g))) for g in gradients
  ]
  assert min(norms) < 12 < max(norms)
  factors = [min(1.0, clip_norm / norm) for norm in norms]
  shrunk = [
    jax.tree.map(lambda x, factor=factor: factor * x, g)
    for g, factor in zip(gradients, factors, strict=True)
  ]
  clipped = train(make_config(clip_norm=clip_norm), arrays(0), gradients)[0]
  expected = train(make_config(), arrays(0), shrunk)[0]
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
    clipped[-1],
    expected[-1],
  )


@pytest.mark.parametrize('name', ['sgd', 'adam', 'adamw'])
def test_frozen_parameters_neither_move_nor_hold_moments(name):
  config = make_config(
    name=name,
    decay=None,
    lr_rules=(('body/.*', 0.0), ('.*', 1.0)),
    decay_rules=(('.*', 1.0),),
  )
  history, state = train(config, arrays(0), [arrays(1), arrays(2)])
  jax.tree.map(
    np.testing.assert_array_equal,
    history[-1]['body'],
    to_device(arrays(0))['body'],
  )
  assert not np.allclose(
    history[-1]['head']['kernel'], arrays(0)['head']['kernel']
  )
  paths = [path for path, leaf in trees.flatten(state) if leaf.ndim]
  assert len(paths) == (1 if name == 'sgd' else 2)
  assert all(path.endswith('/head/kernel') for path in paths)


def test_frozen_gradients_do_not_count_in_the_clipping_norm():
  plain = dict(momentum=0.0, weight_decay=0.0, decay_rules=(('.*', 0.0),))
  frozen = make_config(
    clip_norm=1.0, lr_rules=(('body/.*', 0.0), ('.*', 1.0)), **plain
  )
  alone = make_config(clip_norm=1.0, lr_rules=(('.*', 1.0),), **plain)
  grads = [arrays(1), jax.tree.map(lambda g: 100 * g, arrays(2))]

  def head(tree):
    return {'head': tree['head']}

  both = train(frozen, arrays(0), grads)[0][-1]
  only = train(alone, head(arrays(0)), [head(g) for g in grads])[0][-1]
  np.testing.assert_allclose(
    both['head']['kernel'], only['head']['kernel'], rtol=1e-6
  )


def test_a_frozen_gradient_that_is_not_finite_moves_nothing():
  grads = arrays(1)
  grads['body']['bias'][:] = np.nan
  config = make_config(clip_norm=1.0, lr_rules=(('body/.*', 0.0), ('.*', 1.0)))
  history, state = train(config, arrays(0), [grads, grads])
  for leaf in jax.tree.leaves((history, state)):
    assert np.isfinite(leaf).all()


def test_sgd_momentum_is_rounded_to_bfloat16_between_steps_only():
  config = make_config(
    moment_dtype='bfloat16', weight_decay=0.0, lr_rules=(('.*', 1.0),)
  )
  gradients = [arrays(seed) for seed in (1, 2, 3)]
  history, state = train(config, arrays(0), gradients)
  w, buffer = arrays(0)['body']['kernel'], np.zeros((16, 8))
  for rate, grads in zip(RATES, gradients, strict=False):
    new = 0.9 * buffer + np.float32(grads['body']['kernel'])
    w = w - rate * new
    buffer = np.asarray(jnp.bfloat16(new), np.float64)
  np.testing.assert_allclose(history[-1]['body']['kernel'], w, rtol=1e-5)
  moments = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
  assert {leaf.dtype for leaf in moments} == {jnp.dtype('bfloat16')}


def test_adam_keeps_its_second_moment_in_float32():
  config = make_config(name='adamw', decay=None, moment_dtype='bfloat16')
  gradients = [arrays(seed) for seed in (1, 2, 3)]
  history, state = train(config, arrays(0), gradients)
  types = {
    path.split('/')[-3]: leaf.dtype
    for path, leaf in trees.flatten(state)
    if leaf.ndim
  }
  assert types == {'mu': jnp.dtype('bfloat16'), 'nu': jnp.dtype('float32')}
  config.optimizer.moment_dtype = 'float32'
  exact, _ = train(config, arrays(0), gradients)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=0.02),
    history[-1],
    exact[-1],
  )


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(name='sdg'), "optimizer.name='sdg'; accepted: sgd, adam, adamw"),
    (dict(decay='l2'), "optimizer.decay='l2'; accepted: None, coupled, dec"),
    (dict(name='adamw'), "optimizer.decay='coupled'; .*with name='adamw'"),
    (dict(moment_dtype='float16'), "moment_dtype='float16'; .*bfloat16"),
    (dict(momentum=1.0), 'optimizer.momentum=1.0; .*below 1'),
    (
      dict(decay='independent', learning_rate=0.0),
      'learning_rate=0.0; accepted: above 0 with',
    ),
    (dict(clip_norm=0.0), 'clip_norm=0.0; accepted: None or above 0'),
    (dict(lr_rules=(('.*', 0.0),)), 'lr_rules=.*rules that train something'),
    (dict(lr_rules=(('had/.*', 0.0), ('.*', 1.0))), r"lr_rules: \['had/.*'\]"),
    (dict(lr_rules=(('head/.*', 1.0),)), "lr_rules: no rule matches 'body/"),
    (dict(decay_rules=(('kernel', 1.0), ('.*', 0.0))), 'decay_rules: .*decide'),
    (dict(decay_rules=(('.*/bias', 0.0),)), "no rule matches 'body/kernel'"),
  ],
)
def test_what_is_not_accepted_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    factory.make(make_config(**changes), arrays(0))


SECTIONS = {
  'replicated': dict(rules=(('.*', 'replicate'),), opt_state_rules=()),
  'fsdp': dict(rules=(('.*', 'fsdp'),), opt_state_rules=()),
  'zero-1': dict(
    rules=(('.*', 'replicate'),), opt_state_rules=(('.*', 'zero'),)
  ),
  'both axes': dict(
    rules=(('head/kernel', ('fsdp', 'model')), ('.*', 'fsdp')),
    opt_state_rules=(),
  ),
}


def placed_state(config, layout):
  """Returns the optimizer, the state and its shardings on a 4 x 2 mesh."""
  sizes = dict(data=1, fsdp=4, model=2)
  mesh = mesh_lib.make(ml_collections.ConfigDict(sizes))
  section = ml_collections.ConfigDict(dict(SECTIONS[layout], fsdp_min_size=1))
  tx = factory.make(config, arrays(0))
  state = state_lib.create(to_device(arrays(0)), tx)
  shardings = sharding.tree_shardings(state, mesh, section)
  return tx, jax.device_put(state, shardings), shardings


@pytest.mark.parametrize('name', ['sgd', 'adam', 'lars'])
@pytest.mark.parametrize('layout', SECTIONS)
def test_an_update_on_eight_devices_equals_one_and_compiles_once(name, layout):
  config = make_config(name=name, decay=None, clip_norm=1.0)
  expected, _ = train(config, arrays(0), [arrays(1), arrays(2), arrays(3)])
  tx, state, shardings = placed_state(config, layout)
  moments = [
    leaf
    for path, leaf in trees.flatten(state.opt_state)
    if path.endswith('head/kernel') and leaf.ndim
  ]
  rows = {'replicated': (8, 4), 'both axes': (2, 2)}.get(layout, (2, 4))
  assert len(moments) == (2 if name == 'adam' else 1)
  assert {m.addressable_shards[3].data.shape for m in moments} == {rows}

  def step(state, grads):
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state._replace(params=params, opt_state=opt_state)

  step = jax.jit(step, out_shardings=shardings)
  for seed in (1, 2, 3):
    grads = jax.device_put(to_device(arrays(seed)), shardings.params)
    state = step(state, grads)
  assert step._cache_size() == 1
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7),
    state.params,
    expected[-1],
  )


@pytest.mark.parametrize('name', ['sgd', 'adamw', 'lamb', 'lars'])
def test_state_is_saved_and_restored_by_orbax(name, tmp_path):
  config = make_config(
    name=name, decay=None, lr_rules=(('body/bias', 0.0), ('.*', 1.0))
  )
  _, saved, shardings = placed_state(config, 'fsdp')
  saved = jax.tree.map(lambda x: x + jnp.ones_like(x), saved)
  target = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    saved,
    shardings,
  )
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / 'state', saved)
    checkpointer.wait_until_finished()
    restored = checkpointer.restore(tmp_path / 'state', target)
  assert jax.tree.structure(restored) == jax.tree.structure(saved)
  jax.tree.map(np.testing.assert_array_equal, restored, saved)


def test_shapes_are_enough_to_build_the_optimizer():
  shapes = jax.eval_shape(lambda: to_device(arrays(0)))
  tx = factory.make(make_config(name='adam'), shapes)
  state = jax.eval_shape(tx.init, shapes)
  expected = tx.init(to_device(arrays(0)))
  assert jax.tree.structure(state) == jax.tree.structure(expected)
