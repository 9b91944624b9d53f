"""Mesh shapes, slices, the batches they take and who reads what of them."""

import dataclasses
import types

import jax
import ml_collections
import numpy as np
import pytest

from bigtransfer import mesh as mesh_lib


def make(data=-1, fsdp=1, model=1, devices=None):
  sizes = dict(data=data, fsdp=fsdp, model=model)
  return mesh_lib.make(ml_collections.ConfigDict(sizes), devices)


@pytest.mark.parametrize(
  ('sizes', 'shape'),
  [
    ((-1, 1, 1), (8, 1, 1)),
    ((-1, 1, 2), (4, 1, 2)),
    ((2, 1, -1), (2, 1, 4)),
    ((2, -1, 2), (2, 2, 2)),
    ((1, 8, 1), (1, 8, 1)),
  ],
)
def test_mesh_covers_all_devices(sizes, shape):
  mesh = make(*sizes)
  assert tuple(mesh.shape.items()) == tuple(
    zip(('data', 'fsdp', 'model'), shape, strict=True)
  )
  assert set(mesh.devices.flat) == set(jax.devices())
  assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_mesh_takes_the_devices_given():
  devices = jax.devices()[2:6]
  assert set(make(-1, 1, 2, devices).devices.flat) == set(devices)


@pytest.mark.parametrize(
  ('sizes', 'near'),
  [
    ((3, 1, 2), (4, 1, 2)),
    ((-1, 1, 3), (4, 1, 2)),
    ((-1, -1, 1), (8, 1, 1)),
    ((0, 1, -1), (8, 1, 1)),
    ((-1, 16, 1), (1, 8, 1)),
    ((8, 2, 1), (4, 2, 1)),
    ((2, 2, 1), (4, 2, 1)),
    ((-2, 1, -4), (8, 1, 1)),
    ((-1, 3, 4), (1, 2, 4)),
  ],
)
def test_impossible_meshes_name_sizes_devices_and_what_fits(sizes, near):
  with pytest.raises(ValueError) as error:
    make(*sizes)
  message = str(error.value)
  asked = zip(('data', 'fsdp', 'model'), sizes, strict=True)
  assert ', '.join(f'{axis}={size}' for axis, size in asked) in message
  assert '8 devices' in message and 'one of 1, 2, 4, 8,' in message
  fits = zip(('data', 'fsdp', 'model'), near, strict=True)
  assert f'Near: {", ".join(f"{a}={s}" for a, s in fits)}.' in message
  assert make(*near).size == 8


@dataclasses.dataclass(frozen=True)
class Fake:
  """What a mesh wants to know of a device."""

  id: int
  slice_index: int
  process_index: int
  platform: str = 'fake'
  device_kind: str = 'fake'


def fake(slices=1, processes=1, per_process=2):
  """Devices of TPU slices that have `processes` each."""
  return [
    Fake(i, i // (processes * per_process), i // per_process)
    for i in range(slices * processes * per_process)
  ]


def test_slices_multiply_the_data_axis():
  mesh = make(-1, 2, 1, fake(slices=2, per_process=8)).devices
  assert mesh.shape == (8, 2, 1)
  by_slice = np.vectorize(lambda d: d.slice_index)(mesh)
  # Only 'data' crosses from one slice to the other.
  assert (by_slice == np.repeat([0, 1], 4).reshape(8, 1, 1)).all()


def test_a_data_axis_that_does_not_split_over_slices_is_refused():
  with pytest.raises(ValueError) as error:
    make(1, 8, 2, fake(slices=2, per_process=8))
  message = str(error.value)
  assert 'data=1 does not split over the 2 slices of these 16' in message
  assert 'fsdp=8 x model=2' in message


def test_processes_read_pieces_in_their_order():
  # As on a torus, where a host's chips are apart along a flattened axis.
  grid = np.array(fake(processes=4, per_process=2)).reshape(4, 2).T
  mesh = types.SimpleNamespace(
    devices=mesh_lib._by_process(grid.reshape(8, 1, 1)),
    shape={'data': 8, 'fsdp': 1, 'model': 1},
  )
  pieces = [mesh_lib.share(mesh, i) for i in range(4)]
  assert pieces == [(0, 4), (1, 4), (2, 4), (3, 4)]


@pytest.mark.parametrize(
  ('sizes', 'pieces'),
  [
    ((-1, 1, 1), [(0, 4), (1, 4), (2, 4), (3, 4)]),
    ((2, 4, 1), [(0, 4), (1, 4), (2, 4), (3, 4)]),
    # Two processes hold the same examples.
    ((2, 1, 4), [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ((1, 1, 8), [(0, 1)] * 4),
  ],
)
def test_processes_with_the_same_rows_read_the_same(sizes, pieces):
  # In whatever order the devices come.
  mesh = make(*sizes, fake(processes=4, per_process=2)[::-1])
  assert [mesh_lib.share(mesh, i) for i in range(4)] == pieces


def test_rows_in_two_pieces_are_refused():
  devices = np.array(fake(processes=2, per_process=2)).reshape(2, 2).T
  mesh = types.SimpleNamespace(
    devices=devices.reshape(4, 1, 1),
    shape={'data': 4, 'fsdp': 1, 'model': 1},
  )
  with pytest.raises(ValueError, match=r'process 0 the parts \[0, 2\] of 4'):
    mesh_lib.share(mesh, 0)


@pytest.mark.parametrize(
  ('batch', 'devices', 'fsdp', 'model', 'processes', 'accum', 'nearest'),
  [
    (10, 8, 1, 1, 1, 1, '8 or 16'),
    (10, 8, 4, 1, 1, 1, '8 or 16'),
    (19, 4, 1, 1, 2, 1, '16 or 20'),
    (12, 4, 2, 1, 1, 2, '8 or 16'),
    (7, 8, 1, 1, 1, 1, '8'),
    (0, 8, 1, 1, 1, 1, '8'),
    (-8, 8, 1, 1, 1, 1, '8'),
    # Two parts of a batch, but each of four hosts reads its share.
    (10, 8, 1, 4, 4, 1, '8 or 12'),
  ],
)
def test_batches_that_do_not_split_are_refused(
  batch, devices, fsdp, model, processes, accum, nearest
):
  mesh = make(-1, fsdp, model, jax.devices()[:devices])
  with pytest.raises(ValueError) as error:
    mesh_lib.check_batch(batch, mesh, processes, accum)
  message = str(error.value)
  for part in (
    f'batch_size={batch} ',
    f'{devices} devices',
    f'x fsdp={fsdp}',
    f'{processes} processes',
    f'accum_steps={accum}:',
    f'nearest: {nearest}.',
  ):
    assert part in message


@pytest.mark.parametrize(
  ('batch', 'model', 'processes', 'accum'),
  [(8, 1, 1, 1), (24, 1, 2, 3), (2, 4, 1, 1), (16, 2, 8, 2)],
)
def test_batches_that_split_pass(batch, model, processes, accum):
  mesh_lib.check_batch(batch, make(-1, 1, model), processes, accum)


def test_accumulation_below_one_is_refused():
  with pytest.raises(ValueError, match='accum_steps=0; accepted: 1 or more'):
    mesh_lib.check_batch(8, make(), 1, 0)


@pytest.mark.parametrize(
  ('batch', 'model', 'processes', 'padded'),
  [(10, 1, 1, 16), (16, 1, 1, 16), (1, 8, 1, 1), (10, 4, 4, 12)],
)
def test_evaluation_batches_are_rounded_up(batch, model, processes, padded):
  assert mesh_lib.padded_batch(batch, make(-1, 1, model), processes) == padded
