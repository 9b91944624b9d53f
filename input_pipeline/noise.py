"""Stateless random bits: a function of (seed, epoch, example id) alone.

A counter-based hash (SplitMix64: Steele, Lea and Flood, OOPSLA 2014) rather
than `tf.random.stateless_uniform`, because it takes one key per example: a
whole batch draws at once, and gets what each example would have drawn alone.
"""

from input_pipeline.host import tf

_GOLDEN = 0x9E3779B97F4A7C15


def fold(key: tf.Tensor, value: tf.Tensor | int) -> tf.Tensor:
  """Returns new uint64 keys: `key` uint64 combined with `value` int64."""
  value = tf.bitcast(tf.cast(value, tf.int64), tf.uint64)
  x = key + (value + 1) * tf.constant(_GOLDEN, tf.uint64)
  x = _xorshift(x, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
  x = _xorshift(x, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
  return _xorshift(x, 31)


def epoch_key(seed: int, epoch: tf.Tensor | int) -> tf.Tensor:
  """Returns a uint64 key for each of `epoch` int64 [...]."""
  return fold(fold(tf.constant(0, tf.uint64), seed), epoch)


def draw(
    seed: int,
    epoch: tf.Tensor | int,
    example_id: tf.Tensor | int,
    draws: int,
) -> tf.Tensor:
  """Returns uint64 bits [..., draws] for `epoch` and `example_id` [...]."""
  key = fold(epoch_key(seed, epoch), example_id)
  return fold(key[..., tf.newaxis], tf.range(draws, dtype=tf.int64))


def uniform(bits: tf.Tensor) -> tf.Tensor:
  """Returns float32 in [0, 1) from uint64 `bits`."""
  return tf.cast(shift_right(bits, 40), tf.float32) * 2.0**-24


def below(bits: tf.Tensor, limit: tf.Tensor | int) -> tf.Tensor:
  """Returns int32 in [0, limit) from uint64 `bits`; `limit` is int32."""
  scaled = shift_right(bits, 32) * tf.cast(limit, tf.uint64)
  return tf.cast(shift_right(scaled, 32), tf.int32)


def shift_right(x: tf.Tensor, places: int) -> tf.Tensor:
  """Returns uint64 `x` shifted right by `places` bits, filled with zeros."""
  return tf.bitwise.right_shift(x, tf.constant(places, tf.uint64))


def _xorshift(x, places):
  return tf.bitwise.bitwise_xor(x, shift_right(x, places))
