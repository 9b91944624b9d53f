"""Types of TPU slices by the names of Cloud TPU: generation, chips, image."""

import re

# https://cloud.google.com/tpu/docs/runtimes: images for JAX by generation.
RUNTIMES = {
    'v2': 'tpu-ubuntu2204-base',
    'v3': 'tpu-ubuntu2204-base',
    'v4': 'tpu-ubuntu2204-base',
    'v5litepod': 'v2-alpha-tpuv5-lite',
    'v5p': 'v2-alpha-tpuv5',
    'v6e': 'v2-alpha-tpuv6e',
}
# The number in these types counts chips, in the others TensorCores, two a chip.
COUNTS_CHIPS = {'v5litepod', 'v6e'}


def generation(accelerator_type: str) -> str:
  """Returns 'v5litepod' for 'v5litepod-256'.

  Raises:
    ValueError: Cloud TPU's API has no such type.
  """
  name, _, size = accelerator_type.partition('-')
  if name.startswith(('tpu7x', 'v7')):
    raise ValueError(
        f'--accelerator_type={accelerator_type}: TPU VMs end with v6e; TPU7x'
        ' is served by GKE, see launch/k8s/jobset.yaml'
    )
  if name not in RUNTIMES or not re.fullmatch(r'[1-9]\d*', size):
    raise ValueError(
        f'--accelerator_type={accelerator_type}: expected one of'
        f' {", ".join(RUNTIMES)} and a size, as v3-32 or v5litepod-256'
    )
  return name


def chips(accelerator_type: str) -> int:
  """Returns the number of chips of a slice: 4 for 'v3-8', 8 for 'v6e-8'."""
  name = generation(accelerator_type)
  count = int(accelerator_type.partition('-')[2])
  return count if name in COUNTS_CHIPS else max(1, count // 2)
