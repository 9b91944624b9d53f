"""A source whose encoded images are kept in memory."""

import numpy as np

from input_pipeline import datasets, sources
from input_pipeline.host import tf

_READS_AT_ONCE = 16


def cached(source: sources.Source, cache: str) -> sources.Source:
  """Returns `source`, read into memory once if `cache` is 'raw'."""
  if cache not in ('none', 'raw'):
    raise ValueError(f"data.cache={cache!r}; there is 'none', 'raw'")
  in_memory = source.features['image'].dtype != tf.string
  return source if cache == 'none' or in_memory else _InMemory(source)


class _InMemory(sources.Source):
  """Reads all encoded images at once; then at random, a stream too."""

  def __init__(self, source: sources.Source):
    super().__init__(
        len(source),
        source.features['image'],
        source.num_classes,
        source.class_names,
    )
    self.where = source.where
    rows, _ = datasets.eval_rows(source, draws=1, batch_size=1, process=(0, 1))
    records = datasets.one_by_one(source, rows).map(
        lambda row: (row['id'], source.parse(row['record'])), _READS_AT_ONCE
    )
    ids, examples = zip(*records.batch(256), strict=True)
    in_turn = np.argsort(tf.concat(ids, 0))
    self._examples = {
        k: tf.gather(tf.concat([e[k] for e in examples], 0), in_turn)
        for k in self.features
    }

  def fetch(self, ids):
    return {k: tf.gather(v, ids) for k, v in self._examples.items()}
