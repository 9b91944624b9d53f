"""Signs of life: which process of a run is silent, or makes no step."""

import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

# A look counts for no more seconds than this. Who was stopped for an hour, as
# by SIGSTOP, has heard from nobody meanwhile, and nobody is to blame for it.
LONGEST_LOOK = 2.0
# Seconds that all processes have to print where they are.
PRINTING = 2.0
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Heartbeat:
  """What a process tells the others of itself, and what it heard of them.

  The main thread calls `step` and `touch`; one thread calls `look`, again and
  again, and another exchanges `sign` for `hear`.
  """

  def __init__(
      self,
      index: int,
      others: Sequence[int],
      *,
      hang_seconds: float | None,
      silent_seconds: float | None = None,
      clock: Callable[[], float] = time.monotonic,
  ):
    """Process `index` is to hear of `others`; a limit of None is not kept."""
    self._index, self._clock = index, clock
    self.hang_seconds, self._silent_seconds = hang_seconds, silent_seconds
    self._now, self._looked, self._looks = 0.0, clock(), 0
    self._steps, self._stepped, self._dumped = 0, 0.0, False
    # The last sign of each, and when it came.
    self._heard = {other: ({}, 0.0) for other in others}

  def step(self):
    """The main thread goes on, at the same points on all processes."""
    self._steps += 1
    self.touch()

  def touch(self):
    """The main thread waits for something that may take its time."""
    self._stepped = self._now

  def look(self):
    """Lets time pass; prints all stacks, once, if it was too long."""
    now = self._clock()
    self._now += min(now - self._looked, LONGEST_LOOK)
    self._looked, self._looks = now, self._looks + 1
    if self._silent_seconds is not None:
      # Prints without the interpreter, should native code never give it back:
      # then there is no next look, and no sign.
      faulthandler.dump_traceback_later(0.8 * self._silent_seconds)
    limit = self.hang_seconds
    if limit is None or self._now - self._stepped < limit:
      self._dumped = False
    elif not self._dumped:
      self._dumped = True
      print(
          f'process {self._index} has made no step for {limit} s'
          ' (config.distributed.hang_seconds); its threads:',
          file=sys.stderr,
          flush=True,
      )
      faulthandler.dump_traceback(all_threads=True)

  def close(self):
    """No look comes any more."""
    if self._silent_seconds is not None:
      faulthandler.cancel_dump_traceback_later()

  def sign(self) -> str:
    """Returns what the others are to hear; never the same twice."""
    return json.dumps({
        'host': socket.gethostname(),
        'looks': self._looks,
        'steps': self._steps,
        'idle': self._now - self._stepped,
        'place': _place(),
    })

  def hear(self, signs: Mapping[int, str]):
    """Takes the latest sign of others; '' is the last of all."""
    for other in self._heard.keys() & signs.keys():
      if not signs[other]:
        del self._heard[other]
        continue
      sign = json.loads(signs[other])
      if sign != self._heard[other][0]:
        self._heard[other] = sign, self._now

  def silent(self, seconds: float) -> str | None:
    """Names those not heard from for so long, and when that was."""
    found = [
        f'{_name(other, sign)} was last heard from {self._now - at:.0f} s ago'
        for other, (sign, at) in list(self._heard.items())
        if self._now - at >= seconds
    ]
    return _listed(found) if found else None

  def problem(self) -> str | None:
    """Says why the run cannot go on, if so.

    A hang is up to process 0, which hears of all.
    """
    limit = self._silent_seconds
    if limit is not None and (silent := self.silent(limit)):
      return f'{silent} (config.distributed.heartbeat_timeout={limit})'
    limit = self.hang_seconds
    if limit is None or self._index != 0:
      return None
    signs = {self._index: json.loads(self.sign())} | {
        other: sign for other, (sign, _) in list(self._heard.items()) if sign
    }
    idle = max(sign['idle'] for sign in signs.values())
    if idle < limit + PRINTING:
      return None
    least = min(sign['steps'] for sign in signs.values())
    behind = [
        f'{_name(other, sign)} in {sign["place"]}'
        for other, sign in signs.items()
        if sign['steps'] == least
    ]
    what = 'behind' if len(behind) < len(signs) else 'none is behind'
    return (
        f'no step for {idle:.0f} s (config.distributed.hang_seconds={limit});'
        f' {what}: {_listed(behind)}; see their stacks'
    )


def _name(index, sign):
  return f'process {index} ({sign["host"]})' if sign else f'process {index}'


def _listed(texts, most=4):
  rest = [f'{len(texts) - most} more'] if len(texts) > most else []
  return ', '.join(texts[:most] + rest)


def _place():
  """Returns where the main thread is, and where this code called that."""
  frame = sys._current_frames().get(threading.main_thread().ident)
  innermost = frame
  while frame and not frame.f_code.co_filename.startswith(PACKAGE):
    frame = frame.f_back
  frames = [frame] if frame is innermost else [innermost, frame]
  return ' of '.join(
      f'{os.path.basename(f.f_code.co_filename)}:{f.f_lineno}'
      f' {f.f_code.co_name}'
      for f in frames
      if f
  )
