"""Reads the checkpoints of a folder, whole or in part; changes nothing."""

import os
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bigtransfer import files, trees


class MismatchError(ValueError):
  """A checkpoint does not fit what it is to be restored into."""


def complete_steps(directory: str) -> list[int]:
  """Steps of the complete checkpoints in a folder, if it exists, ascending."""
  # In a bucket, where a folder cannot be renamed, Orbax writes the one file
  # last; without the other a folder is half a copy.
  last = '_CHECKPOINT_METADATA'
  if files.in_bucket(directory):
    last = 'commit_success.txt'
  return sorted(
      int(name)
      for name in files.names(directory)
      if name.isdigit() and files.exists(os.path.join(directory, name, last))
  )


def restore_params(
    directory: str, step: int | None = None, abstract: Any = None
) -> tuple[Any, int]:
  """Restores parameters alone, the moving average where there is one.

  Args:
    directory: with a folder per checkpoint; nothing in it is changed.
    step: which checkpoint; None = the newest complete one.
    abstract: `jax.ShapeDtypeStruct`s with shardings; None = as saved, on the
      first device.

  Returns:
    The parameters and the step.

  Raises:
    FileNotFoundError: there is no such checkpoint.
    MismatchError: it does not fit `abstract`; names the first difference.
  """
  steps = complete_steps(directory)
  if not steps or step not in (None, *steps):
    raise FileNotFoundError(
        f'{directory} has no checkpoint {"" if step is None else step}'
        f' (it has {steps})'
    )
  step = step or steps[-1]
  has_ema = files.exists(os.path.join(directory, str(step), 'ema'))
  part = 'ema' if has_ema else 'params'
  return restore_part(directory, step, part, abstract), step


def restore_part(
    directory: str, step: int, part: str, abstract: Any = None
) -> Any:
  """Restores one part of a checkpoint, {} if the state had none; see above."""
  item = epath.Path(files.absolute(directory)) / str(step) / part
  if not item.exists():
    return {}
  with ocp.StandardCheckpointer() as checkpointer:
    found = checkpointer.metadata(item).item_metadata.tree
    if abstract is None:
      here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
      abstract = jax.tree.map(
          lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=here),
          found,
      )
    elif problem := trees.mismatch(found, abstract):
      raise MismatchError(f'{item} {problem}: it is of another model')
    return checkpointer.restore(item, abstract)
