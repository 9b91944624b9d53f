"""What each accelerator can do: arithmetic, memory and links.

From the pages of Cloud TPU (https://cloud.google.com/tpu/docs/v3 and its
neighbours), v2 and what they leave out from JAX (`pallas/tpu_info.py`) and
https://jax-ml.github.io/scaling-book. A chip is what Cloud counts and bills; a
device is what JAX shows, a half of the chip on v2, v3 and TPU7x.
"""

from typing import NamedTuple

GIB = 2**30


class Chip(NamedTuple):
  """One generation. All rates are peaks per chip.

  Attributes:
    name: as in a topology, 'v5e'.
    device_kind: what a JAX device of it is called.
    chip_flops: bfloat16 operations per second.
    chip_hbm: bytes.
    chip_bandwidth: bytes of HBM per second.
    chip_ici: bytes per second out of the chip, over all of its links.
    links: to other chips.
    devices: per chip.
    usable: bytes of HBM per device that a program may use, what the compiler
      (libtpu 0.0.42) gives as available when one does not fit.
  """

  name: str
  device_kind: str
  chip_flops: float
  chip_hbm: int
  chip_bandwidth: float
  chip_ici: float
  links: int
  devices: int
  usable: int

  @property
  def flops(self) -> float:
    """bfloat16 operations per second of a JAX device."""
    return self.chip_flops / self.devices

  @property
  def bandwidth(self) -> float:
    """Bytes of HBM per second of a JAX device."""
    return self.chip_bandwidth / self.devices


def _chip(name, kind, tera, hbm, bandwidth, link, links, devices, usable):
  """In TFLOP/s, GiB, GB/s, GB/s of a link in one direction, and GiB."""
  return Chip(
      name, kind, tera * 1e12, round(hbm * GIB), bandwidth * 1e9,
      links * link * 1e9, links, devices, round(usable * GIB),
  )


# A link of v2 has 496 Gb/s and of v3 656 Gb/s in each direction. v5p is sold as
# 95 GB and JAX has 103e9 bytes.
CHIPS = {
    chip.name: chip
    for chip in (
        _chip('v2', 'TPU v2', 46, 16, 716, 62, 4, 2, 7.48),
        _chip('v3', 'TPU v3', 123, 32, 900, 82, 4, 2, 15.48),
        _chip('v4', 'TPU v4', 275, 32, 1200, 45, 6, 1, 30.75),
        _chip('v5e', 'TPU v5 lite', 197, 16, 819, 45, 4, 1, 15.75),
        _chip('v5p', 'TPU v5', 459, 95.9, 2765, 90, 6, 1, 95.74),
        _chip('v6e', 'TPU v6 lite', 918, 32, 1638, 90, 4, 1, 31.25),
        _chip('tpu7x', 'TPU7x', 2307, 192, 7380, 100, 6, 2, 94.75),
    )
}

# Dense bfloat16 of the SXM modules; other cards of the name are slower.
GPU_FLOPS = {
    'NVIDIA H100 80GB HBM3': 989e12,
    'NVIDIA H200': 989e12,
}


def of_kind(device_kind: str) -> Chip | None:
  """Returns the TPU chip whose JAX devices have this `device_kind`."""
  # JAX has called v5p both ways.
  kind = 'TPU v5' if device_kind == 'TPU v5p' else device_kind
  return next((c for c in CHIPS.values() if c.device_kind == kind), None)


def peak_flops(device_kind: str) -> float | None:
  """Returns peak bfloat16 operations per second of one JAX device.

  None for a device that the tables do not have, such as a CPU.
  """
  chip = of_kind(device_kind)
  return chip.flops if chip else GPU_FLOPS.get(device_kind)
