"""The progress line, and how fast a run is."""

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from bigtransfer import json_lines, stopwatch


class Work(NamedTuple):
  """What a step does.

  Attributes:
    batch_size: examples over all devices.
    devices: of the run.
    flops: floating point operations of the model for an example, forward and
      back; None where nobody has counted.
    peak: such operations per second of a device; None where it is not known.
  """

  batch_size: int
  devices: int
  flops: float | None = None
  peak: float | None = None


class Progress:
  """The progress line, and `timing.jsonl` with the speed of every interval.

  A line of the file has `step`; `examples_per_second` and the same per device;
  `mfu`, the model's operations per second as a share of the devices' peak,
  where both are known; and `data_wait`, the share of the time that went to
  waiting for a batch. Evaluation, checkpoints and compilation are left out.
  """

  def __init__(
      self,
      workdir: str | None,
      step: int,
      *,
      total: int,
      work: Work,
      watch: stopwatch.Stopwatch,
      out=None,
  ):
    """A `workdir` of None, for all processes but one, keeps silent."""
    self._silent = workdir is None
    path = None if self._silent else os.path.join(workdir, 'timing.jsonl')
    self._timing = json_lines.JsonLines(path, step)
    self._total, self._work, self._watch = total, work, watch
    # (step, seconds at work, seconds of these without data) of the last
    # updates. Metrics come late, all that is left at once before an
    # evaluation: over two updates, the rate does not jump there.
    self._marks = deque([(step, *self._seconds())], maxlen=2)
    self._out = out or sys.stderr
    self._printed = float('-inf')

  def _seconds(self):
    seconds = self._watch.seconds()
    return seconds['steps'] + seconds['data'], seconds['data']

  def update(self, step: int, values: Mapping[str, float], *, last=False):
    """Writes the speed of the last two updates; prints once a second."""
    begin, since, waited = self._marks[0]
    seconds, waiting = self._seconds()
    self._marks.append((step, seconds, waiting))
    spent = max(seconds - since, 1e-9)
    rate = (step - begin) / spent
    speed = self._speed(rate, (waiting - waited) / spent)
    self._timing.write(step=step, **speed)
    now = time.monotonic()
    if self._silent or (now - self._printed < 1 and not last):
      return
    self._printed = now
    left = (self._total - step) / rate
    parts = [*self._parts(step, values, speed), f'ETA {clock(left)}']
    print('  '.join(parts), file=self._out, flush=True)

  def _speed(self, rate, wait):
    """Returns what `timing.jsonl` says of so many steps per second."""
    work = self._work
    examples = rate * work.batch_size
    speed = {
        'examples_per_second': round(examples, 2),
        'examples_per_second_per_device': round(examples / work.devices, 3),
    }
    if work.flops is not None and work.peak is not None:
      mfu = examples * work.flops / (work.devices * work.peak)
      speed['mfu'] = round(mfu, 4)
    return speed | {'data_wait': round(wait, 4)}

  def _parts(self, step, values, speed):
    parts = [f'step {step:,}/{self._total:,}']
    parts += [
        f'{name} {values[name]:.4g}'
        for name in ('loss', 'accuracy', 'lr')
        if name in values
    ]
    parts.append(
        f'{speed["examples_per_second"]:,.0f} examples/s'
        f' ({speed["examples_per_second_per_device"]:,.0f}/device)'
    )
    if 'mfu' in speed:
      parts.append(f'MFU {speed["mfu"]:.1%}')
    return [*parts, f'data wait {speed["data_wait"]:.0%}']

  def close(self):
    self._timing.close()


def clock(seconds: float) -> str:
  """Returns hours, minutes and seconds, as '1:02:03'."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{seconds:02}'
