"""Names of TPU slices."""

import pytest

from launch import accelerators


@pytest.mark.parametrize(('accelerator_type', 'chips', 'image'), [
    ('v2-8', 4, 'tpu-ubuntu2204-base'),
    ('v3-2048', 1024, 'tpu-ubuntu2204-base'),
    ('v4-512', 256, 'tpu-ubuntu2204-base'),
    ('v5p-128', 64, 'v2-alpha-tpuv5'),
    ('v5litepod-256', 256, 'v2-alpha-tpuv5-lite'),
    ('v6e-1', 1, 'v2-alpha-tpuv6e'),
    ('v6e-8', 8, 'v2-alpha-tpuv6e'),
])
def test_chips_and_images(accelerator_type, chips, image):
  # https://cloud.google.com/tpu/docs/v4 and so on; .../docs/runtimes
  assert accelerators.chips(accelerator_type) == chips
  generation = accelerators.generation(accelerator_type)
  assert accelerators.RUNTIMES[generation] == image


@pytest.mark.parametrize('bad', ['v3', 'v3-', 'v9-8', 'v3-0', '', 'v5e-8'])
def test_types_that_do_not_exist(bad):
  with pytest.raises(ValueError, match='v3-32'):
    accelerators.generation(bad)


def test_tpu7x_is_sent_to_kubernetes():
  with pytest.raises(ValueError, match='GKE'):
    accelerators.generation('tpu7x-128')
