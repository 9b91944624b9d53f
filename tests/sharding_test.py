"""Placement rules, on eight devices."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from bigtransfer import mesh as mesh_lib
from bigtransfer import sharding, trees
from bigtransfer.optim import lamb


class State(NamedTuple):
  step: Any
  params: Any
  model_state: Any
  opt_state: Any
  ema: Any
  skipped: Any


def mesh(data=1, fsdp=-1, model=1):
  sizes = dict(data=data, fsdp=fsdp, model=model)
  return mesh_lib.make(ml_collections.ConfigDict(sizes))


def section(rules, opt_state_rules=(), fsdp_min_size=16):
  return ml_collections.ConfigDict(
    dict(
      rules=rules,
      opt_state_rules=opt_state_rules,
      fsdp_min_size=fsdp_min_size,
    )
  )


def specs_of(shapes, rules, on=None, **kwargs):
  """Returns path -> PartitionSpec of parameters of these shapes."""
  tree = {
    path: jax.ShapeDtypeStruct(shape, jnp.float32)
    for path, shape in shapes.items()
  }
  on = mesh() if on is None else on
  placed = sharding.tree_shardings(tree, on, section(rules, **kwargs))
  assert all(s.mesh == on for s in placed.values())
  return {path: s.spec for path, s in placed.items()}


def state_of(tx):
  params = {
    'conv': {'kernel': jnp.ones((3, 16)), 'bias': jnp.ones(16)},
    'kernel': jnp.ones((16, 4)),
    'head': {'kernel': jnp.ones((16, 4))},
  }

  def init():
    return State(
      step=jnp.zeros((), jnp.int32),
      params=params,
      model_state={'conv': {'kernel': jnp.ones((3, 16))}},
      opt_state=tx.init(params),
      ema=jax.tree.map(jnp.copy, params),
      skipped=jnp.zeros((), jnp.int32),
    )

  return init


def state_specs(tx, config):
  shapes = jax.eval_shape(state_of(tx))
  placed = sharding.tree_shardings(shapes, mesh(), config)
  assert jax.tree.structure(placed) == jax.tree.structure(shapes)
  return {path: s.spec for path, s in trees.flatten(placed)}


@pytest.mark.parametrize(
  ('shape', 'spec'),
  [
    ((64, 8), P('fsdp', None)),
    ((3, 3, 16, 64), P(None, None, 'fsdp', None)),
    ((3, 3, 7, 64), P(None, None, None, 'fsdp')),
    ((8, 9), P('fsdp', None)),
    ((24, 16, 16), P('fsdp', None, None)),
    ((7, 16, 16), P(None, 'fsdp', None)),
    ((15,), P()),
    ((16,), P('fsdp')),
  ],
)
def test_fsdp_splits_the_largest_dimension_but_the_last(shape, spec):
  assert specs_of({'w': shape}, (('.*', 'fsdp'),)) == {'w': spec}


def test_the_layer_axis_of_a_stack_is_never_split():
  specs = specs_of(
    {'encoder/layers/kernel': (64, 8, 16), 'kernel': (64, 8, 16)},
    (('.*', 'fsdp'),),
  )
  assert specs == {
    'encoder/layers/kernel': P(None, 'fsdp', None),
    'kernel': P('fsdp', None, None),
  }
  with pytest.raises(ValueError, match=r"'layers/w'.*divides none of \[9\]"):
    specs_of({'layers/w': (64, 9)}, (('.*', 'fsdp'),))


def test_an_axis_of_one_device_splits_nothing():
  assert specs_of({'w': (9, 7)}, (('.*', 'fsdp'),), on=mesh(8, 1)) == {'w': P()}


def test_tuples_place_dimensions_and_first_match_wins():
  specs = specs_of(
    {'qkv': (8, 4, 6), 'out': (6, 8), 'bias': (6,)},
    (('qkv', ('data', 'model', None)), ('out', 'fsdp'), ('.*', 'replicate')),
    on=mesh(2, 2, 2),
  )
  assert specs == {
    'qkv': P('data', 'model', None),
    'out': P('fsdp', None),
    'bias': P(),
  }


@pytest.mark.parametrize(
  ('rules', 'message'),
  [
    ((('.*', 'fsdp'),), r"'w' of shape \(9, 7\).* the fsdp axis of size 8"),
    ((('.*', ('fsdp',)),), r"1 entries, but 'w' of shape \(9, 7\) has 2"),
    ((('.*', ('fsdp', None)),), r"'w'.*'fsdp' of size 8.*not divide 9"),
    ((('.*', ('expert', None)),), r"'expert'.*accepted: the mesh axes"),
    ((('.*', ('fsdp', 'fsdp')),), r'each at most once'),
    ((('.*', 'zero'),), r"'zero' for 'w'.*'zero' in sharding.opt_state_rules"),
    ((('.*', 'shard'),), r"'shard' for 'w'; accepted: 'replicate', 'fsdp'"),
    ((('x', 'fsdp'), ('.*', 'replicate')), r"rules: \['x'\] decide no path"),
    ((('x', 'fsdp'),), r"sharding.rules: no rule matches 'w'"),
  ],
)
def test_rules_that_cannot_be_followed_are_refused(rules, message):
  with pytest.raises(ValueError, match=message):
    specs_of({'w': (9, 7)}, rules)


@pytest.mark.parametrize('name', ['adam', 'momentum'])
def test_moments_and_average_follow_their_parameter(name):
  tx = dict(adam=optax.adam(0.1), momentum=optax.sgd(0.1, 0.9))[name]
  rules = (
    ('kernel', ('fsdp', None)),
    ('conv/.*', 'fsdp'),
    ('.*', 'replicate'),
  )
  specs = state_specs(tx, section(rules))
  expected = {
    'conv/kernel': P(None, 'fsdp'),
    'conv/bias': P('fsdp'),
    'kernel': P('fsdp', None),
    'head/kernel': P(),
  }
  fields = ('params', 'ema', 'opt_state/0/mu', 'opt_state/0/nu')
  if name == 'momentum':
    fields = ('params', 'ema', 'opt_state/0/trace')
  for field in fields:
    for path, spec in expected.items():
      assert specs.pop(f'{field}/{path}') == spec, (field, path)
  assert set(specs) >= {'step', 'skipped', 'model_state/conv/kernel'}
  assert set(specs.values()) == {P()}


def test_zero_1_splits_moments_only():
  config = section((('.*', 'replicate'),), opt_state_rules=(('.*', 'zero'),))
  specs = state_specs(optax.adam(0.1), config)
  assert specs['opt_state/0/mu/head/kernel'] == P('fsdp', None)
  assert specs['opt_state/0/nu/conv/kernel'] == P(None, 'fsdp')
  assert specs['opt_state/0/count'] == P()
  for path, spec in specs.items():
    if not path.startswith('opt_state'):
      assert spec == P(), path


@pytest.mark.parametrize(
  ('rule', 'sizes', 'spec'),
  [
    # [6 layers, 16, 8] on data 2, fsdp 2, model 2.
    ('replicate', (2, 2, 2), P(None, ('data', 'fsdp'), None)),
    ('fsdp', (2, 2, 2), P(None, ('data', 'fsdp'), None)),
    (
      (None, 'model', None),
      (2, 2, 2),
      P(None, ('data', 'fsdp', 'model'), None),
    ),
    ((None, None, 'model'), (4, 1, 2), P(None, 'data', 'model')),
    ('replicate', (8, 1, 1), P(None, 'data', None)),
    ('replicate', (1, 1, 8), P()),
  ],
)
def test_zero_splits_over_what_the_parameter_leaves(rule, sizes, spec):
  params = {'layers': {'w': jax.ShapeDtypeStruct((6, 16, 8), jnp.float32)}}
  config = section((('.*', rule),), (('.*', 'zero'),))
  placed = sharding.gradient_shardings(params, mesh(*sizes), config)
  assert placed['layers']['w'].spec == spec


def test_zero_that_splits_nothing_says_how_to_share_the_devices():
  config = section((('.*', 'replicate'),), (('.*', 'zero'),))
  params = {'w': jax.ShapeDtypeStruct((4, 4), jnp.float32)}
  message = r"'w'.*data axis of size 8.*mesh.data=8 and mesh.fsdp=1"
  with pytest.raises(ValueError, match=message):
    sharding.gradient_shardings(params, mesh(8), config)
  shared = sharding.gradient_shardings(params, mesh(2, 4), config)
  assert shared['w'].spec == P('data', 'fsdp')


@pytest.mark.parametrize('name', sharding.PRESETS)
def test_presets_are_values_of_the_config(name):
  values = sharding.preset(name, 'bert')
  assert set(values) - {'model.remat'} == {
    'sharding.rules',
    'sharding.opt_state_rules',
  }
  assert name != 'zero1' or values['sharding.opt_state_rules']


def test_the_tensor_preset_is_for_bert():
  with pytest.raises(ValueError, match="'tensor' is for bert.*name='bit'"):
    sharding.preset('tensor', 'bit')


def test_dead_rules_for_moments_name_their_field():
  config = section((('.*', 'replicate'),), (('x', 'fsdp'), ('.*', 'fsdp')))
  with pytest.raises(ValueError, match=r"opt_state_rules: \['x'\]"):
    state_specs(optax.adam(0.1), config)


def test_leaves_shaped_unlike_their_parameter_are_replicated():
  tx = optax.GradientTransformation(
    lambda params: jax.tree.map(lambda p: jnp.ones(p.shape[0]), params),
    lambda updates, state, params=None: (updates, state),
  )
  specs = state_specs(tx, section((('.*', 'fsdp'),)))
  assert specs['params/head/kernel'] == P('fsdp', None)
  assert specs['opt_state/head/kernel'] == P()
  assert specs['opt_state/conv/bias'] == P('fsdp')


def test_norms_per_layer_are_replicated_whatever_their_parameter():
  # A stacked parameter of one number per layer has the shape of its norms,
  # and a moment of a parameter that is named like a norm is none.
  params = {
    'layers': {'gate': jnp.ones(16), 'kernel': jnp.ones((16, 8))},
    'kernel': jnp.ones(16),
    'weight_norm': {'gate': jnp.ones(16)},
  }
  tx = lamb.lamb(0.1)

  def init():
    return State(0, params, {}, tx.init(params), None, 0)

  placed = sharding.tree_shardings(
    jax.eval_shape(init),
    mesh(),
    section((('layers/gate', 'replicate'), ('.*', 'fsdp'))),
  )
  specs = {path: s.spec for path, s in trees.flatten(placed)}
  for field in trees.LAYER_STATISTICS:
    norms = {k: v for k, v in specs.items() if f'/norms/{field}/' in k}
    assert len(norms) == 4 and set(norms.values()) == {P()}
  moments = {k: v for k, v in specs.items() if '/mu/' in k}
  assert len(moments) == 4
  assert set(moments.values()) == {P('fsdp'), P(None, 'fsdp'), P()}


def test_the_state_is_created_straight_into_its_shards():
  init = state_of(optax.adam(0.1))
  placed = sharding.tree_shardings(
    jax.eval_shape(init), mesh(), section((('.*', 'fsdp'),))
  )
  state = jax.jit(init, out_shardings=placed)()
  moment = state.opt_state[0].mu['head']['kernel']
  assert {s.data.shape for s in moment.addressable_shards} == {(2, 4)}


def test_dropout_differs_on_every_shard_and_equals_one_device():
  def dropout(x):
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
    return jnp.where(kept, x, 0)

  x = np.ones((8, 64), np.float32)
  rows = jax.device_put(x, sharding.batch_sharding(mesh()))
  assert {s.data.shape for s in rows.addressable_shards} == {(1, 64)}
  dropped = np.asarray(jax.jit(dropout)(rows))
  np.testing.assert_array_equal(dropped, jax.jit(dropout)(x))
  assert len(np.unique(dropped, axis=0)) == 8
