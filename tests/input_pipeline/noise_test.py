"""Random bits per example, against SplitMix64 in Python integers."""

import numpy as np

from input_pipeline import noise
from input_pipeline.host import tf

_MASK = (1 << 64) - 1


def _fold(key, value):
  x = (key + ((value + 1) * 0x9E3779B97F4A7C15)) & _MASK
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
  return x ^ (x >> 31)


def test_first_outputs_of_splitmix64():
  """For the seed 1234567, as printed by the reference C code."""
  bits = noise.fold(tf.constant(1234567, tf.uint64), tf.range(5))
  expected = [
      6457827717110365317,
      3203168211198807973,
      9817491932198370423,
      4593380528125082431,
      16408922859458223821,
  ]
  assert bits.numpy().tolist() == expected


def test_draws_are_those_of_each_example_alone():
  epochs, ids = [0, 0, 3], [5, 6, 5]
  bits = noise.draw(7, *tf.constant([epochs, ids], tf.int64), 4).numpy()
  assert bits.shape == (3, 4)
  for row, epoch, i in zip(bits, epochs, ids, strict=True):
    key = _fold(_fold(_fold(0, 7), epoch), i)
    assert row.tolist() == [_fold(key, k) for k in range(4)]
    alone = noise.draw(7, epoch, i, 4)
    np.testing.assert_array_equal(alone, row)


def test_uniform_and_below():
  bits = noise.draw(0, tf.zeros(10000, tf.int64), tf.range(10000), 2)
  values = noise.uniform(bits).numpy()
  assert values.dtype == np.float32
  assert 0 <= values.min() < 0.001 < 0.999 < values.max() < 1
  assert abs(values.mean() - 0.5) < 0.01
  assert abs(np.corrcoef(values.T)[0, 1]) < 0.04
  counts = np.bincount(noise.below(bits[:, 0], 9).numpy(), minlength=9)
  assert len(counts) == 9 and ((counts - 1111) ** 2 / 1111).sum() < 32


def test_extremes_stay_inside():
  bits = tf.constant([0, _MASK], tf.uint64)
  assert noise.uniform(bits).numpy().tolist() == [0, 1 - 2**-24]
  assert noise.below(bits, 7).numpy().tolist() == [0, 6]
