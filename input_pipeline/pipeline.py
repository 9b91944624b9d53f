"""Batches for training and evaluation, as dicts of NumPy arrays.

A batch holds the rows of this process: image float32 [b, h, w, c], label int32
[b], mask float32 [b] and id int64 [b]. The mask is 1 for an example and 0 for
padding (whose id is -1) and for a bad image. In evaluation a label of -1 means
unlabelled.
"""

from typing import Any

from input_pipeline import batches, sources
from input_pipeline import cache as cache_lib
from input_pipeline import reader as reader_lib

BadImage = reader_lib.BadImage


def train_batches(
    source: sources.Source,
    *,
    batch_size: int,
    ops: str,
    seed: int,
    start_step: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    bad_images: str = 'stop',
    threads: int = 0,
    prefetch: int = 2,
    cache: str = 'none',
    shuffle_buffer: int = 16384,
    lanes: int = 0,
) -> batches.TrainBatches:
  """Returns the endless iterator of training batches from `start_step` on.

  Args:
    source: a sources.Source.
    batch_size: of the global batch, a multiple of `process_count`.
    ops: operations in the mini-language of ops.py.
    seed: of the order and of the augmentation.
    start_step: the 0-based step that the first batch belongs to.
    process_index: which process this is.
    process_count: how many processes share the batch.
    bad_images: 'stop' raises BadImage; 'skip' sets the mask to 0 and goes on.
    threads: that read and decode; 0 for one per core.
    prefetch: batches to have ready.
    cache: 'raw' keeps the encoded images of the whole set in memory.
    shuffle_buffer: records of a streaming source over all its lanes.
    lanes: of a streaming source; 0 for gcd(batch_size, 64). Another number is
      another order.

  Raises:
    ValueError: for an unknown operation or option or sizes that do not fit.
  """
  return batches.TrainBatches(
      reader_lib.Reader(source, ops, bad_images, threads, prefetch, cache),
      start_step,
      batch_size=batch_size,
      seed=seed,
      process=(process_index, process_count),
      stream=(lanes, shuffle_buffer),
  )


def eval_batches(
    source: sources.Source,
    *,
    batch_size: int,
    ops: str,
    process_index: int = 0,
    process_count: int = 1,
    bad_images: str = 'stop',
    threads: int = 0,
    prefetch: int = 2,
    cache: str = 'none',
) -> batches.EvalBatches:
  """Returns a finite EvalBatches with each example exactly once.

  Arguments are those of `train_batches`; a `batch_size` that the processes do
  not divide is rounded up.
  """
  return batches.EvalBatches(
      reader_lib.Reader(source, ops, bad_images, threads, prefetch, cache),
      -(-batch_size // process_count) * process_count,
      (process_index, process_count),
  )


class Data:
  """What a run reads: the sources of a config, opened and checked at once.

  Attributes:
    num_examples: in the training split.
    class_names: a tuple, or None if the data has none.
    spec: {key: (shape, dtype)} of the global training batch.
  """

  def __init__(
      self, config: Any, process_index: int = 0, process_count: int = 1
  ):
    """`config` is the whole config. Raises what sources and batches raise."""
    self._process = {
        'process_index': process_index,
        'process_count': process_count,
    }
    self._sources, self._evaluations = {}, {}
    train = self._source(config.data, config.data.train_split)
    self.num_examples = len(train)
    self.class_names = train.class_names
    self._num_classes = train.num_classes
    self._image_shape = list(train.features['image'].shape) or None
    self.spec = self.train(config).spec
    self.evaluate(config)

  def model_fields(self) -> dict[str, int]:
    """Returns `num_classes` of the training split, which fixes the classes."""
    return {'num_classes': self._num_classes}

  def identity(self) -> dict[str, Any]:
    """Returns what tells this training set from others.

    The image shape is [h, w, c] of arrays, None for encoded images.
    """
    return {
        'num_examples': self.num_examples,
        'image_shape': self._image_shape,
    }

  def train(self, config: Any, start_step: int = 0) -> batches.TrainBatches:
    """Returns the TrainBatches of `config`, a phase's, from `start_step` on."""
    data = config.data
    return train_batches(
        self._source(data, data.train_split),
        batch_size=config.batch_size,
        ops=data.train_ops,
        seed=config.seed,
        start_step=start_step,
        shuffle_buffer=data.shuffle_buffer,
        lanes=data.lanes,
        **_options(data),
        **self._process,
    )

  def evaluate(
      self, config: Any, split: str | None = None
  ) -> batches.EvalBatches:
    """Returns the EvalBatches of `split`, by default `data.eval_split`."""
    data, split = config.data, split or config.data.eval_split
    batch_size = config.eval_batch_size or config.batch_size
    key = data.to_json(), split, batch_size
    if key not in self._evaluations:
      self._evaluations[key] = eval_batches(
          self._source(data, split),
          batch_size=batch_size,
          ops=data.eval_ops,
          **_options(data),
          **self._process,
      )
    return self._evaluations[key]

  def _source(self, data, split):
    key = data.to_json(), split
    if key not in self._sources:
      train = None
      if split != data.train_split:
        train = self._source(data, data.train_split)
      source = sources.make(data, split, train)
      self._sources[key] = cache_lib.cached(source, data.cache)
    return self._sources[key]


def _options(data):
  return {k: data[k] for k in ('bad_images', 'threads', 'prefetch')}
