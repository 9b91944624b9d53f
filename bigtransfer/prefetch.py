"""Moves batches from the host onto the mesh ahead of the step."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import jax


def to_mesh(batch: dict[str, Any], sharding: jax.sharding.Sharding):
  """Makes global arrays of this process's rows of a global batch.

  `id` stays on the host: it is int64 and nothing on the devices reads it.
  """
  return {
      k: jax.make_array_from_process_local_data(sharding, v)
      for k, v in batch.items()
      if k != 'id'
  }


class Prefetcher:
  """Iterates over `source` on the mesh, a few batches ahead in a thread.

  The thread starts at construction, not at the first `next`, so that reading
  overlaps compilation. An error in the source is raised by `next` in its
  turn, after the batches before it. Use as a context manager, or `close`.
  """

  _END = object()

  def __init__(
      self,
      source: Iterator[dict[str, Any]],
      sharding: jax.sharding.Sharding,
      depth: int = 2,
  ):
    self._queue = queue.Queue(maxsize=depth)
    self._closed = threading.Event()
    self._thread = threading.Thread(
        target=self._fill, args=(source, sharding), daemon=True
    )
    self._thread.start()

  def _fill(self, source, sharding):
    try:
      for batch in source:
        if not self._put(to_mesh(batch, sharding)):
          return
      self._put(self._END)
    except Exception as e:  # noqa: BLE001 - raised again by __next__
      self._put(e)

  def _put(self, item) -> bool:
    while not self._closed.is_set():
      try:
        self._queue.put(item, timeout=0.1)
        return True
      except queue.Full:
        continue
    return False

  def __iter__(self):
    return self

  def __next__(self):
    item = self._queue.get()
    if isinstance(item, Exception):
      raise item
    if item is self._END:
      raise StopIteration
    return item

  def close(self):
    """Stops the thread; a batch it is about to read is dropped."""
    self._closed.set()
    self._thread.join()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()
