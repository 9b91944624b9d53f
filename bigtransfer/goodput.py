"""The share of a run's time that made steps which count.

All from `ledger.jsonl`: its starts, saves and stops. A run that was killed has
no stop; what it did after its last save counts as lost, with the time until
the next start.
"""

import datetime
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from bigtransfer import files, stopwatch
from bigtransfer.progress import clock


class Goodput(NamedTuple):
  """Where the time of a run went, over all of its starts.

  Attributes:
    starts: how often it was started.
    total: seconds from the first start to the last thing known of it.
    seconds: of these by kind: 'steps' that the run still has, what
      `stopwatch.KINDS` names, and 'lost', between starts or on steps that had
      to be made again.
  """

  starts: int
  total: float
  seconds: dict[str, float]

  @property
  def share(self) -> float:
    """Of the time, what went to steps that count."""
    return self.seconds['steps'] / self.total if self.total else 0.0


def of_ledger(lines: Sequence[str]) -> Goodput:
  """Returns the goodput of a run from the lines of its ledger.

  Raises:
    ValueError: a line is broken, or they do not begin with a start.
  """
  runs = _runs([json.loads(line) for line in lines])
  seconds = dict.fromkeys(('steps', *stopwatch.KINDS), 0.0)
  for i, (_, *rows) in enumerate(runs):
    # What the next start found is what has counted.
    found = runs[i + 1][0]['step'] if i + 1 < len(runs) else None
    kept = [r for r in rows if found is None or r['step'] <= found]
    if kept:
      for kind, spent in kept[-1]['seconds'].items():
        seconds[kind] += spent
  begin, end = _time(runs[0][0]), max(_time(run[-1]) for run in runs)
  # What came before the ledger's first line, of the process that wrote it.
  total = end - begin + runs[0][0]['seconds']['start']
  # A process measures more finely than a clock that others may set.
  total = max(total, sum(seconds.values()))
  seconds['lost'] = total - sum(seconds.values())
  return Goodput(len(runs), total, seconds)


def of_workdir(workdir: str) -> Goodput:
  """Returns the goodput of a run from its folder; raises OSError too."""
  ledger = files.read(os.path.join(workdir, 'ledger.jsonl'))
  return of_ledger(ledger.decode().splitlines())


def _runs(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
  if not rows or rows[0]['event'] != 'start':
    raise ValueError('the ledger does not begin with a start')
  runs = []
  for row in rows:
    if row['event'] == 'start':
      runs.append([])
    runs[-1].append(row)
  return runs


def _time(row) -> float:
  return datetime.datetime.fromisoformat(row['time']).timestamp()


def text(goodput: Goodput) -> str:
  """Returns a table for people."""
  times = 'once' if goodput.starts == 1 else f'{goodput.starts} times'
  lines = [
      f'goodput {goodput.share:.1%} of {clock(goodput.total)}, started {times}'
  ]
  lines += [
      f'  {kind:<12}{clock(spent):>9}  {spent / goodput.total:6.1%}'
      for kind, spent in goodput.seconds.items()
      if goodput.total
  ]
  return '\n'.join(lines)
