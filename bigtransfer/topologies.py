"""TPU slices by name or shape, and their devices without the hardware.

`v3-2048` counts cores and `v5litepod-256` chips, as Cloud does; `v3:32x32` is
the shape in chips. https://cloud.google.com/tpu/docs/system-architecture-tpu-vm
"""

import difflib
import importlib.util
import math
import os
import re
from typing import Any, NamedTuple

from bigtransfer import chips

# How Cloud names slices, and what the number in the name counts per chip.
_PREFIX = {
    'v2': ('v2', 2),
    'v3': ('v3', 2),
    'v4': ('v4', 2),
    'v5e': ('v5litepod', 1),
    'v5p': ('v5p', 2),
    'v6e': ('v6e', 1),
    'tpu7x': ('tpu7x', 2),
}
_PLANE = '1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16'
_BOX = (
    '2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16'
    ' 12x12x12 12x12x16 12x16x16 16x16x16'
)
# The shapes that Cloud offers; of those with as many chips the one nearest to
# a cube, which is what a name without a shape gets. v5p and TPU7x have more,
# any multiples of 4 up to the largest, which `parse` accepts as shapes.
SHAPES = {
    'v2': '2x2 4x4 8x8 8x16 16x16'.split(),
    'v3': '2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32'.split(),
    'v4': _BOX.split(),
    'v5e': _PLANE.split(),
    'v5p': (_BOX + ' 16x16x24 16x20x28').split(),
    'v6e': _PLANE.split(),
    'tpu7x': ('1x1x1 ' + _BOX + ' 16x16x24').split(),
}
# What libtpu wants to know of a machine that it is not on.
_ENVIRONMENT = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
}


class MissingCompilerError(ValueError):
  """libtpu is not installed."""


class Topology(NamedTuple):
  """A slice.

  Attributes:
    name: as Cloud has it, 'v3-2048'.
    chip: of which it has many.
    shape: of the grid of chips.
  """

  name: str
  chip: chips.Chip
  shape: tuple[int, ...]

  @property
  def num_chips(self) -> int:
    return math.prod(self.shape)

  @property
  def num_devices(self) -> int:
    return self.num_chips * self.chip.devices

  def __str__(self):
    shape = 'x'.join(map(str, self.shape))
    return f'{self.name} ({self.chip.name}:{shape}, {self.num_chips:,} chips)'


def slices(generation: str) -> list[Topology]:
  """Returns the slices of 'v3' and so on, smallest first."""
  return sorted(
      (
          _topology(generation, tuple(map(int, shape.split('x'))))
          for shape in SHAPES[generation]
      ),
      key=lambda t: t.num_chips,
  )


def parse(text: str) -> Topology:
  """Returns the slice of a name or shape: 'v3-2048', 'v3:32x32', 'v6e-256'.

  Raises:
    ValueError: there is no such slice; names the nearest.
  """
  generation, colon, shape = text.lower().partition(':')
  if colon:
    return _of_shape(text, _generation(text, generation), shape)
  names = {
      t.name: t for generation in SHAPES for t in slices(generation)
  }
  # GKE and older pages say v5e where the API says v5litepod.
  name = re.sub('^v5e-', 'v5litepod-', text.lower())
  if name in names:
    return names[name]
  prefix, _, count = name.rpartition('-')
  family = [t for n, t in names.items() if n.rpartition('-')[0] == prefix]
  if not family or not count.isdigit():
    near = difflib.get_close_matches(name, names, n=3, cutoff=0)
    raise ValueError(
        f'topology {text!r}: there is no such slice; nearest:'
        f' {", ".join(near)}; or a shape in chips, such as v3:32x32'
    )
  near = sorted(
      family, key=lambda t: abs(math.log(_count(t) / max(1, int(count))))
  )
  raise ValueError(
      f'topology {text!r}: there is no such slice; nearest: {near[0].name};'
      f' {prefix} has {", ".join(t.name for t in family)}'
  )


def _generation(text, name):
  name = {'v5litepod': 'v5e', 'v7x': 'tpu7x'}.get(name, name)
  if name not in SHAPES:
    raise ValueError(
        f'topology {text!r}: unknown generation {name!r}; accepted:'
        f' {", ".join(SHAPES)}'
    )
  return name


def _of_shape(text, generation, shape):
  known = SHAPES[generation]
  parts = shape.split('x')
  if shape not in known and not (
      generation in ('v4', 'v5p', 'tpu7x')
      and len(parts) == 3
      and all(p.isdigit() and int(p) and int(p) % 4 == 0 for p in parts)
      and math.prod(map(int, parts)) <= slices(generation)[-1].num_chips
  ):
    if not all(p.isdigit() and int(p) for p in parts):
      nearest = known[0]
    else:
      chips_asked = math.prod(map(int, parts))
      nearest = min(known, key=lambda s: abs(math.log(
          math.prod(map(int, s.split('x'))) / chips_asked)))
    raise ValueError(
        f'topology {text!r}: there is no such slice; nearest:'
        f' {generation}:{nearest}; {generation} has {" ".join(known)}'
    )
  return _topology(generation, tuple(map(int, parts)))


def _topology(generation, shape):
  prefix, per_chip = _PREFIX[generation]
  name = f'{prefix}-{math.prod(shape) * per_chip}'
  return Topology(name, chips.CHIPS[generation], shape)


def _count(topology):
  return int(topology.name.rpartition('-')[2])


def devices(topology: Topology) -> list[Any]:
  """Returns the JAX devices of a slice that is not there, to compile for.

  Raises:
    MissingCompilerError: libtpu, which holds the compiler, is not installed.
  """
  if importlib.util.find_spec('libtpu') is None:
    raise MissingCompilerError(
        'the compiler for TPUs is missing (the package libtpu, for Linux):'
        " pip install 'bigtransfer[plan]'"
    )
  for key, value in _ENVIRONMENT.items():
    os.environ.setdefault(key, value)
  from jax.experimental import topologies

  options = {}
  if topology.chip.name == 'v4':
    # Both cores of a chip as one device, as on the real ones.
    options['chip_config_name'] = 'megacore'
  if topology.num_chips == 1:
    options['chips_per_host_bounds'] = (1,) * 3
  shape = 'x'.join(map(str, topology.shape))
  description = topologies.get_topology_desc(
      f'{topology.chip.name}:{shape}', 'tpu', **options
  )
  return list(description.devices)
