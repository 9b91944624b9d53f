"""What the processes of a run tell each other beside their devices.

They share a small key-value store. A thread of each looks at it twice a second
and ends the process when another has failed, because the main thread may then
wait for ever inside a collective. A second thread does so when the store, which
lives in process 0, or any other process is silent or makes no step. A single
process is a group of one.
"""

import concurrent.futures
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

import jax

from bigtransfer import heartbeat

# Seconds between two looks at the store; what was asked for is seen this late.
POLL = 0.5


class GroupError(RuntimeError):
  """The processes do not come together, or do not agree."""


class Group:
  """The processes of a run.

  Attributes:
    index: of this process.
    count: of all.
    primary: whether this is process 0, which alone writes to the workdir.
  """

  def __init__(
      self,
      store: Any,
      index: int,
      count: int,
      hang_seconds: float | None,
      silent_seconds: float | None = None,
  ):
    """`store` is None in a group of one; a limit of None is not kept."""
    self.index, self.count = index, count
    self.primary = index == 0
    self._store = store
    # Events asked for here; those of all processes, in order, in which this one
    # takes part; the call of `check` at which each is acted on.
    self._asked, self._seen, self._targets = [], [], []
    self._calls = 0
    self._lock = threading.Lock()
    # All look after process 0 and it looks after all, so that the work grows
    # with the number of processes and not with its square.
    self._heartbeat = heartbeat.Heartbeat(
        index,
        range(1, count) if self.primary else (0,),
        hang_seconds=hang_seconds,
        silent_seconds=silent_seconds if count > 1 else None,
    )
    self._closed, self._closing = threading.Event(), threading.Event()
    self._talking = threading.Thread(target=self._talk, daemon=True)
    self._watching = threading.Thread(target=self._watch, daemon=True)
    if count > 1:
      self._talking.start()
    if count > 1 or hang_seconds is not None:
      self._watching.start()

  def ask(self, event: str):
    """Asks all processes to act on `event`; safe in a signal handler."""
    self._asked.append(event)

  def check(self) -> set[str]:
    """Returns the events to act on now; equal on all processes.

    All call it at the same points of the run. When an event is seen, the thread
    of each process says what its next call will be, and all act at the largest
    of these numbers. A call waits for nothing but those threads, so it does not
    matter what the main threads wait for.
    """
    with self._lock:
      self._calls += 1
      seen = list(self._seen)
    self._heartbeat.step()
    if self.count == 1:
      # One by one: a signal may add to the list at any moment.
      return {self._asked.pop(0) for _ in range(len(self._asked))}
    for number in range(len(self._targets), len(seen)):
      self._targets.append(max(
          int(self._store.get(f'at/{number}/{other}'))
          for other in range(self.count)
      ))
    return {
        event
        for event, target in zip(seen, self._targets, strict=True)
        if target == self._calls
    }

  def _exchange_events(self):
    """Makes known what was asked for here, takes part in what others ask."""
    while self._asked:
      event = self._asked.pop(0)
      # At the first free number; at least one check is to come for it.
      number = len(self._seen)
      while not self._store.set_new(f'event/{number:06d}', event):
        number += 1
    for number, event in self._store.under('event/'):
      if int(number) < len(self._seen):
        continue
      with self._lock:
        self._store.set(f'at/{int(number)}/{self.index}', str(self._calls + 1))
        self._seen.append(event)

  def await_all(self, name: str, work: concurrent.futures.Future) -> bool:
    """Waits until `work` is done on all processes, or gives up on all.

    Returns False, the same on all, once 'stop' has been asked for. The time is
    no hang; `name` is used once.
    """
    told = False
    while (verdict := self._verdict(name, work.done())) is None:
      self._heartbeat.touch()
      concurrent.futures.wait([work], POLL / 5)
      if work.done() and self.count > 1:
        if not told:
          told = True
          self._store.set(f'done/{name}/{self.index}', 'yes')
        time.sleep(POLL / 25)
    return verdict

  def _verdict(self, name, done):
    """Returns whether `name` is done, None where that is still open."""
    if not self.primary:
      # Process 0 decides.
      found = self._store.look(f'all/{name}')
      return None if found is None else found == 'done'
    stop = 'stop' in self._asked + self._seen
    if self.count > 1:
      done = len(self._store.under(f'done/{name}/')) == self.count
    if not stop and not done:
      return None
    if self.count > 1:
      self._store.set(f'all/{name}', 'stop' if stop else 'done')
    return not stop

  def broadcast(self, name: str, value: Any = None) -> Any:
    """Returns the value that process 0 gives; JSON. `name` is used once."""
    if self.count == 1:
      return value
    if self.primary:
      self._store.set(f'value/{name}', json.dumps(value))
    return json.loads(self._store.get(f'value/{name}'))

  def fail(self, message: str, code: int):
    """Says why this process fails; the others end with the same code.

    Returns in a group of one. In others it ends the process at once: the usual
    way out would wait for those that wait for this one.
    """
    if self.count == 1:
      return
    self._end_all(f'process {self.index} failed: {message}', code)

  def missing(self) -> str:
    """Returns who gives no sign of life, after waiting for one."""
    # Process 0, which hears all, comes first.
    time.sleep((6 if self.primary else 12) * POLL)
    return self._heartbeat.silent(4 * POLL) or 'another process has gone'

  def close(self):
    """Leaves the group when the others do."""
    self._closing.set()
    if self._talking.is_alive():
      self._talking.join()
    # Only now, as the talk may not end if process 0 hangs.
    self._closed.set()
    if self._watching.is_alive():
      self._watching.join()
    if self.count > 1:
      jax.distributed.shutdown()

  def _talk(self):
    """Tells the others of this process, and hears of them."""
    try:
      while not self._closing.wait(POLL):
        self._exchange_events()
        self._exchange_signs()
        for other, text in self._store.under('failed/'):
          if int(other) != self.index:
            code, message = json.loads(text)
            end(message, code)
      # From now on, silence means nothing.
      self._store.put(f'sign/{self.index}', '')
    except jax.errors.JaxRuntimeError as e:
      if not self._closing.is_set():
        end(f'process 0 has gone: {str(e).splitlines()[0]}', 1)

  def _exchange_signs(self):
    self._store.put(f'sign/{self.index}', self._heartbeat.sign())
    if self.primary:
      signs = self._store.under('sign/')
    else:
      sign = self._store.look('sign/0')
      signs = [] if sign is None else [(0, sign)]
    self._heartbeat.hear({int(other): sign for other, sign in signs})

  def _watch(self):
    while not self._closed.wait(POLL):
      self._heartbeat.look()
      problem = self._heartbeat.problem() if self.count > 1 else None
      if problem:
        print(f'error: {problem}', file=sys.stderr)
        if not self.primary:
          leave(1)  # Process 0 is silent, and so is the store.
        self._end_all(problem, 1)
    self._heartbeat.close()

  def _end_all(self, message, code):
    """Tells the others why they end, and ends this process."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._store.set(f'failed/{self.index}', json.dumps([code, message]))
    if self.primary:
      time.sleep(4 * POLL)  # The store ends with process 0.
    leave(code)


class Store:
  """The key-value store of the distributed runtime."""

  def __init__(self, client):
    self._client = client

  def set(self, key, value):
    self._client.key_value_set(f'bigtransfer/{key}', value)

  def put(self, key, value):
    self._client.key_value_set(
        f'bigtransfer/{key}', value, allow_overwrite=True
    )

  def set_new(self, key, value) -> bool:
    try:
      self.set(key, value)
    except jax.errors.JaxRuntimeError as e:
      if 'ALREADY_EXISTS' not in str(e):
        raise
      return False
    return True

  def get(self, key):
    """Waits; another process that fails ends this one meanwhile."""
    while (value := self.look(key)) is None:
      time.sleep(0.02)
    return value

  def look(self, key):
    try:
      return self._client.key_value_try_get(f'bigtransfer/{key}')
    except jax.errors.JaxRuntimeError as e:
      if 'NOT_FOUND' not in str(e):
        raise
      return None

  def under(self, folder) -> list[tuple[str, str]]:
    found = self._client.key_value_dir_get(f'bigtransfer/{folder}')
    return sorted((key.rpartition('/')[2], value) for key, value in found)


def end(message: str, code: int):
  """Says why and ends this process at once."""
  print(f'error: {message}', file=sys.stderr)
  leave(code)


def leave(code: int):
  """Ends this process at once: nothing under way can hold it up."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
