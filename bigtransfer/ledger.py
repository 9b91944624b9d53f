"""When a run started and stopped, and why."""

import json
import os
import time
from typing import Any


class Ledger:
  """`ledger.jsonl`: a line per start and stop; None writes nothing."""

  def __init__(self, workdir: str | None):
    self._path = workdir and os.path.join(workdir, 'ledger.jsonl')

  def write(self, event: str, **fields: Any):
    if self._path is None:
      return
    stamp = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
    with open(self._path, 'a') as f:
      f.write(json.dumps({'event': event, 'time': stamp, **fields}) + '\n')
