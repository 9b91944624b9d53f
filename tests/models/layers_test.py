"""Layers against float64 NumPy, and the properties that define them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bigtransfer.models import layers

group_norm = jax.jit(layers.group_norm, static_argnums=3)
batch_norm = jax.jit(layers.batch_norm, static_argnums=3)
root_max_pool = jax.jit(layers.root_max_pool)
standardize_kernel = jax.jit(layers.standardize_kernel)


def normal(*shape, mean=0.0, std=1.0, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(mean, std, shape).astype(np.float32)


def reference_norm(x, scale, bias, num_groups):
  """Group norm in float64: x [b, h, w, c] of any NumPy or JAX dtype."""
  x = np.asarray(x, np.float64)
  groups = x.reshape(*x.shape[:3], num_groups, -1)
  mean = groups.mean((1, 2, 4), keepdims=True)
  var = groups.var((1, 2, 4), keepdims=True)
  y = (groups - mean) / np.sqrt(var + 1e-5)
  return y.reshape(x.shape) * scale + bias


def reference_pool(x, pad):
  b, h, w, c = x.shape
  padded = np.full((b, h + 2, w + 2, c), pad, x.dtype)
  padded[:, 1:-1, 1:-1] = x
  rows, columns = (h - 1) // 2 + 1, (w - 1) // 2 + 1
  y = np.empty((b, rows, columns, c), x.dtype)
  for i in range(rows):
    for j in range(columns):
      window = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
      y[:, i, j] = window.max((1, 2))
  return y


@pytest.mark.parametrize('mean', [0.0, 0.1, 30.0])
def test_standardize_kernel_matches_float64(mean):
  w = normal(3, 3, 16, 8, mean=mean, std=0.1)
  exact = w.astype(np.float64)
  exact = (exact - exact.mean((0, 1, 2))) / np.sqrt(
      exact.var((0, 1, 2)) + 1e-10
  )
  np.testing.assert_allclose(standardize_kernel(w), exact, atol=2e-6)


def test_standardize_kernel_epsilon_is_1e_10_under_the_root():
  # Deviations of 1e-5: variance and epsilon are equal, hence sqrt(1/2).
  w = jnp.array([-1e-5, 1e-5]).reshape(1, 1, 2, 1)
  expected = np.sqrt([[[[0.5]]]]) * np.array([-1, 1]).reshape(1, 1, 2, 1)
  np.testing.assert_allclose(standardize_kernel(w), expected, rtol=1e-5)


def test_standardize_kernel_ignores_scale_and_offset():
  w = normal(3, 3, 16, 8)
  np.testing.assert_allclose(
      standardize_kernel(7 * w + 3), standardize_kernel(w),
      atol=1e-5,
  )


def test_standardize_kernel_is_float32_for_bfloat16():
  w = jnp.asarray(normal(3, 3, 16, 8), jnp.bfloat16)
  standardized = standardize_kernel(w)
  assert standardized.dtype == jnp.float32
  np.testing.assert_allclose(standardized.std((0, 1, 2)), 1, rtol=1e-6)


@pytest.mark.parametrize(
    'shape', [(2, 7, 5, 32), (1, 1, 1, 64), (2, 33, 2, 8), (1, 480, 3, 8)]
)
@pytest.mark.parametrize('num_groups', [1, 8])
def test_group_norm_matches_float64(shape, num_groups):
  x = normal(*shape, mean=0.5, std=2.0)
  scale, bias = normal(shape[-1], seed=1), normal(shape[-1], seed=2)
  np.testing.assert_allclose(
      group_norm(x, scale, bias, num_groups),
      reference_norm(x, scale, bias, num_groups),
      atol=1e-5,
  )


@pytest.mark.parametrize('outlier_rows', [0, 1, 2])
@pytest.mark.parametrize('mean', [300.0, -1e4, 1e6])
def test_group_norm_is_exact_for_a_large_mean(mean, outlier_rows):
  # Rows from which a pivot may be taken, far from all the others.
  x = normal(2, 32, 16, 32, mean=mean)
  x[:, :outlier_rows] = 0
  ones, zeros = np.ones(32, np.float32), np.zeros(32, np.float32)
  y = group_norm(x, ones, zeros, 32)
  np.testing.assert_allclose(y, reference_norm(x, 1, 0, 32), atol=2e-5)


def test_group_norm_keeps_statistics_in_float32_for_bfloat16():
  x = jnp.asarray(normal(1, 16, 16, 32, mean=300.0), jnp.bfloat16)
  ones, zeros = jnp.ones(32), jnp.zeros(32)
  y = group_norm(x, ones, zeros, 32)
  assert y.dtype == jnp.bfloat16
  # Half a unit in the last place of a bfloat16 of size 4.
  np.testing.assert_allclose(
      y.astype(jnp.float32), reference_norm(x, 1, 0, 32), atol=0.016
  )


@pytest.mark.parametrize('value', [0.0, 300.0, 1e6])
def test_group_norm_of_a_constant_is_the_bias(value):
  x = jnp.full((1, 48, 48, 32), value)
  bias = normal(32)
  y, grad = jax.value_and_grad(
      lambda x: jnp.sum(group_norm(x, jnp.ones(32), bias, 32))
  )(x)
  assert np.isfinite(grad).all()
  np.testing.assert_allclose(y, bias.sum() * 48 * 48, rtol=1e-3)


def test_group_norm_ignores_an_affine_map_of_each_group():
  x = normal(2, 8, 8, 32)
  gain = np.repeat(np.linspace(1, 50, 4, dtype=np.float32), 8)
  offset = np.repeat(np.linspace(-30, 30, 4, dtype=np.float32), 8)
  ones, zeros = np.ones(32, np.float32), np.zeros(32, np.float32)
  y = group_norm(x, ones, zeros, 4)
  mapped = group_norm(x * gain + offset, ones, zeros, 4)
  np.testing.assert_allclose(mapped, y, atol=5e-5)


def test_group_norm_gradient_matches_float64_differences():
  x = normal(2, 17, 3, 8, mean=5.0).astype(np.float64)
  scale, bias = (normal(8, seed=i).astype(np.float64) for i in (1, 2))
  out = normal(*x.shape, seed=3)

  def loss(x, scale, bias):
    return np.sum(np.sin(reference_norm(x, scale, bias, 4)) * out)

  def ours(x, scale, bias):
    y = group_norm(x, scale, bias, 4)
    return jnp.sum(jnp.sin(y) * out)

  args = [x, scale, bias]
  grads = jax.grad(ours, (0, 1, 2))(*(a.astype(np.float32) for a in args))
  rng = np.random.default_rng(4)
  for i, grad in enumerate(grads):
    direction = rng.normal(size=args[i].shape)
    step = 1e-5 * direction
    high = loss(*args[:i], args[i] + step, *args[i + 1 :])
    low = loss(*args[:i], args[i] - step, *args[i + 1 :])
    expected = (high - low) / 2e-5
    np.testing.assert_allclose(np.sum(grad * direction), expected, rtol=1e-4)


def reference_gradient(x, scale, dy, num_groups, eps=1e-5):
  """Of sum(norm(x) * dy) by x, scale and bias, in float64."""
  x, dy = (np.asarray(t, np.float64) for t in (x, dy))
  shape = (*x.shape[:3], num_groups, -1)
  mean = functools.partial(np.mean, axis=(1, 2, 4), keepdims=True)
  groups, slopes = x.reshape(shape), (dy * scale).reshape(shape)
  deviation = np.sqrt(groups.var((1, 2, 4), keepdims=True) + eps)
  unit = (groups - mean(groups)) / deviation
  dx = (slopes - mean(slopes) - unit * mean(slopes * unit)) / deviation
  dscale = (dy * unit.reshape(x.shape)).sum((0, 1, 2))
  return dx.reshape(x.shape), dscale, dy.sum((0, 1, 2))


@pytest.mark.parametrize('mean', [0.0, 300.0, 1e5])
@pytest.mark.parametrize('num_groups', [1, 4, 8])
def test_group_norm_gradient_is_exact_for_a_large_mean(mean, num_groups):
  # And where the slopes have a mean too.
  x, dy = normal(2, 33, 4, 8, mean=mean), normal(2, 33, 4, 8, mean=2.0, seed=3)
  scale, bias = normal(8, seed=1), normal(8, seed=2)
  _, derivative = jax.vjp(
      lambda *args: group_norm(*args, num_groups), x, scale, bias
  )
  expected = reference_gradient(x, scale, dy, num_groups)
  for actual, exact in zip(derivative(dy), expected, strict=True):
    np.testing.assert_allclose(
        actual, exact, rtol=0, atol=3e-6 * np.abs(exact).max()
    )


def test_group_norm_keeps_only_the_input_for_the_way_back():
  x = jax.ShapeDtypeStruct((2, 32, 32, 64), jnp.bfloat16)
  vector = jax.ShapeDtypeStruct((64,), jnp.float32)
  kept = jax.eval_shape(
      lambda *args: jax.vjp(lambda *a: layers.group_norm(*a, 32), *args)[1],
      x, vector, vector,
  )
  large = [a for a in jax.tree.leaves(kept) if a.size >= x.size]
  assert [(a.shape, a.dtype) for a in large] == [(x.shape, x.dtype)]


def test_standardize_kernel_gradient_is_exact_for_a_large_mean():
  w, dy = normal(3, 3, 16, 8, mean=30.0, std=0.1), normal(3, 3, 16, 8, seed=1)
  (actual,) = jax.vjp(standardize_kernel, w)[1](dy)
  # A kernel as one example, whose channels are groups of one.
  whole = (1, 9, 16, 8)
  exact, _, _ = reference_gradient(
      w.reshape(whole), 1.0, dy.reshape(whole), 8, 1e-10
  )
  np.testing.assert_allclose(actual, exact.reshape(w.shape), atol=1e-4)


def test_group_norm_refuses_groups_that_do_not_divide():
  with pytest.raises(ValueError, match='16 channels not divisible by 32 group'):
    group_norm(jnp.ones((1, 2, 2, 16)), jnp.ones(16), jnp.ones(16), 32)


@pytest.mark.parametrize('group_size, groups', [(0, 1), (4, 2), (2, 4)])
def test_batch_norm_takes_statistics_of_groups_of_examples(group_size, groups):
  x = normal(8, 33, 4, 8, mean=100.0)
  x += np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1)
  scale, bias = normal(8, seed=1), normal(8, seed=2)
  y, mean, var = batch_norm(x, scale, bias, group_size)
  parts = np.split(x.astype(np.float64), groups)
  means = [p.mean((0, 1, 2)) for p in parts]
  variances = [p.var((0, 1, 2)) for p in parts]
  expected = [
      (p - m) / np.sqrt(v + 1e-5) * scale + bias
      for p, m, v in zip(parts, means, variances, strict=True)
  ]
  np.testing.assert_allclose(y, np.concatenate(expected), atol=2e-5)
  np.testing.assert_allclose(mean, np.mean(means, 0), rtol=1e-6)
  np.testing.assert_allclose(var, np.mean(variances, 0), rtol=1e-5)


def test_batch_norm_refuses_a_batch_of_uneven_groups():
  with pytest.raises(ValueError, match='batch of 6 .* bn_group_size=4'):
    batch_norm(jnp.ones((6, 1, 1, 2)), jnp.ones(2), jnp.ones(2), 4)


def test_running_statistics_move_by_a_tenth_and_are_used_in_evaluation():
  x = normal(4, 5, 6, 3, mean=2.0)
  train, evaluate = (layers.Norm('bn', train=t) for t in (True, False))
  variables = evaluate.init(jax.random.key(0), x)
  for _ in range(2):
    _, state = train.apply(variables, x, mutable=['batch_stats'])
    variables |= state
  mean = (1 - 0.9**2) * x.mean((0, 1, 2))
  var = 0.9**2 + (1 - 0.9**2) * x.var((0, 1, 2))
  stats = variables['batch_stats']
  np.testing.assert_allclose(stats['mean'], mean, rtol=1e-5)
  np.testing.assert_allclose(stats['var'], var, rtol=1e-5)
  expected = (x - mean) / np.sqrt(var + 1e-5)
  np.testing.assert_allclose(
      evaluate.apply(variables, x), expected, rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize('kind, num_groups', [('ln', 1), ('gn', 4), ('in', 8)])
def test_layer_and_instance_norm_are_group_norms(kind, num_groups):
  x = normal(2, 5, 6, 8, mean=2.0)
  y, variables = layers.Norm(kind, num_groups=4).init_with_output(
      jax.random.key(0), x
  )
  assert list(variables) == ['params']
  np.testing.assert_allclose(y, reference_norm(x, 1, 0, num_groups), atol=1e-5)


@pytest.mark.parametrize('shape', [(2, 9, 12, 3), (1, 1, 1, 2), (1, 2, 5, 1)])
def test_root_max_pool_pads_with_zeros(shape):
  x = normal(*shape) - 1.0
  y = root_max_pool(x)
  np.testing.assert_array_equal(y, reference_pool(x, 0.0))
  assert np.any(y != reference_pool(x, -np.inf))


def test_root_max_pool_gradient_goes_to_the_largest():
  x = normal(2, 9, 12, 3)
  grad = jax.grad(lambda x: jnp.sum(root_max_pool(x)))(x)
  expected = np.zeros_like(x)
  padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  for b, i, j, c in np.ndindex(2, 5, 6, 3):
    window = padded[b, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3, c]
    row, column = np.unravel_index(window.argmax(), (3, 3))
    at = (b, 2 * i + row - 1, 2 * j + column - 1, c)
    if window.max() > 0 or (0 <= at[1] < 9 and 0 <= at[2] < 12):
      expected[at] += 1
  np.testing.assert_array_equal(grad, expected)


@pytest.mark.parametrize('shape', [(2, 9, 12, 3), (1, 1, 1, 2), (1, 2, 5, 1)])
def test_pool_of_tpus_is_the_same_forward_and_back(shape):
  x = normal(*shape) - 1.0
  expected, derivative = jax.vjp(root_max_pool, x)
  actual, other = jax.vjp(jax.jit(layers.max_by_windows), x)
  np.testing.assert_array_equal(actual, expected)
  dy = normal(*expected.shape, seed=1)
  np.testing.assert_allclose(other(dy)[0], derivative(dy)[0], atol=1e-6)


@pytest.mark.parametrize('size', [1, 3, 7])
@pytest.mark.parametrize('stride', [1, 2])
def test_convolution_is_padded_by_half_the_kernel(size, stride):
  x = normal(1, 8, 9, 2)
  conv = layers.StdConv(3, size, stride, standardize=False)
  y, variables = conv.init_with_output(jax.random.key(0), x)
  kernel = np.asarray(variables['params']['kernel'])
  pad = size // 2
  padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
  windows = np.lib.stride_tricks.sliding_window_view(
      padded, (size, size), (1, 2)
  )[:, ::stride, ::stride]
  expected = np.einsum('bhwikl,klio->bhwo', windows, kernel)
  assert y.shape == expected.shape
  np.testing.assert_allclose(y, expected, atol=1e-5)


def test_standardized_convolution_ignores_the_scale_of_its_kernel():
  x = normal(2, 6, 6, 4)
  conv = layers.StdConv(8, 3)
  y, variables = conv.init_with_output(jax.random.key(0), x)
  scaled = jax.tree.map(lambda w: 10 * w, variables)
  np.testing.assert_allclose(conv.apply(scaled, x), y, rtol=1e-4, atol=1e-5)


def test_unit_gain_keeps_the_variance_of_the_input():
  x = normal(4, 16, 16, 64)
  conv = layers.StdConv(64, 3, unit_gain=True)
  y, _ = conv.init_with_output(jax.random.key(0), x)
  np.testing.assert_allclose(y[:, 1:-1, 1:-1].std(), 1, rtol=0.03)
