"""Numbers of chips."""

import pytest

from bigtransfer import chips


def test_peaks_are_those_of_the_vendor():
  # Cloud's pages, per chip: v3 123 TFLOP/s bfloat16, v5e 197, v6e 918.
  for name, teraflops in (('v3', 123), ('v5e', 197), ('v6e', 918)):
    chip = chips.CHIPS[name]
    assert chip.flops * chip.devices == pytest.approx(teraflops * 1e12)


def test_devices_are_found_by_the_name_that_jax_gives_them():
  # A core is half a chip of v3; a megacore is all of one of v4.
  assert chips.peak_flops('TPU v3') == pytest.approx(61.5e12)
  assert chips.peak_flops('TPU v4') == pytest.approx(275e12)
  assert chips.peak_flops('NVIDIA H200') == pytest.approx(989e12)
  assert chips.peak_flops('cpu') is None
