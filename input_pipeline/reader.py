"""From rows to batches, and what went wrong on the way."""

import re

import numpy as np

from input_pipeline import cache as cache_lib
from input_pipeline import datasets
from input_pipeline import ops as ops_lib
from input_pipeline.host import tf


class BadImage(ValueError):
  """An image that cannot be read or decoded; names the file and the cause."""


class Reader:
  """What training and evaluation share: a source, operations, options."""

  def __init__(self, source, ops, bad_images, threads, prefetch, cache):
    if bad_images not in ('stop', 'skip'):
      raise ValueError(f"bad_images={bad_images!r}; there is 'stop', 'skip'")
    self.source = cache_lib.cached(source, cache)
    self.chain = ops_lib.Chain(ops)
    self._skip = bad_images == 'skip'
    self._threads = threads
    self._prefetch = prefetch

  def batches(self, rows, size):
    data = datasets.batches(
      self.source, rows, self.chain, size=size, skip=self._skip,
      threads=self._threads,
    )  # fmt: skip
    return data.prefetch(self._prefetch)

  def check(self, batch, *, unlabelled):
    """Returns the bad images; raises ValueError for a label out of range."""
    where = self.source.where
    wrong = np.flatnonzero(batch['label'] >= self.source.num_classes)
    if wrong.size:
      raise ValueError(
        f'{where(batch["id"][wrong[0]])}: label {batch["label"][wrong[0]]} is'
        f' not in [0, {self.source.num_classes})'
      )
    left_out = batch['id'][batch['mask'] == 0].tolist()
    if left_out and not self._skip and not unlabelled:
      raise ValueError(f'{where(left_out[0])}: no label to train on')
    return [(i, where(i)) for i in left_out] if self._skip else []

  def explain(self, rows, skip, size, error):
    """Returns a BadImage for the first of the `size` rows that fails."""
    rows = rows if self.source.streaming else rows.unbatch()
    for row in rows.skip(skip).take(size):
      try:
        example = self.source.parse(row['record'])
        self.chain.one(example['image'], row['bits'])
      except (tf.errors.OpError, ValueError) as cause:
        example_id = int(row['id'])
        where = self.source.where(example_id)
        return BadImage(f'{where} (id {example_id}): {_words(cause)}')
    return error


def _words(error):
  """The decoder's own words, without TensorFlow's frame around them."""
  message = getattr(error, 'message', None) or str(error)
  return re.sub(r'\{\{.*?\}\}|\[Op:.*', '', message).strip().split('\n')[0]
