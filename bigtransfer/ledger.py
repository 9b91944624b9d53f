"""When a run started, saved and stopped, and what its time went to."""

import datetime
import json
import os
from typing import Any

from bigtransfer import files, stopwatch


class Ledger:
  """`ledger.jsonl`: a line per event; None writes nothing."""

  def __init__(self, workdir: str | None, watch: stopwatch.Stopwatch):
    """`watch` gives the `seconds` of every line, by what they went to."""
    self._watch = watch
    self._path = workdir and os.path.join(workdir, 'ledger.jsonl')

  def write(self, event: str, **fields: Any):
    if self._path is None:
      return
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    seconds = self._watch.seconds()
    row = {
        'event': event,
        'time': now.isoformat(timespec='milliseconds') + 'Z',
        **fields,
        'seconds': {kind: round(spent, 3) for kind, spent in seconds.items()},
    }
    files.append(self._path, json.dumps(row) + '\n')
