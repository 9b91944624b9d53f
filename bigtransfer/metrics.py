"""What a run writes down: its metrics, and its bad images."""

import collections
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bigtransfer import files, json_lines
from bigtransfer import norms as norms_lib
from bigtransfer import progress as progress_lib


class MetricWriter:
  """Writes `metrics.jsonl` and, if asked, TensorBoard events.

  Lines are `{"step", "phase", "kind", "values"}` with kind 'train', 'norms'
  or 'eval'.
  They hold nothing that depends on the clock: a run that was killed and
  resumed has the same file, byte for byte, as one that was not.
  """

  def __init__(
      self, workdir: str, step: int, *, tensorboard: bool = False, group=None
  ):
    """`group` of processes, of which the primary one writes; None = one."""
    primary = group is None or group.primary
    path = os.path.join(workdir, 'metrics.jsonl') if primary else None
    self._lines = json_lines.JsonLines(path, step)
    last = self._lines.last
    if group is not None:
      last = group.broadcast('the last line of metrics.jsonl', last)
    # The step that was evaluated last, and what came out.
    self.evaluated, self.evaluation = None, {}
    if last is not None and last['kind'] == 'eval':
      self.evaluated, self.evaluation = last['step'], last['values']
    self._events = None
    if tensorboard and primary:
      from tensorboardX import SummaryWriter  # An extra; main.py checks it.

      self._events = SummaryWriter(
          os.path.join(workdir, 'tensorboard'), purge_step=step + 1
      )

  def write(
      self, step: int, phase: str, kind: str, values: Mapping[str, float]
  ):
    self._lines.write(step=step, phase=phase, kind=kind, values=dict(values))
    if kind == 'eval':
      self.evaluated, self.evaluation = step, dict(values)
    if self._events is not None:
      for name, value in values.items():
        self._events.add_scalar(f'{kind}/{name}', value, step)

  def flush(self):
    self._lines.flush()

  def close(self):
    self._lines.close()
    if self._events is not None:
      self._events.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()


class BadImages:
  """`bad_images.txt`: every example that was skipped, once, as it is met.

  Process 2 lists those that it reads in `bad_images-2.txt`.
  """

  def __init__(
      self, workdir: str, say: Callable[[str], None], process: int = 0
  ):
    name = f'bad_images-{process}.txt' if process else 'bad_images.txt'
    self._path, self._say = os.path.join(workdir, name), say
    self._known = set()
    if files.exists(self._path):
      self._known = set(files.read(self._path).decode().splitlines())

  def note(self, bad: Sequence[tuple[int, str]]):
    """Takes (id, where) pairs, with or without those of earlier calls."""
    new = {where for _, where in bad} - self._known
    if new:
      files.append(
          self._path, ''.join(f'{where}\n' for where in sorted(new))
      )
      self._known |= new
      self._say(
          f'skipped {len(self._known)} bad images so far, listed in'
          f' {self._path}'
      )


class NonFiniteError(RuntimeError):
  """A loss or gradient was NaN or infinite and `nonfinite` is 'stop'."""


# Steps under way at most. A stop waits for them, and a spot VM has 30 s; eight
# steps of a millisecond still hide what the host does between them.
AHEAD = 8


class Recorder:
  """Fetches step metrics one log interval late, so that steps never wait.

  Every step becomes one line of `metrics.jsonl`, in order.
  """

  def __init__(
      self,
      writer: MetricWriter,
      progress: progress_lib.Progress,
      phase: str,
      *,
      log_every: int,
      nonfinite: str,
      names: Sequence[str],
      leaves: Sequence[str],
  ):
    """`names` of the metrics and `leaves`, the parameter paths, in order."""
    self._writer, self._progress, self._phase = writer, progress, phase
    self._log_every, self._stop = max(log_every, 1), nonfinite == 'stop'
    self._names, self._leaves = names, leaves
    self._running, self._waiting = [], []
    self._under_way = collections.deque()

  def add(self, step: int, values: jax.Array, norms: Any = None):
    """Takes the metric vector of `step`, which may still be computing.

    `norms`, if any, are those of its layers, see norms.py.
    """
    self._under_way.append(values)
    if len(self._under_way) > AHEAD:
      self._under_way.popleft().block_until_ready()
    self._running.append((step, values, norms))
    if step % self._log_every == 0:
      self._write(self._waiting)
      self._waiting, self._running = self._running, []

  def flush(self, *, last: bool = False):
    """Waits for all steps so far and puts their lines on disk."""
    self._write(self._waiting + self._running, last=last)
    self._waiting, self._running = [], []
    self._writer.flush()

  def _write(self, group, *, last=False):
    if not group:
      return
    steps, rows, layers = zip(*jax.device_get(group), strict=True)
    rows = np.stack(rows)
    for step, numbers, of_layers in zip(
        steps, rows.tolist(), layers, strict=True
    ):
      row = dict(zip(self._names, numbers, strict=True))
      leaf = int(row.pop('nonfinite_leaf'))
      self._writer.write(step, self._phase, 'train', row)
      if of_layers is not None:
        self._writer.write(
            step, self._phase, 'norms', norms_lib.flat(of_layers)
        )
      if not math.isfinite(row['update_norm']):
        self._writer.flush()
        raise NonFiniteError(
            f'step {step}: loss {row["loss"]:g}, gradient norm'
            f' {row["grad_norm"]:g}, but an update of norm'
            f' {row["update_norm"]:g}; the last good checkpoint stays; the'
            ' optimizer divides by 0 or its values are too large'
        )
      if self._stop and row['skipped']:
        self._writer.flush()
        raise NonFiniteError(
            f'step {step}: loss {row["loss"]:g}, gradient norm'
            f' {row["grad_norm"]:g}, first parameter whose gradient is not'
            f' finite: {self._leaves[leaf] if leaf >= 0 else "none"}; the last'
            ' good checkpoint stays; --config.nonfinite=skip leaves such steps'
            ' out'
        )
    means = dict(zip(self._names, rows.mean(0).tolist(), strict=True))
    means['lr'] = row['lr']
    self._progress.update(step, means, last=last)
