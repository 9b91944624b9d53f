"""BiT against NumPy, timm and the published sizes."""

import functools
import pathlib
import runpy

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from bigtransfer import models, trees
from bigtransfer.models import bit
from configs import common

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
TIMM = runpy.run_path(str(GOLDEN / 'make_timm_bit.py'))
PARAMS = runpy.run_path(str(GOLDEN / 'make_bit_params.py'))


def model_config(**changes):
  """Two stages of one unit, 32 channels at the root, five classes."""
  config = ml_collections.ConfigDict(common.base().model.to_dict())
  config.update({'blocks': (1, 1), 'root_width': 32, 'num_classes': 5})
  with config.ignore_type():
    config.update(changes)
  return config


def batch(*shape, seed=0):
  rng = np.random.default_rng(seed)
  return {'image': rng.uniform(-1, 1, shape).astype(np.float32)}


def known_params(model, inputs):
  """Parameters with no symmetry left: scales, biases and head random too."""
  shapes, _ = jax.eval_shape(model.init, jax.random.key(0), inputs)
  return trees.map_with_path(
      lambda path, a: TIMM['weight'](path, a.shape).astype(a.dtype), shapes
  )


def forward(model, params, inputs, state=None, train=False, **options):
  @functools.partial(jax.jit, compiler_options=options)
  def apply(params, state, inputs):
    return model.apply(params, state, inputs, train=train, rng=None)

  return apply(params, state or {}, inputs)


def reference(params, image, blocks, num_groups=32, small=False):
  """The network in float64 NumPy, written from the papers' definitions."""

  def conv(x, p, stride=1):
    w = np.asarray(p['kernel'], np.float64)
    w = (w - w.mean((0, 1, 2))) / np.sqrt(w.var((0, 1, 2)) + 1e-10)
    pad = w.shape[0] // 2
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[:2], (1, 2))
    windows = windows[:, ::stride, ::stride]
    return np.einsum('bhwikl,klio->bhwo', windows, w, optimize=True)

  def norm_relu(x, p):
    groups = x.reshape(*x.shape[:3], num_groups, -1)
    mean = groups.mean((1, 2, 4), keepdims=True)
    var = groups.var((1, 2, 4), keepdims=True)
    y = ((groups - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    return np.maximum(y * p['scale'] + p['bias'], 0)

  x = conv(image.astype(np.float64), params['root_block']['conv_root'],
           1 if small else 2)
  if not small:
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
    x = windows[:, ::2, ::2].max((-1, -2))
  outputs = {'stem': x}
  for i, units in enumerate(blocks):
    for j in range(units):
      p = params[f'block{i + 1}'][f'unit{j + 1:02d}']
      stride = 2 if i > 0 and j == 0 else 1
      y = norm_relu(x, p['gn1'])
      shortcut = conv(y, p['conv_proj'], stride) if j == 0 else x
      y = norm_relu(conv(y, p['conv1']), p['gn2'])
      y = norm_relu(conv(y, p['conv2'], stride), p['gn3'])
      x = shortcut + conv(y, p['conv3'])
    outputs[f'stage{i + 1}'] = x
  x = norm_relu(x, params['norm-pre-head']).mean((1, 2))
  head = params['head']
  return outputs | {
      'pre_logits': x, 'logits': x @ head['kernel'] + head['bias']
  }


def assert_close(actual, expected, tolerance):
  """Differences within `tolerance` of the largest expected value."""
  scale = np.abs(expected).max()
  np.testing.assert_allclose(actual, expected, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize('stem', ['imagenet', 'small'])
def test_forward_matches_numpy(stem):
  inputs = batch(2, 33, 47, 3)
  model = bit.build(model_config(blocks=(2, 1, 1), stem=stem))
  params = known_params(model, inputs)
  outputs, _ = forward(model, params, inputs)
  expected = reference(
      params, inputs['image'], (2, 1, 1), small=stem == 'small'
  )
  assert outputs.keys() == expected.keys()
  for name, value in expected.items():
    assert_close(outputs[name], value, 1e-5)


@pytest.fixture(scope='module')
def r50x1():
  inputs = {'image': TIMM['images']().astype(np.float32)}
  model = bit.build(model_config(blocks=(), root_width=64, num_classes=1000))
  outputs, _ = forward(model, known_params(model, inputs), inputs)
  return outputs


def test_forward_matches_timm(r50x1):
  """timm in float32 is 8e-6 and 5e-6 away from these, itself in float64."""
  expected = np.load(TIMM['PATH'])
  assert_close(r50x1['pre_logits'], expected['pre_logits'], 2e-5)
  assert_close(r50x1['logits'], expected['logits'], 1e-5)


def test_forward_matches_live_timm(r50x1):
  pytest.importorskip('torch')
  pytest.importorskip('timm')
  expected = TIMM['answers']()
  assert_close(np.load(TIMM['PATH'])['logits'], expected['logits'], 1e-12)
  assert_close(r50x1['logits'], expected['logits'], 1e-5)


def test_parameters_of_r50x1_are_the_golden_ones():
  golden = PARAMS['PATH'].read_text(encoding='utf-8').splitlines()
  assert PARAMS['lines']() == golden, (
      'Parameter names, shapes or dtypes changed, and with them every '
      'checkpoint. If that is meant, run tests/golden/make_bit_params.py and '
      'say in CHANGELOG.md how old checkpoints convert.'
  )


# Millions, from the benchmark tables of timm.
@pytest.mark.parametrize('variant, millions', [
    ('R50x1', 25.55), ('R101x1', 44.54), ('R50x3', 217.32),
    ('R152x2', 236.34), ('R101x3', 387.93), ('R152x4', 936.53),
])  # fmt: skip
def test_number_of_parameters(variant, millions):
  model = bit.build(model_config(
      variant=variant, blocks=(), root_width=64, num_classes=1000
  ))
  inputs = {'image': jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)}
  params, _ = jax.eval_shape(model.init, jax.random.key(0), inputs)
  count = sum(a.size for a in jax.tree.leaves(params))
  assert round(count / 1e6, 2) == millions


def test_stages_halve_the_image_and_double_the_channels():
  inputs = batch(1, 64, 96, 3)
  model = bit.build(model_config(
      blocks=(1, 1, 1), variant='R26x1.5', root_width=64
  ))
  params, state = jax.eval_shape(model.init, jax.random.key(0), inputs)
  outputs, _ = jax.eval_shape(
      lambda *args: model.apply(*args, train=False, rng=None),
      params, state, inputs,
  )
  shapes = {name: a.shape for name, a in outputs.items()}
  assert shapes == {
      'stem': (1, 16, 24, 96), 'stage1': (1, 16, 24, 384),
      'stage2': (1, 8, 12, 768), 'stage3': (1, 4, 6, 1536),
      'pre_logits': (1, 1536), 'logits': (1, 5),
  }  # fmt: skip


@pytest.mark.parametrize('size', [(1, 1), (33, 47), (128, 128), (480, 480)])
@pytest.mark.parametrize('channels', [1, 3])
def test_any_size_of_image(size, channels):
  inputs = batch(1, *size, channels)
  model = bit.build(model_config(blocks=(1,)))
  outputs, _ = forward(model, known_params(model, inputs), inputs)
  assert outputs['logits'].shape == (1, 5)
  assert np.isfinite(outputs['logits']).all()


def test_initial_logits_are_the_head_bias():
  inputs = batch(2, 32, 32, 3)
  model = bit.build(model_config(head_bias_init=-10.0))
  params, state = jax.jit(model.init)(jax.random.key(0), inputs)
  outputs, _ = forward(model, params, inputs, state)
  np.testing.assert_array_equal(outputs['logits'], np.full((2, 5), -10.0))
  assert np.std(outputs['pre_logits']) > 0.01


def test_no_classes_means_features_only():
  inputs = batch(2, 32, 32, 3)
  with_head, without = (
      bit.build(model_config(num_classes=n)) for n in (5, 0)
  )
  params = known_params(with_head, inputs)
  outputs, _ = forward(with_head, params, inputs)
  del params['head']
  assert jax.tree.structure(params) == jax.tree.structure(
      known_params(without, inputs)
  )
  features, _ = forward(without, params, inputs)
  assert 'logits' not in features
  np.testing.assert_array_equal(features['pre_logits'], outputs['pre_logits'])


def gradient(inputs, **changes):
  model = bit.build(model_config(**changes))

  @jax.jit
  def grad(params):
    def loss(params):
      outputs, _ = model.apply(params, {}, inputs, train=True, rng=None)
      return jnp.mean(jnp.square(outputs['logits']))
    return jax.grad(loss)(params)

  return grad(known_params(model, inputs))


def recomputed(**changes):
  """How often a backward pass computes a root of something for a norm."""
  inputs = batch(1, 32, 32, 3)
  jaxpr = jax.make_jaxpr(lambda: gradient(inputs, **changes))()
  return str(jaxpr).count('= rsqrt')


@pytest.mark.parametrize('remat', ['stage', 'unit'])
def test_remat_recomputes_and_changes_no_gradient(remat):
  inputs = batch(2, 33, 47, 3)
  expected, actual = gradient(inputs), gradient(inputs, remat=remat)
  assert trees.flatten(actual)[0][0] == trees.flatten(expected)[0][0]
  jax.tree.map(lambda a, b: assert_close(a, b, 1e-5), actual, expected)
  assert recomputed(remat=remat) > recomputed()


def test_bfloat16_is_near_float32_with_sums_and_logits_in_float32():
  inputs = batch(2, 64, 64, 3)
  exact, rounded = (
      bit.build(model_config(dtype=d, blocks=(2, 2)))
      for d in ('float32', 'bfloat16')
  )
  params = known_params(exact, inputs)
  expected, _ = forward(exact, params, inputs)
  # XLA may leave out a rounding to bfloat16 that the program asks for.
  outputs, _ = forward(
      rounded, params, inputs, xla_allow_excess_precision=False
  )
  for name, value in outputs.items():
    assert value.dtype == jnp.float32
    assert_close(value, expected[name], 0.03)
  # Computed in bfloat16 indeed, and not rounded to it after the sum.
  assert np.any(outputs['logits'] != expected['logits'])
  sums = outputs['stage2']
  assert np.any(sums != sums.astype(jnp.bfloat16).astype(jnp.float32))


def test_bfloat16_keeps_float32_sums_of_the_last_stage_only():
  inputs = batch(2, 64, 64, 3)
  model = bit.build(model_config(dtype='bfloat16', blocks=(2, 2)))

  def derivative(params):
    def logits(params):
      return model.apply(params, {}, inputs, train=True)[0]['logits']

    return jax.vjp(logits, params)[1]

  params, _ = jax.eval_shape(model.init, jax.random.key(0), inputs)
  kept = jax.tree.leaves(jax.eval_shape(derivative, params))
  # Of both examples, and more than numbers per example and channel.
  sums = {
      a.shape for a in kept
      if a.dtype == jnp.float32 and a.shape[:1] == (2,) and a.size > 2048
  }
  assert sums == {(2, 8, 8, 256)}


@pytest.mark.parametrize('norm', ['bn', 'ln', 'in', 'none'])
@pytest.mark.parametrize('standardize', [True, False])
def test_baselines_share_the_parameters_and_stay_finite(norm, standardize):
  inputs = batch(4, 32, 32, 3)
  changes = {'norm': norm, 'weight_standardization': standardize}
  model = bit.build(model_config(**changes))
  params, state = jax.jit(model.init)(jax.random.key(0), inputs)
  released, _ = jax.eval_shape(
      bit.build(model_config()).init, jax.random.key(0), inputs
  )
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, released)
  outputs, new_state = forward(model, params, inputs, state, train=True)
  assert jax.tree.structure(new_state) == jax.tree.structure(state)
  assert bool(state) == (norm == 'bn')
  for value in outputs.values():
    assert np.isfinite(value).all() and np.abs(value).max() < 1000


def test_batch_norm_mixes_examples_of_a_group_only():
  model = bit.build(model_config(norm='bn', bn_group_size=2))
  inputs = batch(4, 32, 32, 3)
  params = known_params(model, inputs)
  _, state = jax.jit(model.init)(jax.random.key(0), inputs)
  changed = {'image': inputs['image'].copy()}
  changed['image'][0] *= -1

  def logits(inputs, train):
    outputs, new = forward(model, params, inputs, state, train)
    return np.asarray(outputs['logits']), new

  before, after = logits(inputs, True)[0], logits(changed, True)[0]
  np.testing.assert_array_equal(before[2:], after[2:])
  assert np.all(before[1] != after[1])
  # In evaluation an example is on its own, and the state stays as it is.
  before, kept = logits(inputs, False)
  np.testing.assert_array_equal(before[1:], logits(changed, False)[0][1:])
  assert jax.tree.all(jax.tree.map(np.array_equal, kept, state))
  moved = logits(inputs, True)[1]
  equal = jax.tree.map(np.array_equal, moved, state)
  assert not any(jax.tree.leaves(equal))


def test_batch_norm_refuses_a_batch_of_uneven_groups():
  model = bit.build(model_config(norm='bn', bn_group_size=4))
  inputs = batch(6, 32, 32, 3)
  params, state = jax.eval_shape(model.init, jax.random.key(0), inputs)
  with pytest.raises(ValueError, match='batch of 6 .* bn_group_size=4'):
    jax.eval_shape(
        lambda *args: model.apply(*args, train=True, rng=None),
        params, state, inputs,
    )


@pytest.mark.parametrize('changes, message', [
    ({'variant': 'R34x1'}, "variant='R34x1'.*26, 50, 101, 152, 200"),
    ({'variant': 'R50'}, "variant='R50'.*such as R50x1"),
    ({'variant': 'R50x0.25', 'root_width': 64},
     '16 channels not divisible by 32 groups'),
    ({'variant': 'R50x0.3'}, 'gives 9.6 channels'),
    ({'variant': 'R50x0'}, 'gives 0 channels'),
    ({'blocks': (2, 0)}, r'blocks=\(2, 0\)'),
    ({'num_classes': None}, 'num_classes=None'),
    ({'norm': 'batch'}, "norm='batch'.*'gn', 'bn', 'ln', 'in', 'none'"),
    ({'remat': True}, "remat=True.*'none', 'stage', 'unit'"),
    ({'stem': 'cifar'}, "stem='cifar'.*'imagenet', 'small'"),
    ({'dtype': 'float16'}, "dtype='float16'.*'float32', 'bfloat16'"),
])  # fmt: skip
def test_impossible_networks_are_refused_at_once(changes, message):
  with pytest.raises(ValueError, match=message):
    bit.build(model_config(**changes))


def test_models_load_by_name():
  assert models.load('bit') is bit
  for name in ('resnet', 'layers', '../bit', ''):
    with pytest.raises(ValueError, match=r"name=.*expected one of \[.*'bit'"):
      models.load(name)
