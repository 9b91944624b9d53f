"""RandAugment's operations, against PIL's."""

import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageEnhance, ImageOps

from input_pipeline import noise, ops, randaugment
from input_pipeline.host import tf

PHOTO = Image.fromarray(skimage.data.astronaut()).resize((60, 40))
PIXELS = np.asarray(PHOTO)
STRENGTH = 0.6


def _grey_affine(data):
  return PHOTO.transform(
      PHOTO.size,
      Image.Transform.AFFINE,
      data,
      Image.Resampling.BILINEAR,
      fillcolor=(128, 128, 128),
  )


def _centred(a, b, d, e):
  """PIL's affine data (pixel corners) for a matrix about the centre."""
  x, y = 30, 20
  return a, b, x - a * x - b * y, d, e, y - d * x - e * y


CASES = {
    'identity': lambda s: PHOTO,
    'autocontrast': lambda s: ImageOps.autocontrast(PHOTO),
    'equalize': lambda s: ImageOps.equalize(PHOTO),
    'posterize': lambda s: ImageOps.posterize(PHOTO, 8 - 2),
    'solarize': lambda s: ImageOps.solarize(PHOTO, 256 * 0.4),
    'color': lambda s: ImageEnhance.Color(PHOTO).enhance(1 + s),
    'contrast': lambda s: ImageEnhance.Contrast(PHOTO).enhance(1 + s),
    'brightness': lambda s: ImageEnhance.Brightness(PHOTO).enhance(1 + s),
    'sharpness': lambda s: ImageEnhance.Sharpness(PHOTO).enhance(1 + s),
    'shear_x': lambda s: _grey_affine(_centred(1, 0.3 * s, 0, 1)),
    'shear_y': lambda s: _grey_affine(_centred(1, 0, 0.3 * s, 1)),
    'translate_x': lambda s: _grey_affine((1, 0, 0.45 * 60 * s, 0, 1, 0)),
    'translate_y': lambda s: _grey_affine((1, 0, 0, 0, 1, 0.45 * 40 * s)),
    'rotate': lambda s: PHOTO.rotate(
        30 * s, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128)
    ),
}


@pytest.mark.parametrize('sign', [-1, 1])
@pytest.mark.parametrize('name', CASES)
def test_operations_are_pils(name, sign):
  op = getattr(randaugment, f'_{name}')
  got = op(tf.constant(PIXELS), STRENGTH, tf.constant(STRENGTH * sign))
  assert got.dtype == tf.uint8
  expected = np.asarray(CASES[name](STRENGTH * sign), np.int32)
  difference = np.abs(got.numpy().astype(np.int32) - expected)
  if name in ('identity', 'equalize', 'posterize', 'solarize'):
    assert not difference.any()
  # Bilinear edges against the fill differ, and PIL cuts off fractions.
  assert np.quantile(difference, 0.95) <= 2
  assert difference.mean() < 1


def test_equalize_where_the_brightest_value_is_frequent():
  bright = np.where(PIXELS > 150, 255, PIXELS)
  expected = ImageOps.equalize(Image.fromarray(bright))
  got = randaugment._equalize(tf.constant(bright), 1.0, tf.constant(1.0))
  np.testing.assert_array_equal(got, expected)


def test_there_are_the_14_of_the_paper():
  names = {op.__name__.removeprefix('_') for op in randaugment._OPS}
  assert names == set(CASES) and len(names) == 14


def test_a_flat_image_stays_as_it_is():
  flat = tf.constant(np.full((8, 8, 3), 77, np.uint8))
  for op in (randaugment._autocontrast, randaugment._equalize):
    np.testing.assert_array_equal(op(flat, 1.0, tf.constant(1.0)), flat)


def _augmented(text, count, image=PIXELS):
  chain = ops.Chain(text)
  bits = noise.draw(0, tf.zeros(count, tf.int64), tf.range(count), chain.draws)
  run = tf.function(chain.one, autograph=False)
  return [run(tf.constant(image), bits[i]).numpy() for i in range(count)]


def test_examples_differ_and_repeat():
  images = _augmented('randaugment(2, 5)', 20)
  assert len({image.tobytes() for image in images}) > 15
  again = _augmented('randaugment(2, 5)', 20)
  np.testing.assert_array_equal(images, again)
  assert all(image.shape == PIXELS.shape for image in images)


def test_all_operations_are_drawn():
  images = _augmented('randaugment(1, 6)', 150)
  unchanged = sum((image == PIXELS).all() for image in images)
  assert 2 <= unchanged <= 25  # Of 150 / 14 = 10.7 expected.
  assert len({image.tobytes() for image in images}) >= 20  # 14 and signs.


def test_after_a_resize():
  (image,) = _augmented('resize((20, 30))|randaugment(1, 0)', 1)
  assert image.shape == (20, 30, 3) and image.dtype == np.float32
  np.testing.assert_array_equal(image, np.round(image))


def test_mistakes():
  with pytest.raises(ValueError, match=r'magnitude 11 is not in \[0, 10\]'):
    ops.Chain('randaugment(2, 11)')
  with pytest.raises(ValueError, match='needs 3 channels, not 1'):
    _augmented('randaugment', 1, PIXELS[..., :1])
