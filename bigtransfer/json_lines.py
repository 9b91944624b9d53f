"""Files of one JSON object per line that go on after a kill."""

import json
from typing import Any

from bigtransfer import files


class JsonLines:
  """An append-only file of JSON objects with a `step` that never falls.

  Opening it for a run that goes on at `step` cuts off what lies beyond, and a
  last line that a kill left half-written; the bytes before stay as they are.
  A `path` of None, for processes that write nothing, keeps `last` alone.
  """

  def __init__(self, path: str | None, step: int):
    self.last, self._file = None, None
    if path is None:
      return
    self._file = files.open_to_append(path)
    self._file.seek(0)
    end = 0
    for line in self._file:
      record = _parse(line)
      if record is None or record['step'] > step:
        break
      end += len(line)
      self.last = record
    self._file.truncate(end)
    self._file.seek(end)

  def write(self, **record: Any):
    self.last = record
    if self._file:
      self._file.write(json.dumps(record).encode() + b'\n')

  def flush(self):
    """Returns when all lines are on disk, as a checkpoint relies on."""
    if self._file:
      files.sync(self._file)

  def close(self):
    self.flush()
    if self._file:
      self._file.close()


def _parse(line: bytes):
  if not line.endswith(b'\n'):
    return None
  try:
    return json.loads(line)
  except ValueError:
    return None
