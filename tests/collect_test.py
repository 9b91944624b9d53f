"""Outputs come to the host once each, in order, from any layout."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bigtransfer import collect

VALUES = np.arange(21, dtype=np.float32).reshape(7, 3)


def batches(size, devices, mask=None):
  rows = -(-len(VALUES) // size) * size
  x = np.zeros((rows, 3), np.float32)
  x[:7] = VALUES
  mask = np.arange(rows) < 7 if mask is None else mask
  for i in range(0, rows, size):
    batch = {'x': x[i : i + size], 'mask': mask[i : i + size] * np.float32(1)}
    if devices:
      mesh = Mesh(np.array(jax.devices()[:devices]), ('data',))
      yield jax.device_put(batch, NamedSharding(mesh, PartitionSpec('data')))
    else:
      yield jax.device_put(batch)


def predict(params, model_state, batch):
  return {'y': batch['x'] * params, 'other': batch['mask']}


@pytest.mark.parametrize(('size', 'devices'), [(8, 8), (4, 2), (2, 0), (7, 0)])
def test_every_example_once_and_in_order(size, devices):
  collector = collect.Collector(predict, lambda: batches(size, devices), ['y'])
  for scale in (1, 2):
    got = collector.run(np.float32(scale), {}, 7)
    assert set(got) == {'y'}
    np.testing.assert_array_equal(got['y'], scale * VALUES)


def test_padding_before_the_end_is_an_error():
  mask = np.array([1, 1, 0, 1, 1, 1, 1, 1])
  collector = collect.Collector(predict, lambda: batches(4, 0, mask), ['y'])
  with pytest.raises(ValueError, match='7 examples in 8 rows'):
    collector.run(np.float32(1), {}, 7)
