"""MixUp and CutMix against NumPy, on one and on eight devices."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from bigtransfer import mesh as mesh_lib
from bigtransfer import mixing, sharding

FUNCTIONS = {'mixup': mixing.mixup, 'cutmix': mixing.cutmix}
ALPHA = {'mixup': 0.5, 'cutmix': 1.0}


def batch(size=8, height=10, width=6):
  rng = np.random.default_rng(0)
  images = rng.normal(size=(size, height, width, 3)).astype(np.float32)
  labels = np.eye(size, dtype=np.float32)
  return images, labels, np.ones(size, np.float32)


def run(name, seed, images, labels, mask, alpha=None):
  f = jax.jit(FUNCTIONS[name])
  alpha = ALPHA[name] if alpha is None else alpha
  mixed = f(jax.random.key(seed), images, labels, mask, alpha)
  return tuple(np.asarray(x, np.float64) for x in mixed)


@pytest.mark.parametrize('seed', range(4))
def test_mixup_blends_image_and_label_by_one_draw_per_batch(seed):
  images, labels, mask = batch()
  mixed, soft = run('mixup', seed, images, labels, mask)
  share = soft[0, 0]
  assert 0 < share < 1
  np.testing.assert_allclose(
    soft, share * labels + (1 - share) * labels[::-1], atol=1e-7
  )
  np.testing.assert_allclose(
    mixed, share * images + (1 - share) * images[::-1], atol=1e-6
  )


@pytest.mark.parametrize('seed', range(8))
def test_cutmix_pastes_one_box_and_weighs_labels_by_its_exact_area(seed):
  images, labels, mask = batch()
  mixed, soft = run('cutmix', seed, images, labels, mask)
  pasted = (mixed == images[::-1]).all(axis=(0, 3))
  kept = (mixed == images).all(axis=(0, 3))
  assert (pasted ^ kept).all()
  rows, columns = pasted.any(axis=1), pasted.any(axis=0)
  np.testing.assert_array_equal(pasted, np.outer(rows, columns))
  for side in (rows, columns):  # Without gaps; even where no border cuts it.
    assert np.abs(np.diff(side.astype(int))).sum() <= 2
    assert side[0] or side[-1] or side.sum() % 2 == 0
  share = 1 - pasted.mean()
  np.testing.assert_allclose(
    soft, share * labels + (1 - share) * labels[::-1], atol=1e-6
  )


def test_cutmix_boxes_have_the_area_that_beta_asks_for():
  images, labels, mask = batch(2, 64, 64)
  f = jax.jit(jax.vmap(mixing.cutmix, (0, None, None, None, None)))
  keys = jax.random.split(jax.random.key(0), 2000)
  _, soft = f(keys, images, labels, mask, 1.0)
  share = np.asarray(soft)[:, 0, 0]
  # 1 - lambda = s^2 is uniform under Beta(1, 1). Around a uniform centre a
  # side of s has s - s^2 / 4 within the image on average.
  s = np.sqrt((np.arange(10_000) + 0.5) / 10_000)
  expected = 1 - np.mean((s - s**2 / 4) ** 2)
  assert share.mean() == pytest.approx(expected, abs=0.02)
  assert share.min() < 0.2 and share.max() > 0.99


def test_mixup_draws_from_the_beta_distribution():
  images, labels, mask = batch(2, 1, 1)
  f = jax.jit(jax.vmap(mixing.mixup, (0, None, None, None, None)))
  keys = jax.random.split(jax.random.key(0), 4000)
  share = np.asarray(f(keys, images, labels, mask, 0.1)[1])[:, 0, 0]
  # Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)).
  assert share.mean() == pytest.approx(0.5, abs=0.03)
  assert share.var() == pytest.approx(1 / 4.8, abs=0.01)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_padding_never_reaches_a_real_row(name):
  images, labels, mask = batch()
  clean, clean_labels = run(name, 1, images, labels, mask)
  images, labels, mask = batch()
  images[5:], mask[5:] = np.nan, 0
  labels[5:] = np.nan
  mixed, soft = run(name, 1, images, labels, mask)
  # Rows 0..2 have the partners 7..5, which are padding: they stay as they are.
  np.testing.assert_array_equal(mixed[:3], images[:3])
  np.testing.assert_array_equal(soft[:3], labels[:3])
  # Rows 3 and 4 are each other's partner and do not notice.
  np.testing.assert_array_equal(mixed[3:5], clean[3:5])
  np.testing.assert_array_equal(soft[3:5], clean_labels[3:5])
  assert not np.array_equal(mixed[3], images[3])


@pytest.mark.parametrize('name', FUNCTIONS)
def test_eight_devices_give_the_same_batch_as_one(name):
  sizes = dict(data=-1, fsdp=1, model=1)
  mesh = mesh_lib.make(ml_collections.ConfigDict(sizes))
  images, labels, mask = batch(16)
  mask[13] = 0
  on_one = run(name, 3, images, labels, mask)
  rows = jax.device_put((images, labels, mask), sharding.batch_sharding(mesh))
  on_eight = run(name, 3, *rows)
  for one, eight in zip(on_one, on_eight, strict=True):
    np.testing.assert_allclose(one, eight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_the_draw_is_a_function_of_the_key(name):
  first, again, other = (run(name, seed, *batch())[1] for seed in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


def mix(seed, mixup_alpha, cutmix_alpha):
  config = ml_collections.ConfigDict(
    dict(mixup_alpha=mixup_alpha, cutmix_alpha=cutmix_alpha)
  )
  f = jax.jit(lambda key, *arrays: mixing.mix(key, *arrays, config))
  return f(jax.random.key(seed), *batch())


def test_mix_applies_what_is_on():
  images, labels, mask = batch()
  for actual, expected in zip(mix(0, 0.0, 0.0), (images, labels), strict=True):
    np.testing.assert_array_equal(actual, expected)
  for actual, expected in (
    (mix(0, 0.5, 0.0), run('mixup', 0, images, labels, mask)),
    (mix(0, 0.0, 1.0), run('cutmix', 0, images, labels, mask)),
  ):
    for a, b in zip(actual, expected, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_mix_picks_one_of_two_with_equal_probability():
  images, labels, mask = batch(2, 4, 4)
  config = ml_collections.ConfigDict(dict(mixup_alpha=1.0, cutmix_alpha=1.0))
  f = jax.jit(
    jax.vmap(lambda key: mixing.mix(key, images, labels, mask, config))
  )
  mixed = np.asarray(f(jax.random.split(jax.random.key(0), 400))[0])
  # CutMix copies pixels; MixUp makes new ones everywhere.
  blended = ~((mixed == images) | (mixed == images[::-1])).any(
    axis=(1, 2, 3, 4)
  )
  assert blended.mean() == pytest.approx(0.5, abs=0.08)
  copied = ((mixed == images) | (mixed == images[::-1])).all(axis=(1, 2, 3, 4))
  np.testing.assert_array_equal(copied, ~blended)


def test_types_are_kept():
  images, labels, mask = batch()
  for name in FUNCTIONS:
    mixed, soft = jax.jit(FUNCTIONS[name])(
      jax.random.key(0), jnp.bfloat16(images), labels, mask, 1.0
    )
    assert mixed.dtype == jnp.bfloat16 and soft.dtype == jnp.float32
