"""From rows to batches, and what went wrong on the way."""

import re

from input_pipeline import batches, datasets, records
from input_pipeline import cache as cache_lib
from input_pipeline import ops as ops_lib
from input_pipeline.host import tf


class BadExample(ValueError):
  """An example that cannot be used; names the file and the cause."""


class BadImage(BadExample):
  """Of a source of images."""


class Reader:
  """What training and evaluation share: a source, operations, options."""

  def __init__(self, source, ops, bad_images, threads, prefetch, cache):
    if bad_images not in ('stop', 'skip'):
      raise ValueError(f"bad_images={bad_images!r}; there is 'stop', 'skip'")
    self.source = cache_lib.cached(source, cache)
    self.chain = ops_lib.Chain(ops)
    encoded = self.source.features['image'].dtype == tf.string
    if encoded and not self.chain.decodes:
      raise ValueError(
          f'the images are encoded: {ops!r} must begin with decode or'
          ' decode_inception_crop'
      )
    self.draws = self.chain.draws
    self._skip = bad_images == 'skip'
    self._threads = threads
    self._prefetch = prefetch

  def batches(self, rows, size):
    data = datasets.batches(
        self.source,
        rows,
        self.chain,
        size=size,
        skip=self._skip,
        threads=self._threads,
    )
    return data.prefetch(self._prefetch)

  def spec(self, data, batch_size):
    """Returns {key: (shape, dtype)}; raises ValueError for an open size."""
    spec = batches.spec(data, batch_size)
    if None in spec['image'][0]:
      raise ValueError(
          f'the operations leave the image size open, {spec["image"][0]}:'
          ' end with a resize or a crop'
      )
    return spec

  def check(self, batch, lowest):
    """Returns [(id, where)] of the images left out of `batch`.

    Raises BadImage for a label outside [lowest, num_classes).
    """
    label, ids, classes = batch['label'], batch['id'], self.source.num_classes
    wrong = ids[(label < lowest) | (label >= classes)]
    if wrong.size:
      found = label[ids == wrong[0]][0]
      raise BadImage(
          f'{self.source.where(wrong[0])} (id {wrong[0]}): label {found} is not'
          f' in [{lowest}, {classes}), the classes of the training split'
      )
    left_out = ids[batch['mask'] == 0].tolist()
    return [(i, self.source.where(i)) for i in left_out]

  def explain(self, rows, skip, size, error):
    """Returns a BadImage for the first that fails of `size` rows."""
    source = self.source
    try:
      for row in datasets.one_by_one(source, rows).skip(skip).take(size):
        try:
          example = source.parse(row['record'])
          self.chain.one(example['image'], row['bits'])
        except (tf.errors.OpError, ValueError) as cause:
          name = f'{source.where(int(row["id"]))} (id {int(row["id"])})'
          return BadImage(f'{name}: {_words(cause)}')
    except tf.errors.DataLossError as cause:
      return BadImage(f'{records.broken(source.paths)}: {_words(cause)}')
    except tf.errors.OpError as cause:
      return cause
    return error


def _words(error):
  """The decoder's own words, without TensorFlow's frame around them."""
  message = getattr(error, 'message', None) or str(error)
  return re.sub(r'\{\{.*?\}\}|\[Op:.*', '', message).strip().split('\n')[0]
