"""The tf.data graphs behind pipeline.py: order -> read -> decode -> batch.

Rows come first: {'id', 'record', 'bits'}, what to read and the random bits to
augment it with. Examples are made of them: {'id', 'image', 'label', 'mask'}.
"""

import os

import numpy as np

from input_pipeline import lanes, noise, order
from input_pipeline.host import as_it_is, tf

# Rows of a random-access source are ordered and looked up so many at once, and
# small arrays augmented: enough to hide the cost of a call, few enough to stay
# in the processor's cache.
_CHUNK = 64
# Images above so many bytes are finished one by one.
_SMALL = 1 << 16


def train_rows(source, *, draws, batch_size, seed, start_step, process, stream):
  """Returns the endless rows of this process from `start_step` on.

  `process` is (index, count). `stream` is (lanes, shuffle window) for a
  streaming source. Rows of a random-access source come in chunks.
  """
  local = order.local_size(batch_size, *process)
  if source.streaming:
    return lanes.train_rows(
        source,
        draws=draws,
        batch_size=batch_size,
        seed=seed,
        start_step=start_step,
        process=process,
        count=stream[0],
        window=stream[1],
    )
  first = process[0] * local

  @as_it_is
  def chunk(start):
    row = start + tf.range(_CHUNK, dtype=tf.int64)
    positions = row // local * batch_size + first + row % local
    ids, epochs = order.shuffled(positions, num_examples=len(source), seed=seed)
    return _fetched(source, ids, noise.draw(seed, epochs, ids, draws))

  rows = tf.data.Dataset.range(
      start_step * local, np.iinfo(np.int64).max, _CHUNK
  )
  return rows.map(chunk)


def eval_rows(source, *, draws, batch_size, process):
  """Returns this process's rows and their number; over all, each example once.

  A random-access source deals out global batches as in training, a streaming
  one gives a stretch to each process.
  """
  index, count = process
  local = order.local_size(batch_size, index, count)
  if source.streaming:
    low, high = (i * len(source) // count for i in (index, index + 1))
    return lanes.eval_rows(source, low, high, draws=draws), high - low
  ids = np.arange(len(source))
  ids = ids[ids % batch_size // local == index]

  @as_it_is
  def chunk(ids):
    bits = noise.draw(0, tf.zeros_like(ids), ids, draws)
    return _fetched(source, ids, bits)

  rows = tf.data.Dataset.from_tensor_slices(ids).batch(_CHUNK)
  return rows.map(chunk), len(ids)


def one_by_one(source, rows):
  """Returns the rows out of their chunks."""
  return rows if source.streaming else rows.unbatch()


def batches(source, rows, chain, *, size, skip, threads):
  """Returns batches of `size` examples, the last of which may be smaller.

  With `skip` an example that cannot be read becomes zeros with mask 0.
  """

  @as_it_is
  def one(row):
    example = source.parse(row['record'])
    return _example(row, example, chain.one(example['image'], row['bits']))

  @as_it_is
  def many(row):
    image = chain.many(row['record']['image'], row['bits'])
    return _example(row, row['record'], image)

  threads = threads or cores()
  if chain.batched and source.features['image'].dtype != tf.string:
    data = rows.map(many, threads).rebatch(size)
  else:
    rows = one_by_one(source, rows)
    if skip:
      data = _guarded(rows, one, threads).batch(size)
    elif (chunk := _chunk(source, rows, chain)) > 1:
      data = _in_two(source, rows, chain, chunk, size, threads)
    else:
      data = rows.map(one, threads).batch(size)
  return data.with_options(options(threads))


def _chunk(source, rows, chain):
  """Returns how many images to finish together; 1 for large ones.

  They gain nothing, and a chunk of them would leave the cache.
  """
  end = chain.joint()
  if end is None:
    return 1
  head = as_it_is(lambda row: _head(source, row, chain, end))
  image = rows.map(head).element_spec
  size = image['image'].shape.num_elements() * image['image'].dtype.size
  return _CHUNK if size <= _SMALL else 1


def _head(source, row, chain, end):
  """Runs the first `end` operations; the others need the bits still."""
  example = source.parse(row['record'])
  image = chain.head(example['image'], row['bits'], end)
  return _example(row, example, image) | {'bits': row['bits']}


def _in_two(source, rows, chain, chunk, size, threads):
  """One by one until all have one size, and the rest by the chunk."""
  end = chain.joint()

  @as_it_is
  def first(row):
    return _head(source, row, chain, end)

  @as_it_is
  def rest(part):
    return part | {'image': chain.many(part['image'], part.pop('bits'), end)}

  data = rows.map(first, threads).batch(chunk)
  return data.map(rest, threads).rebatch(size)


def _fetched(source, ids, bits):
  return {'id': ids, 'record': source.fetch(ids), 'bits': bits}


def _example(row, example, image):
  label = example['label']
  mask = tf.ones_like(label, tf.float32)
  return {'id': row['id'], 'image': image, 'label': label, 'mask': mask}


def _guarded(rows, one, threads):
  """Maps `one` over `rows`; where it fails stand zeros with the row's id."""

  def guard(row):
    row = tf.data.Dataset.from_tensors(row)
    good = row.map(one)
    zeros = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), good.element_spec
    )
    bad = row.map(lambda row: {**zeros, 'id': row['id']})
    return good.ignore_errors().concatenate(bad).take(1)

  return rows.interleave(guard, threads, 1, threads)


def options(threads):
  """Returns the tf.data options of a pipeline with a pool of `threads`."""
  result = tf.data.Options()
  result.deterministic = True
  result.autotune.enabled = False
  result.threading.private_threadpool_size = threads
  result.threading.max_intra_op_parallelism = 1
  # Every thread copies its own examples into the batch: one alone could not
  # keep up with many cores.
  result.experimental_optimization.map_and_batch_fusion = True
  return result


def cores():
  """Returns how many cores this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # Linux: the cores of this process.
    return len(os.sched_getaffinity(0))
  return os.cpu_count()
