"""Runs contenders in turn, several times, and prints what came out.

In turn, because the speed of a shared machine drifts: ratios are taken within
a round, then their median.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# None where a process cannot be kept on a core, as on macOS.
CORES = getattr(os, 'sched_getaffinity', lambda pid: None)(0)


def pin(count: int):
  """Keeps threads that start from now on on so many cores, where it can."""
  if CORES:
    os.sched_setaffinity(0, sorted(CORES)[:count])


def in_turn(
    contenders: Mapping[str, Callable[[], Any] | None], repeats: int
) -> dict[str, list[Any]]:
  """Returns the readings of each; none for a contender that is None."""
  readings = {name: [] for name in contenders}
  for _ in range(repeats):
    for name, read in contenders.items():
      if read is not None:
        readings[name].append(read())
  return readings


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
  return [a / b for a, b in zip(values, base, strict=True)]


def spread(values: Sequence[float], form: str) -> str:
  """Returns 'median (lowest to highest)', or 'not given'."""
  if not values:
    return 'not given'
  low, middle, high = min(values), statistics.median(values), max(values)
  return f'{middle:{form}} ({low:{form}} to {high:{form}})'


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]):
  """Prints a Markdown table."""
  for row in (header, ['---'] * len(header), *rows):
    print(f'| {" | ".join(row)} |')
  print(flush=True)
