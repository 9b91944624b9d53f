"""Decoding by content, against the pixels that were encoded and PIL."""

import functools
import io

import numpy as np
import pytest
import skimage.data
from PIL import Image

from input_pipeline import decode, noise, ops, orientation
from input_pipeline.host import tf

ORANGE = (200, 50, 20)
RGB = Image.new('RGB', (30, 20), ORANGE)


def _encode(image, kind, **kwargs):
  data = io.BytesIO()
  image.save(data, kind, **kwargs)
  return data.getvalue()


def _bits(chain, example_id=0):
  epoch = tf.constant(0, tf.int64)
  return noise.draw(0, epoch, tf.constant(example_id, tf.int64), chain.draws)


@functools.cache
def _traced(text):
  chain = ops.Chain(text)
  return chain, tf.function(chain.one, autograph=False)


def _run(text, data, example_id=0):
  """Runs the operations on one image in a graph, as tf.data does."""
  chain, run = _traced(text)
  return run(tf.constant(data), _bits(chain, example_id)).numpy()


def _photo(size, blur=1, **kwargs):
  image = Image.fromarray(skimage.data.astronaut())
  image = image.resize((size[0] // blur, size[1] // blur)).resize(size)
  return _encode(image, 'JPEG', quality=75, **kwargs)


# What the pixels should be, and how far a lossy format may be off.
CASES = {
    'rgb jpeg': (_encode(RGB, 'JPEG'), ORANGE, 3),
    'cmyk jpeg': (_encode(RGB.convert('CMYK'), 'JPEG'), ORANGE, 3),
    'rgba png': (
        _encode(Image.new('RGBA', (30, 20), (*ORANGE, 0)), 'PNG'),
        ORANGE,
        0,
    ),
    'la png': (
        _encode(Image.new('LA', (30, 20), (99, 0)), 'PNG'),
        (99,) * 3,
        0,
    ),
    'palette png': (
        _encode(RGB.convert('P', palette=Image.Palette.ADAPTIVE), 'PNG'),
        ORANGE,
        0,
    ),
    '1 bit png': (_encode(Image.new('1', (30, 20), 1), 'PNG'), (255,) * 3, 0),
    'grey jpeg': (_encode(Image.new('L', (30, 20), 99), 'JPEG'), (99,) * 3, 1),
    'grey png': (_encode(Image.new('L', (30, 20), 99), 'PNG'), (99,) * 3, 0),
    '16 bit png': (
        _encode(Image.fromarray(np.full((20, 30), 40000, np.uint16)), 'PNG'),
        (40000 // 257,) * 3,
        1,
    ),
    'animated gif': (
        _encode(
            RGB,
            'GIF',
            save_all=True,
            append_images=[Image.new('RGB', (30, 20), (0, 0, 255))],
        ),
        ORANGE,
        0,
    ),
    'bmp': (_encode(RGB, 'BMP'), ORANGE, 0),
    'rgba bmp': (_encode(RGB.convert('RGBA'), 'BMP'), ORANGE, 0),
    'grey bmp': (_encode(Image.new('L', (30, 20), 99), 'BMP'), (99,) * 3, 0),
    'palette bmp': (
        _encode(RGB.convert('P', palette=Image.Palette.ADAPTIVE), 'BMP'),
        ORANGE,
        0,
    ),
    'webp': (_encode(RGB, 'WEBP', lossless=True), ORANGE, 0),
    'rgba webp': (
        _encode(
            Image.new('RGBA', (30, 20), (*ORANGE, 128)),
            'WEBP',
            lossless=True,
            exact=True,
        ),
        ORANGE,
        0,
    ),
}


@pytest.mark.parametrize('case', CASES)
def test_every_kind_gives_three_channels(case):
  data, color, error = CASES[case]
  for image in (_run('decode', data), _run('decode_inception_crop(12)', data)):
    assert image.ndim == 3 and image.shape[-1] == 3
    assert np.abs(image - np.array(color)).max() <= error
  assert _run('decode', data).shape == (20, 30, 3)


def test_trailing_bytes_change_nothing():
  """tensorflow/datasets#2188."""
  data = _photo((60, 40))
  for text in ('decode', 'decode_inception_crop(20)'):
    clean = _run(text, data)
    np.testing.assert_array_equal(_run(text, data + bytes(245)), clean)


@pytest.mark.parametrize('example_id', range(5))
def test_a_cut_file_fails_whatever_the_window(example_id):
  data = _photo((300, 200))
  with pytest.raises(tf.errors.InvalidArgumentError):
    _run('decode_inception_crop(20)', data[: len(data) * 9 // 10], example_id)


@pytest.mark.parametrize('code', range(1, 9))
def test_orientation_is_applied_only_where_asked(code):
  image = Image.fromarray(skimage.data.astronaut()).resize((30, 20))
  exif = Image.Exif()
  exif[0x0112] = code
  data = _encode(image, 'JPEG', exif=exif)
  assert orientation.read(data) == code
  assert _run('decode', data).shape == (20, 30, 3)
  upright = _run('decode(exif=True)', data)
  # PIL's own reading of the same tag.
  transposes = {
      2: [0],
      3: [3],
      4: [1],
      5: [5],
      6: [4],
      7: [6],
      8: [2],
  }
  expected = Image.open(io.BytesIO(data))
  for turn in transposes.get(code, []):
    expected = expected.transpose(Image.Transpose(turn))
  assert upright.shape == ((20, 30, 3) if code < 5 else (30, 20, 3))
  assert np.abs(upright - np.asarray(expected, np.float32)).mean() < 1.5


@pytest.mark.parametrize(
    'data',
    [
        _encode(RGB, 'JPEG'),
        _encode(RGB, 'PNG'),
        b'',
        b'\xff\xd8\xff\xe1\x00\x20Exif\0\0II*\0\x08\0\0\0\x09\0',
        b'\xff\xd8\xff\xe1\x00',
    ],
)
def test_no_or_broken_orientation(data):
  assert orientation.read(data) == 1


@pytest.mark.parametrize('example_id', range(6))
def test_fused_crop_equals_decoding_first(example_id):
  """Up to the edges, where the decoder blends colour over the window."""
  data = _photo((500, 375))
  fused = _run('decode_inception_crop(64)', data, example_id)
  plain = _run('decode|inception_crop(64)', data, example_id)
  assert fused.shape == plain.shape == (64, 64, 3)
  assert np.abs(fused - plain)[2:-2, 2:-2].max() <= 1
  assert np.abs(fused - plain).mean() < 0.1


@pytest.mark.parametrize('progressive', [False, True])
@pytest.mark.parametrize(
    ('window', 'wanted', 'ratio'),
    [
        ((160, 320, 640, 800), (80, 100), 8),
        ((160, 320, 640, 800), (80, 101), 4),
        ((4, 8, 300, 400), (100, 100), 2),
        ((3, 7, 199, 101), (100, 100), 1),
    ],
)
def test_reduced_window(window, wanted, ratio, progressive):
  """Against the mean of ratio x ratio pixels, by PIL."""
  data = _photo((1601, 1203), progressive=progressive)
  image = decode._jpeg_window(tf.constant(data), tf.constant(window), wanted)
  top, left, height, width = window
  expected = (
      Image.open(io.BytesIO(data))
      .crop((left, top, left + width, top + height))
      .resize((width // ratio, height // ratio), Image.Resampling.BOX)
  )
  assert image.shape == (height // ratio, width // ratio, 3)
  difference = image.numpy() - np.asarray(expected, np.float32)
  assert np.abs(difference).mean() < 1.5


@pytest.mark.parametrize('example_id', range(6))
def test_reduced_crop_is_the_same_window(example_id):
  """Of a blurred photo, which the full size does not alias; to half a pixel."""
  data = _photo((1601, 1203), blur=32)
  text = 'decode_inception_crop(64{}, area=(0.3, 1.0))'
  full = _run(text.format(''), data, example_id)
  reduced = _run(text.format(', reduced=True'), data, example_id)
  one_pixel_off = np.abs(full[1:, 1:] - full[:-1, :-1]).mean()
  assert np.abs(full - reduced).mean() < one_pixel_off / 2


def test_reduced_crop_of_a_small_window_is_exact():
  data = _photo((500, 375))
  full = _run('decode_inception_crop(224)', data)
  reduced = _run('decode_inception_crop(224, reduced=True)', data)
  np.testing.assert_array_equal(full, reduced)


@pytest.mark.parametrize(
    ('size', 'min_side', 'shape'),
    [
        ((1000, 800), 300, (400, 500)),
        ((1000, 801), 100, (101, 125)),
        ((1000, 800), 401, (800, 1000)),
        ((1000, 800), 400, (400, 500)),
        ((40, 30), 100, (30, 40)),
    ],
)
def test_reduced_decoding_keeps_the_shorter_side(size, min_side, shape):
  data = _photo(size)
  image = _run(f'decode(min_side={min_side})', data)
  assert image.shape == (*shape, 3)
  ratio = round(size[0] / shape[1])
  rows, cols = size[1] // ratio, size[0] // ratio
  expected = (
      Image.open(io.BytesIO(data))
      .crop((0, 0, cols * ratio, rows * ratio))
      .resize((cols, rows), Image.Resampling.BOX)
  )
  difference = image[:rows, :cols] - np.asarray(expected, np.float32)
  assert np.abs(difference).mean() < 1.5


def test_arrays_pass_through():
  image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
  np.testing.assert_array_equal(_run('decode', image), image)
  assert _run('decode_inception_crop(2)', image).shape == (2, 2, 3)
