"""Keeps a job going: makes the VM again after a preemption, resumes the job.

The end is exit code 0, wrong use (2), a limit on retries, or a limit on cost.
"""

import datetime
import re
import time
from collections.abc import Callable, Sequence

from launch import tpu_node
from launch.gcloud import LONGEST_DELAY, Gcloud, GcloudError, Kind
from launch.tpu_node import Node, Spec
from launch.workers import DONE, FAILED, STOPPED, WRONG_USE, Workers, outcome
from launch.worktree import Archive

# Workers end together, within config.distributed.heartbeat_timeout (100 s) of
# one that has died; a save takes less. Whoever runs on then is asked to stop.
GRACE = 300.0
LOG_LINES = 20


class Meter:
  """Chip-hours of the VMs of one supervisor, by their creation times.

  The hours start when Cloud TPU starts to make the VM, which is no later than
  its bill does.
  """

  def __init__(self, chips: int, most: float | None,
               clock: Callable[[], float] = time.time):
    self._chips, self._most, self._clock = chips, most, clock
    self._closed, self._vm, self._since = 0.0, None, None

  def see(self, node: Node):
    """Notes a VM that is READY."""
    if self._since is not None and node.created == self._vm:
      return
    self.close()
    self._vm = node.created
    self._since = min(_seconds(node.created, self._clock()), self._clock())

  def close(self):
    """Notes that the VM has gone."""
    self._closed, self._since = self.chip_hours * 3600 / self._chips, None

  @property
  def chip_hours(self) -> float:
    running = 0.0 if self._since is None else self._clock() - self._since
    return (self._closed + running) * self._chips / 3600

  @property
  def over(self) -> bool:
    return self._most is not None and self.chip_hours >= self._most


def _seconds(created: str, now: float) -> float:
  """Returns '2026-11-30T10:00:00.123456789Z' in seconds since 1970."""
  match = re.match(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d', created)
  if match is None:
    return now
  when = datetime.datetime.fromisoformat(match[0])
  return when.replace(tzinfo=datetime.UTC).timestamp()


class Supervisor:
  """One job on one VM, until it is done."""

  def __init__(
      self,
      cloud: Gcloud,
      spec: Spec,
      workers: Workers,
      meter: Meter,
      *,
      poll_seconds: float,
      max_wait_hours: float,
      say: Callable[[str], None],
      sleep: Callable[[float], None] = time.sleep,
      clock: Callable[[], float] = time.monotonic,
  ):
    """`workers` must raise network failures (`once`)."""
    self._cloud, self._spec, self._workers = cloud, spec, workers
    self._meter, self._say, self._sleep = meter, say, sleep
    self._poll, self._max_wait = poll_seconds, max_wait_hours
    self._clock = clock
    # For ssh that fails in a row, while the VM is said to be READY.
    self._contact = cloud.retries.fresh()

  def run(
      self, archive: Archive, arguments: Sequence[str], setup: str | None
  ) -> int:
    """Returns 0, 1, 2 or 75, when the job is done or cannot go on.

    Raises:
      GcloudError, GaveUp, BusyError, StateError: the launcher cannot go on.
    """
    synced = None
    while True:
      if self._meter.over:
        return self._end_over_cap()
      node = tpu_node.up(
          self._cloud, self._spec, poll_seconds=self._poll,
          max_wait_hours=self._max_wait, say=self._say, sleep=self._sleep,
      )
      self._meter.see(node)
      began = self._clock()
      try:
        if not node.created or synced != node.created:
          self._workers.sync(archive)
          synced = node.created
        self._workers.start(arguments, setup)
        code, why = self._watch()
      except GcloudError as e:
        if e.kind is Kind.TRANSIENT:
          self._contact.spend(e.brief)
          continue
        # A VM that goes away makes commands on it fail in any way.
        node = tpu_node.look(self._cloud, self._spec)
        ready = tpu_node.next_step(node) == 'ready'
        if ready and e.kind not in (Kind.GONE, Kind.NOT_FOUND):
          raise
        code, why = None, e.brief
      if self._meter.over:
        return code if code == DONE else self._end_over_cap()
      if code in (DONE, WRONG_USE):
        self._say(f'{self._spec.name}: {why}; {self._cost()}')
        return code
      if self._clock() - began > LONGEST_DELAY:
        self._cloud.retries.relax()
      self._cloud.retries.spend(why)

  def _watch(self) -> tuple[int | None, str]:
    """Returns the job's code and a word on it; None if the VM has gone."""
    until = None
    while True:
      self._sleep(self._poll)
      node = tpu_node.look(self._cloud, self._spec)
      if tpu_node.next_step(node) != 'ready':
        self._meter.close()
        return None, f'the VM is {node}'
      if self._meter.over:
        return None, 'the limit on cost is reached'
      # One worker stands for all while it runs: when another fails, it ends.
      if until is None:
        first = self._workers.status('0')
        self._contact = self._cloud.retries.fresh()
        if outcome(first) is None:
          continue
      statuses = self._workers.status('all')
      code = outcome(statuses)
      if code is not None:
        if code != DONE:
          self._say(self._workers.tail(LOG_LINES).rstrip())
        return code, f'the job has ended with exit code {code}'
      until = until or self._clock() + GRACE
      if self._clock() > until:
        running = [s.host for s in statuses if s.state == 'running']
        self._workers.stop()
        return FAILED, f'only {", ".join(running)} still ran; asked to stop'

  def _end_over_cap(self) -> int:
    """Lets the job save, and deletes the VM."""
    self._say(f'{self._spec.name}: --max_chip_hours is reached; {self._cost()}')
    code = None
    if tpu_node.look(self._cloud, self._spec).state == tpu_node.READY:
      try:
        self._workers.stop()
        until = self._clock() + GRACE
        while code is None and self._clock() < until:
          self._sleep(min(self._poll, 5.0))
          code = outcome(self._workers.status('all'))
      except GcloudError as e:
        self._say(f'could not ask the job to save: {e.brief}')
    tpu_node.down(
        self._cloud, self._spec, poll_seconds=self._poll, say=self._say,
        sleep=self._sleep,
    )
    if code in (DONE, STOPPED):
      return code
    self._say('the job did not say that it has saved')
    return FAILED

  def _cost(self) -> str:
    return f'{self._meter.chip_hours:.1f} chip-hours'
