"""What the processes of a run tell each other beside their devices.

They share a small key-value store. A thread of each looks at it twice a second
and ends the process when another has failed, because the main thread may then
wait for ever inside a collective. A single process is a group of one.
"""

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from typing import Any

import jax

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

  def __init__(self, store: Any, index: int, count: int, hang_seconds: Any):
    """`store` is None in a group of one; `hang_seconds` None looks for none."""
    self.index, self.count = index, count
    self.primary = index == 0
    self._store, self._hang_seconds = store, hang_seconds
    # Events asked for here; those of all processes, in order, in which this one
    # takes part; the call of `check` at which each is acted on.
    self._asked, self._seen, self._targets = [], [], []
    self._calls, self._beat, self._dumped = 0, time.monotonic(), False
    self._lock = threading.Lock()
    self._closed = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)
    if count > 1 or hang_seconds is not None:
      self._thread.start()

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
    self._beat = time.monotonic()
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
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._store.set(f'failed/{self.index}', json.dumps([code, message]))
    if self.primary:
      time.sleep(4 * POLL)  # The store ends with process 0.
    _leave(code)

  def close(self):
    """Leaves the group when the others do."""
    self._closed.set()
    if self._thread.is_alive():
      self._thread.join()
    if self.count > 1:
      jax.distributed.shutdown()

  def _watch(self):
    while not self._closed.wait(POLL):
      self._look_for_hang()
      if self.count == 1:
        continue
      try:
        self._exchange_events()
        failures = self._store.under('failed/')
      except jax.errors.JaxRuntimeError as e:
        if not self._closed.is_set():
          end(f'process 0 has gone: {str(e).splitlines()[0]}', 1)
        return
      for other, text in failures:
        if int(other) != self.index:
          code, message = json.loads(text)
          end(f'process {other} failed: {message}', code)

  def _look_for_hang(self):
    limit = self._hang_seconds
    if limit is None or time.monotonic() - self._beat < limit:
      self._dumped = False
    elif not self._dumped:
      self._dumped = True
      print(
          f'process {self.index} has made no step for {limit} s'
          ' (config.distributed.hang_seconds); its threads:',
          file=sys.stderr,
          flush=True,
      )
      faulthandler.dump_traceback(all_threads=True)


class Store:
  """The key-value store of the distributed runtime."""

  def __init__(self, client):
    self._client = client

  def set(self, key, value):
    self._client.key_value_set(f'bigtransfer/{key}', value)

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
  """Ends this process at once, which exit handlers might not."""
  print(f'error: {message}', file=sys.stderr)
  _leave(code)


def _leave(code):
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
