"""The mini-language, and each operation against NumPy or PIL."""

import numpy as np
import pytest
from PIL import Image

from input_pipeline import noise, ops
from input_pipeline.host import tf

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 12, 10, 3), dtype=np.uint8)
UNKNOWN = tf.TensorSpec((None, None, 3), tf.uint8)
BITS = tf.TensorSpec((None,), tf.uint64)


def _bits(chain, count=6):
  return noise.draw(0, tf.zeros(count, tf.int64), tf.range(count), chain.draws)


def _one(text, images=IMAGES):
  chain = ops.Chain(text)
  bits = _bits(chain, len(images))
  pairs = zip(images, bits, strict=True)
  return np.stack([chain.one(tf.constant(i), b) for i, b in pairs])


@pytest.mark.parametrize(
    'text',
    [
        'central_crop(7)',
        'flip_lr',
        'grey',
        'pad(2)|random_crop((12, 10))|flip_lr|value_range(-1, 1)',
        'random_crop((5, 6))|random_crop(4)',
        'resize((20, 16))|random_crop(15)',
        'resize_small(6, antialias=True)',
        "resize((4, 5), 'nearest')",
        'decode|value_range',
        '',
    ],
)
def test_a_batch_at_once_equals_one_by_one(text):
  chain = ops.Chain(text)
  assert chain.batched
  many = chain.many(tf.constant(IMAGES), _bits(chain)).numpy()
  assert many.dtype == np.float32
  np.testing.assert_array_equal(many, _one(text))


def test_value_range():
  image = np.array([0, 51, 255], np.uint8).reshape(1, 1, 1, 3)
  for text, expected in {
      'value_range(-1, 1)': [-1, -0.6, 1],
      'value_range(0, 1)': [0, 0.2, 1],
      'value_range': [-1, -0.6, 1],
  }.items():
    np.testing.assert_allclose(_one(text, image).reshape(-1), expected, 1e-6)


def test_value_range_of_the_released_bit_code():
  """(x - 127.5) / 127.5, google-research/big_transfer."""
  expected = (IMAGES.astype(np.float32) - 127.5) / 127.5
  np.testing.assert_allclose(_one('value_range(-1, 1)'), expected, atol=1e-6)


def test_crops_and_flips_by_slicing():
  np.testing.assert_array_equal(
      _one('central_crop((5, 4))'), IMAGES[:, 3:8, 3:7]
  )
  np.testing.assert_array_equal(
      _one('pad(3)'), np.pad(IMAGES, ((0, 0), (3, 3), (3, 3), (0, 0)))
  )
  flipped = _one('flip_lr')
  same = (flipped == IMAGES).all((1, 2, 3))
  mirrored = (flipped == IMAGES[:, :, ::-1]).all((1, 2, 3))
  assert (same ^ mirrored).all() and same.any() and mirrored.any()


def test_random_crops_are_uniform_over_all_places():
  image = np.arange(25, dtype=np.uint8).reshape(1, 5, 5, 1).repeat(3600, 0)
  chain = ops.Chain('random_crop((3, 2))')
  corner = chain.many(tf.constant(image), _bits(chain, 3600))[:, 0, 0, 0]
  places, counts = np.unique(corner, return_counts=True)
  top, left = np.divmod(places, 5)
  assert set(top) == {0, 1, 2} and set(left) == {0, 1, 2, 3}
  assert ((counts - 300) ** 2 / 300).sum() < 33  # 99.95% of chi squared, 11.


def test_flips_half_of_the_images():
  image = np.array([0, 1], np.uint8).reshape(1, 1, 2, 1).repeat(4000, 0)
  chain = ops.Chain('flip_lr')
  flips = chain.many(tf.constant(image), _bits(chain, 4000)).numpy()[:, 0, 0, 0]
  assert abs(flips.mean() - 0.5) < 0.032  # Four standard deviations.


def test_resize_by_hand():
  """Bilinear with half-pixel centres: 2 pixels to 4 are at -1/4, 1/4, 3/4."""
  image = np.array([0, 100], np.uint8).reshape(1, 1, 2, 1)
  expected = np.array([0, 25, 75, 100]).reshape(1, 1, 4, 1)
  np.testing.assert_allclose(_one('resize((1, 4))', image), expected)


def test_antialiased_resize_equals_pil():
  image = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)
  expected = Image.fromarray(image).resize((15, 10), Image.Resampling.BILINEAR)
  got = _one('resize((10, 15), antialias=True)', image[np.newaxis])[0]
  assert np.abs(got - np.asarray(expected, np.float32)).max() <= 1


@pytest.mark.parametrize(
    ('shape', 'expected'),
    [((40, 60), (32, 48)), ((61, 40), (49, 32)), ((32, 32), (32, 32))],
)
def test_resize_small_keeps_the_aspect(shape, expected):
  image = np.zeros((1, *shape, 3), np.uint8)
  assert _one('resize_small(32)', image).shape == (1, *expected, 3)
  chain = ops.Chain('resize_small(32)')
  unknown = tf.function(chain.one, [UNKNOWN, BITS])
  assert unknown(image[0], _bits(chain)[0]).shape == (*expected, 3)


def test_grey_is_pils():
  expected = [np.asarray(Image.fromarray(i).convert('L')) for i in IMAGES]
  got = _one('grey')
  assert got.shape == (6, 12, 10, 1)
  assert np.abs(got[..., 0] - np.stack(expected)).max() <= 1


def test_inception_crop_windows():
  """Areas and aspects of 300 windows; a ramp tells where one lies."""
  y, x = np.meshgrid(np.arange(200), np.arange(240), indexing='ij')
  image = np.stack([y, x, x * 0], -1).astype(np.uint8)
  chain = ops.Chain('inception_crop(8, area=(0.1, 0.5))')
  areas, aspects, tops = [], [], []
  for bits in _bits(chain, 300):
    window = chain.one(tf.constant(image), bits).numpy()
    # The outer samples lie half a step inside the window.
    height, width = (window[-1, -1] - window[0, 0])[:2] * 8 / 7
    areas.append(height * width / (200 * 240))
    aspects.append(width / height)
    tops.append(window[0, 0, 0])
  assert 0.09 < min(areas) < 0.15 and 0.45 < max(areas) < 0.52
  assert 0.73 < min(aspects) < 0.8 and 1.25 < max(aspects) < 1.36
  assert min(tops) < 10 and max(tops) > 100


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        (
            'resise(8)',
            ["'resise'", "mean 'resize'?", 'There is central_crop, dec'],
        ),
        ('resize(', ["'resize('", 'name(literals)']),
        ('resize(x)', ["'resize(x)'"]),
        ('resize(8)(9)', ["'resize(8)(9)'"]),
        ('a.resize(8)', ["'a.resize(8)'"]),
        ('flip_lr||grey', ["''"]),
        (
            'resize',
            ["missing a required argument: 'size'", 'resize(size: int |'],
        ),
        ('resize(8, sise=9)', ["'sise'", 'resize(size: int |']),
        (
            'central_crop(0)',
            [
                'size 0 must be positive',
                'central_crop(size: int | tuple[int, int])',
            ],
        ),
        ('random_crop(2.5)', ["'random_crop(2.5)'"]),
    ],
)
def test_mistakes(text, words):
  with pytest.raises(ValueError) as error:
    ops.Chain(text)
  for word in words:
    assert word in str(error.value)


def test_too_small_images():
  for text in ('random_crop(11)', 'central_crop((5, 11))'):
    chain = ops.Chain(text)
    with pytest.raises(ValueError, match=r'does not fit .* \(12, 10\)'):
      chain.many(tf.constant(IMAGES), _bits(chain))
    unknown = tf.function(chain.one, [UNKNOWN, BITS])
    with pytest.raises(tf.errors.InvalidArgumentError, match='shape'):
      unknown(IMAGES[0], _bits(chain)[0])
