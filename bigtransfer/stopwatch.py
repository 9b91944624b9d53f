"""What the time of a process goes to."""

import time
from collections.abc import Callable

# What a run can wait for. All other time is that of its steps.
KINDS = ('start', 'compilation', 'data', 'evaluation', 'checkpoints')


class Stopwatch:
  """Adds up seconds by kind; what no kind claims went to the steps.

  `with watch.during('data'):` claims the time inside. It is the time of the
  host, which runs ahead of the devices: it waits for data, say, only where
  these go hungry, because else a batch lies ready.
  """

  def __init__(
      self,
      since: float | None = None,
      clock: Callable[[], float] = time.monotonic,
  ):
    """`since`, by the clock, is when the process began: before is 'start'."""
    self._clock = clock
    self._begin = clock() if since is None else since
    self._spent = dict.fromkeys(KINDS, 0.0)
    self._spent['start'] = clock() - self._begin
    self._during = {kind: _During(self, kind) for kind in KINDS}

  def during(self, kind: str) -> '_During':
    return self._during[kind]

  def seconds(self) -> dict[str, float]:
    """Returns the seconds so far by kind, those of the 'steps' first."""
    spent = self._clock() - self._begin
    return {'steps': spent - sum(self._spent.values()), **self._spent}

  def begin(self) -> float:
    return self._clock()

  def end(self, kind: str, begin: float):
    self._spent[kind] += self._clock() - begin


class _During:
  """A context that costs half a microsecond, as each step enters two."""

  __slots__ = ('_watch', '_kind', '_begin')

  def __init__(self, watch, kind):
    self._watch, self._kind = watch, kind

  def __enter__(self):
    self._begin = self._watch.begin()

  def __exit__(self, *_):
    self._watch.end(self._kind, self._begin)
