"""A profiler trace of chosen steps."""

import os
import pathlib
import tempfile
from collections.abc import Callable, Sequence

import jax

from bigtransfer import files


def check(steps: Sequence[int] | None):
  """Raises ValueError if the last step comes before the first."""
  if steps and steps[1] < steps[0]:
    raise ValueError(
        f'config.trace_steps={tuple(steps)}: the first step comes first'
    )


class Trace:
  """Records the steps from the first to the last of a pair, both included.

  The trace goes to `profile` in the workdir, in the format of XProf. It has
  what the devices did and what the host did; recording slows the steps down.
  """

  def __init__(
      self,
      workdir: str | None,
      steps: Sequence[int],
      say: Callable[[str], None],
  ):
    """A `workdir` of None, for all processes but one, or no `steps`: nothing.

    Steps count from 1 over the whole run.
    """
    # Recorded here first: the profiler knows no buckets.
    self._recording = None
    self._folder = workdir and os.path.join(workdir, 'profile')
    self._steps = tuple(steps) if workdir else ()
    self._say = say

  def before(self, step: int):
    """Is called before each step."""
    if self._steps and step == self._steps[0]:
      self._recording = tempfile.TemporaryDirectory()
      jax.profiler.start_trace(self._recording.name)

  def after(self, step: int, values: jax.Array):
    """Is called after each step, with what the devices have still to give."""
    if self._recording and step == self._steps[1]:
      values.block_until_ready()
      self.close()

  def close(self):
    """Ends a recording that is under way."""
    if self._recording is None:
      return
    jax.profiler.stop_trace()
    with self._recording as here:
      for path in pathlib.Path(here).rglob('*'):
        if path.is_file():
          there = os.path.join(self._folder, path.relative_to(here))
          files.make_folder(os.path.dirname(there))
          files.write(there, path.read_bytes())
    self._recording = None
    self._say(f'profiler trace: {self._folder}, which XProf shows')
