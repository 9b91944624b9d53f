"""The device mesh, and which batch sizes it can hold.

Axes 'data' and 'fsdp' split the batch together; 'fsdp' and 'model' split what
the sharding rules put on them. Neighbours on 'model' are neighbours in
hardware, those on 'data' are farthest apart: between slices there is the
network of the data center, and only 'data' crosses it. Axes are automatic: the
compiler propagates shardings.
"""

import math

import jax
import numpy as np
from jax.experimental import mesh_utils

AXES = ('data', 'fsdp', 'model')
BATCH_AXES = ('data', 'fsdp')


def make(config, devices=None):
  """Builds the mesh of all devices from `config.mesh`.

  Args:
    config: section with `data`, `fsdp` and `model`, positive sizes of which
      one may be -1: as many as there are devices for.
    devices: the devices to use; all of this job's by default. Those of several
      slices are split over 'data' by slice.

  Returns:
    A `jax.sharding.Mesh` with `AXES`. Along 'data' and 'fsdp' processes stand
    in their order.

  Raises:
    ValueError: the sizes do not multiply to the number of devices, or 'data'
      does not split over the slices.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = [config.data, config.fsdp, config.model]
  if sizes.count(-1) == 1:
    # A zero would divide; a size that does not fit is refused just below.
    known = max(1, math.prod(size for size in sizes if size != -1))
    sizes[sizes.index(-1)] = len(devices) // known
  if min(sizes) < 1 or math.prod(sizes) != len(devices):
    raise ValueError(_misfit(config, len(devices)))
  grid = _by_process(_grid(sizes, devices))
  auto = (jax.sharding.AxisType.Auto,) * len(AXES)
  return jax.sharding.Mesh(grid, AXES, axis_types=auto)


def _grid(sizes, devices):
  slices = len({getattr(d, 'slice_index', 0) for d in devices})
  if sizes[0] % slices:
    raise ValueError(
      f'mesh: data={sizes[0]} does not split over the {slices} slices of these '
      f'{len(devices)} devices; data must be a multiple of {slices}, and '
      f'fsdp={sizes[1]} x model={sizes[2]} fit into one slice.'
    )
  if slices > 1:
    return mesh_utils.create_hybrid_device_mesh(
      (sizes[0] // slices, *sizes[1:]),
      (slices, 1, 1),
      devices,
      allow_split_physical_axes=True,
    )
  # Splitting a physical axis in two lets any factorisation run on any torus.
  return mesh_utils.create_device_mesh(
    sizes, devices, allow_split_physical_axes=True
  )


def _by_process(grid):
  """Orders 'data', then 'fsdp', by process: who is in a group stays.

  On a torus a host owns a block of chips, whose places along a flattened axis
  are apart; in order, what a process reads is one piece of the batch.
  """
  for axis in (0, 1):
    lines = np.moveaxis(grid, axis, 0)
    first = [
      min((d.process_index, i) for i, d in enumerate(line.flat))
      for line in lines
    ]
    order = sorted(range(len(lines)), key=lambda i: first[i])
    grid = np.take(grid, order, axis)
  return grid


def _misfit(config, count):
  divisors = [d for d in range(1, count + 1) if count % d == 0]

  def below(limit, wanted):
    fits = [d for d in divisors if limit % d == 0 and d <= max(1, wanted)]
    return max(fits)

  model = below(count, config.model)
  fsdp = below(count // model, config.fsdp)
  return (
    f'mesh: data={config.data}, fsdp={config.fsdp}, model={config.model} does '
    f'not cover the {count} devices: the three must multiply to {count}, so '
    f'each is one of {", ".join(map(str, divisors))}, and one may be -1. '
    f'Near: data={count // model // fsdp}, fsdp={fsdp}, model={model}.'
  )


def check_batch(batch_size, mesh, process_count, accum_steps):
  """Refuses a global batch that does not split evenly.

  Every microbatch (batch_size / accum_steps examples) is split over the data
  and fsdp axes, and every process reads the same number of its examples.

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
    f'(data={mesh.shape["data"]} x fsdp={mesh.shape["fsdp"]}), '
    f'{process_count} processes and '
    f'accum_steps={accum_steps}: it must be a positive multiple of {unit}; '
    f'nearest: {" or ".join(map(str, near))}.'
  )


def padded_batch(batch_size, mesh, process_count):
  """Rounds an evaluation batch up to one that splits; the rest is masked."""
  unit = _unit(mesh, process_count)
  return -(-batch_size // unit) * unit


def share(mesh, process_index):
  """Says which rows of a batch a process reads: (index, count).

  It is the piece `index` of `count` equal ones. Processes that hold the same
  rows, because 'model' reaches across them, read the same piece.

  Raises:
    ValueError: the rows of a process are not one such piece.
  """
  rows = mesh.devices.reshape(-1, mesh.shape['model'])
  mine = [
    i
    for i, row in enumerate(rows)
    if process_index in {d.process_index for d in row}
  ]
  index, count = mine[0] // len(mine), len(rows) // len(mine)
  if mine != list(range(index * len(mine), (index + 1) * len(mine))):
    raise ValueError(
      f'mesh: data={mesh.shape["data"]}, fsdp={mesh.shape["fsdp"]}, '
      f'model={mesh.shape["model"]} gives process {process_index} the parts '
      f'{mine} of {len(rows)} of a batch, which are not one piece; let model '
      'divide the devices of a process or be a multiple of them.'
    )
  return index, count


def _unit(mesh, process_count):
  parts = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
  return int(np.lcm(parts, process_count))
