"""Floating point operations of training on one example, by config."""

from collections.abc import Sequence
from typing import Any

import jax

from bigtransfer import chips, progress
from bigtransfer.models import bert, bit_flops


def work(phase: Any) -> progress.Work:
  """Returns what a step of a phase does on the devices of this run."""
  image = phase.program.batch_spec.get('image')
  return progress.Work(
      batch_size=phase.config.batch_size,
      devices=jax.device_count(),
      flops=train_flops(phase.config, image and image.shape[1:]),
      peak=chips.peak_flops(jax.devices()[0].device_kind),
  )


def train_flops(
    config: Any, image_shape: Sequence[int] | None = None
) -> float | None:
  """Operations of the model on an example, forward and back.

  What remat repeats, the optimizer and the loss are no work of the model.

  Args:
    config: resolved.
    image_shape: height, width, channels, for models of images.

  Returns:
    None for models that nobody has counted.
  """
  if config.model.name == 'bit':
    return bit_flops.train_flops(config.model, image_shape)
  if config.model.name == 'bert':
    masked = config.data.kind == 'pretraining'
    predictions = config.data.max_predictions if masked else 0
    length = config.data.seq_length
    return bert.train_flops(config.model, length, predictions)
  return None
