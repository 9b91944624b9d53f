"""The device mesh, and which batch sizes it can hold.

Axis 'data' splits the batch (and, by rule, parameters: 'fsdp'); axis 'model'
splits what the sharding rules put on it. Neighbours on 'model' are
neighbours in hardware. Axes are automatic: the compiler propagates shardings.
"""

import math

import jax
import numpy as np
from jax.experimental import mesh_utils

AXES = ('data', 'model')


def make(config, devices=None):
  """Builds the mesh of all devices from `config.mesh`.

  Args:
    config: section with `data` and `model`, positive sizes of which one may
      be -1: as many as there are devices for.
    devices: the devices to use; all of this job's by default.

  Returns:
    A `jax.sharding.Mesh` with axes 'data' and 'model'.

  Raises:
    ValueError: the sizes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = [config.data, config.model]
  if sizes.count(-1) == 1:
    # A zero would divide; a size that does not fit is refused just below.
    known = max(1, math.prod(size for size in sizes if size != -1))
    sizes[sizes.index(-1)] = len(devices) // known
  if min(sizes) < 1 or math.prod(sizes) != len(devices):
    fits = ', '.join(
      f'{n}x{len(devices) // n}' for n in _divisors(len(devices))
    )
    raise ValueError(
      f'mesh: data={config.data}, model={config.model} does not cover the '
      f'{len(devices)} devices; data x model that fits: {fits}; one of the '
      'two may be -1.'
    )
  # Splitting a physical axis in two lets any factorisation run on any torus.
  grid = mesh_utils.create_device_mesh(
    sizes, devices, allow_split_physical_axes=True
  )
  auto = (jax.sharding.AxisType.Auto,) * len(AXES)
  return jax.sharding.Mesh(grid, AXES, axis_types=auto)


def check_batch(batch_size, mesh, process_count, accum_steps):
  """Refuses a global batch that does not split evenly.

  Every microbatch (batch_size / accum_steps examples) is split over the data
  axis, and every process reads the same number of its examples.

  Raises:
    ValueError: names the batch, the devices, the processes, the accumulation
      steps and the nearest batch sizes that work.
  """
  if accum_steps < 1:
    raise ValueError(f'accum_steps={accum_steps}; accepted: 1 or more.')
  unit = accum_steps * _unit(mesh, process_count)
  if batch_size > 0 and batch_size % unit == 0:
    return
  below = batch_size // unit * unit
  near = [size for size in (below, below + unit) if size > 0] or [unit]
  raise ValueError(
    f'batch_size={batch_size} does not split over {mesh.size} devices '
    f'({mesh.shape["data"]} on the data axis), {process_count} processes and '
    f'accum_steps={accum_steps}: it must be a positive multiple of {unit}; '
    f'nearest: {" or ".join(map(str, near))}.'
  )


def padded_batch(batch_size, mesh, process_count):
  """Rounds an evaluation batch up to one that splits; the rest is masked."""
  unit = _unit(mesh, process_count)
  return -(-batch_size // unit) * unit


def _unit(mesh, process_count):
  return int(np.lcm(mesh.shape['data'], process_count))


def _divisors(n):
  return [d for d in range(n, 0, -1) if n % d == 0]
