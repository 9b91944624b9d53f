"""Batches reach the mesh ahead of time, in order, and errors in their turn."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigtransfer import prefetch

SHARDING = NamedSharding(Mesh(np.array(jax.devices()), ('data',)), P('data'))


def batch(i):
  return {'x': np.full((8, 2), i, np.float32)}


def test_order_values_and_layout():
  got = list(prefetch.Prefetcher(map(batch, range(5)), SHARDING))
  assert [float(b['x'][0, 0]) for b in got] == [0, 1, 2, 3, 4]
  assert all(b['x'].sharding == SHARDING for b in got)
  assert len(got[0]['x'].addressable_shards) == 8


def test_it_stays_a_few_ahead():
  seen = []

  def source():
    for i in range(100):
      seen.append(i)
      yield batch(i)

  batches = prefetch.Prefetcher(source(), SHARDING, depth=3)
  next(batches)
  assert len(seen) == 3
  next(batches)
  assert len(seen) == 4


def test_ids_stay_on_the_host():
  assert prefetch.to_mesh(batch(0) | {'id': np.arange(8)}, SHARDING).keys() == {
      'x'
  }


def test_an_error_comes_after_the_batches_before_it():
  def source():
    yield batch(0)
    raise ValueError('bad image x.jpg')

  batches = prefetch.Prefetcher(source(), SHARDING)
  assert float(next(batches)['x'][0, 0]) == 0
  with pytest.raises(ValueError, match='x.jpg'):
    next(batches)
