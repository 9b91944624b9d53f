"""The order of sources that are read front to back, such as TFRecord files.

A fixed number L of lanes reads side by side. With B rows a batch, row i comes
from lane i * L // B, and a process has the lanes of its rows: the batch is the
same for any number of processes. Counting through all lanes in turn, epoch e
of the run is the records e * N to (e + 1) * N. Each epoch the shards are put
in a seeded order and cut into L stretches, whose sizes differ by at most one
and add up to N: every record is read once an epoch, also with fewer files than
lanes. Each piece of a shard is shuffled in a seeded window of its own, so that
a seek passes over whole pieces and reads only the last one again.
"""

import math

import numpy as np

from input_pipeline import noise, order
from input_pipeline.host import as_it_is, tf

_DEFAULT_COUNT = 64
_READ_BUFFER = 1 << 20  # bytes
_FILES_AT_ONCE = 16
_CHUNK = 64


def train_rows(
    source, *, draws, batch_size, seed, start_step, process, count, window
):
  """Returns the endless rows {'id', 'record', 'bits'} of this process.

  `process` is (index, process count), `count` is of lanes, 0 for the default,
  `window` is the number of records to shuffle in, over all lanes. Raises
  ValueError if the sizes do not divide.
  """
  count = count or math.gcd(batch_size, _DEFAULT_COUNT)
  if batch_size % count or count % process[1]:
    raise ValueError(
        f'data.lanes={count} must divide batch_size={batch_size} and be a'
        f' multiple of the {process[1]} processes'
    )
  size, shards = len(source), len(source.counts)
  rows_per_step = batch_size // count
  seen = start_step * rows_per_step  # By each lane.

  def passed(lane, epoch):
    """How many records of `lane` come before `epoch`."""
    return (epoch * size + count - 1 - lane) // count

  def of_epoch(lane, epoch):
    lanes = tf.range(count, dtype=tf.int64)
    sizes = passed(lanes, epoch + 1) - passed(lanes, epoch)
    low = tf.reduce_sum(sizes[:lane])
    positions = epoch * shards + tf.range(shards, dtype=tf.int64)
    shard_order, _ = order.shuffled(positions, num_examples=shards, seed=seed)
    skip = seen - passed(lane, epoch)
    pieces = cut(source.counts, shard_order, low, low + sizes[lane], skip)
    return tf.data.Dataset.from_tensor_slices(pieces).flat_map(
        lambda piece: shuffled(piece, epoch)
    )

  def shuffled(piece, epoch):
    key = noise.fold(noise.epoch_key(seed, epoch), piece[0])
    rows = _read(source, piece, lambda i: noise.draw(seed, epoch, i, draws))
    rows = rows.shuffle(
        max(window // count, 1),
        seed=tf.bitcast(key, tf.int64),
        reshuffle_each_iteration=False,
    )
    return rows.skip(piece[3])

  def of_lane(lane):
    epochs = tf.data.Dataset.range(
        (seen * count + lane) // size, np.iinfo(np.int64).max
    )
    return epochs.flat_map(lambda epoch: of_epoch(lane, epoch))

  own = count // process[1]
  first = process[0] * own
  return tf.data.Dataset.range(first, first + own).interleave(
      as_it_is(of_lane), own, rows_per_step, min(own, _FILES_AT_ONCE)
  )


def eval_rows(source, low, high, *, draws):
  """Returns the rows of the records [low, high), each once."""
  in_turn = np.arange(len(source.counts))
  pieces = cut(source.counts, in_turn, low, high, 0)

  def read(piece):
    return _read(source, piece, lambda i: noise.draw(0, 0, i, draws))

  return tf.data.Dataset.from_tensor_slices(pieces).interleave(
      as_it_is(read), _FILES_AT_ONCE, 1, _FILES_AT_ONCE
  )


def cut(counts, shard_order, low, high, skip):
  """Returns the pieces of shards that make up a stretch of an epoch.

  Args:
    counts: int64 [s], the records in each shard.
    shard_order: int64 [s], a permutation of the shards.
    low: where the stretch begins in the shards laid end to end in that order.
    high: where it ends.
    skip: how many records of the stretch were read before.

  Returns:
    int64 [p, 4]: shard, first record, how many, how many of these to skip.
  """
  size = tf.gather(tf.constant(counts, tf.int64), shard_order)
  begin = tf.cumsum(size, exclusive=True)
  first = tf.maximum(low - begin, 0)
  take = tf.maximum(tf.minimum(high - begin, size) - first, 0)
  drop = tf.clip_by_value(skip - tf.cumsum(take, exclusive=True), 0, take)
  pieces = tf.stack([shard_order, first, take, drop], axis=1)
  return tf.boolean_mask(pieces, take > drop)


def _read(source, piece, bits):
  """Returns the rows of a piece; `bits` gives those of ids [c]."""
  # Not tf.unstack: TensorFlow 2.21 crashes on its outputs as sizes of datasets.
  shard, first, take = piece[0], piece[1], piece[2]
  start = tf.gather(source.starts, shard) + first
  records = tf.data.TFRecordDataset(
      tf.gather(source.paths, shard), buffer_size=_READ_BUFFER
  )
  records = records.skip(tf.gather(source.firsts, shard) + first).take(take)
  # By the chunk: one by one the bits cost several times what reading does.
  ids = tf.data.Dataset.range(start, start + take).batch(_CHUNK)
  drawn = ids.map(lambda i: {'id': i, 'bits': bits(i)}).unbatch()
  return tf.data.Dataset.zip(drawn, records).map(
      lambda row, record: {**row, 'record': record}
  )
