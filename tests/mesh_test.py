"""Mesh shapes and the batches they take."""

import jax
import ml_collections
import pytest

from bigtransfer import mesh as mesh_lib


def make(data, model, devices=None):
  config = ml_collections.ConfigDict({'data': data, 'model': model})
  return mesh_lib.make(config, devices)


@pytest.mark.parametrize(
  ('data', 'model', 'shape'),
  [(-1, 1, (8, 1)), (-1, 2, (4, 2)), (2, -1, (2, 4)), (4, 2, (4, 2))],
)
def test_mesh_covers_all_devices(data, model, shape):
  mesh = make(data, model)
  assert tuple(mesh.shape.items()) == tuple(
    zip(('data', 'model'), shape, strict=True)
  )
  assert set(mesh.devices.flat) == set(jax.devices())
  assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_mesh_takes_the_devices_given():
  devices = jax.devices()[2:6]
  assert set(make(-1, 2, devices).devices.flat) == set(devices)


@pytest.mark.parametrize(
  ('data', 'model'),
  [(3, 2), (-1, 3), (-1, -1), (0, -1), (-1, 16), (8, 2), (2, 2), (-2, -4)],
)
def test_impossible_meshes_name_sizes_devices_and_what_fits(data, model):
  with pytest.raises(ValueError) as error:
    make(data, model)
  message = str(error.value)
  assert f'data={data}, model={model} ' in message
  assert '8 devices' in message
  assert '8x1, 4x2, 2x4, 1x8' in message


@pytest.mark.parametrize(
  ('batch', 'devices', 'model', 'processes', 'accum', 'nearest'),
  [
    (10, 8, 1, 1, 1, '8 or 16'),
    (19, 4, 1, 2, 1, '16 or 20'),
    (12, 4, 1, 1, 2, '8 or 16'),
    (7, 8, 1, 1, 1, '8'),
    (0, 8, 1, 1, 1, '8'),
    (-8, 8, 1, 1, 1, '8'),
    # Two devices on the data axis, but each of four hosts reads its share.
    (10, 8, 4, 4, 1, '8 or 12'),
  ],
)
def test_batches_that_do_not_split_are_refused(
  batch, devices, model, processes, accum, nearest
):
  mesh = make(-1, model, jax.devices()[:devices])
  with pytest.raises(ValueError) as error:
    mesh_lib.check_batch(batch, mesh, processes, accum)
  message = str(error.value)
  for part in (
    f'batch_size={batch} ',
    f'{devices} devices',
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
  mesh_lib.check_batch(batch, make(-1, model), processes, accum)


def test_accumulation_below_one_is_refused():
  with pytest.raises(ValueError, match='accum_steps=0; accepted: 1 or more'):
    mesh_lib.check_batch(8, make(-1, 1), 1, 0)


@pytest.mark.parametrize(
  ('batch', 'model', 'processes', 'padded'),
  [(10, 1, 1, 16), (16, 1, 1, 16), (1, 8, 1, 1), (10, 4, 4, 12)],
)
def test_evaluation_batches_are_rounded_up(batch, model, processes, padded):
  assert mesh_lib.padded_batch(batch, make(-1, model), processes) == padded
