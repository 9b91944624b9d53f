"""Which process holds the TPU of this machine. Kills nothing.

Only one process at a time can open a TPU. libtpu guards that with a lock on
/tmp/libtpu_lockfile, and the kernel with the device files themselves, which are
/dev/accel* or /dev/vfio/*, by generation and image.
"""

from __future__ import annotations  # old images have Python 3.8

import os
import pathlib
from typing import NamedTuple

LOCK = pathlib.Path('/tmp/libtpu_lockfile')


class State(NamedTuple):
  """What can be seen of the TPU.

  Attributes:
    devices: its device files.
    holders: {pid: (command line, what it holds)}.
    hidden: processes whose files this user may not see.
    lock: 'none', 'free' (left over, harmless), 'held' or 'foreign' (this user
      may not open it, so that libtpu cannot either).
  """

  devices: list[str]
  holders: dict[int, tuple[str, str]]
  hidden: int
  lock: str


def look(
    proc: pathlib.Path = pathlib.Path('/proc'),
    dev: pathlib.Path = pathlib.Path('/dev'),
    lock: pathlib.Path = LOCK,
) -> State:
  """Returns the state of the TPU, without opening it."""
  devices = sorted(
      str(path)
      for pattern in ('accel[0-9]*', 'vfio/[0-9]*')
      for path in dev.glob(pattern)
  )
  held, hidden = {}, 0
  for entry in proc.glob('[0-9]*'):
    try:
      targets = [os.readlink(link) for link in (entry / 'fd').iterdir()]
    except PermissionError:
      hidden += 1
      continue
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
      continue
    if files := sorted(set(targets) & set(devices)):
      held[int(entry.name)] = files
  for pid in _lockers(proc, lock):
    held.setdefault(pid, []).append(str(lock))
  holders = {
      pid: (_command(proc, pid), ', '.join(files))
      for pid, files in sorted(held.items())
  }
  return State(devices, holders, hidden, _lock_state(proc, lock))


def _lockers(proc, lock):
  """Returns the pids that hold a POSIX lock on `lock`, by its inode."""
  if not lock.exists() or not (proc / 'locks').exists():
    return []
  # 1: POSIX  ADVISORY  WRITE 4321 08:01:1234 0 EOF; one that waits has `->`.
  rows = [row.split() for row in (proc / 'locks').read_text().splitlines()]
  inode = str(lock.stat().st_ino)
  return [
      int(row[4])
      for row in rows
      if row[1] == 'POSIX' and row[5].rpartition(':')[2] == inode
  ]


def _lock_state(proc, lock):
  if not lock.exists():
    return 'none'
  if _lockers(proc, lock):
    return 'held'
  return 'free' if os.access(lock, os.R_OK | os.W_OK) else 'foreign'


def _command(proc, pid):
  try:
    words = (proc / str(pid) / 'cmdline').read_bytes().split(b'\0')
  except (FileNotFoundError, ProcessLookupError):
    return '?'
  return b' '.join(words).decode(errors='replace').strip() or '?'


def judge(state: State, wanted: bool, lock: pathlib.Path = LOCK):
  """Returns (whether all is well, in words what was seen).

  `wanted` is whether a TPU has to be there.
  """
  if state.holders:
    who = '; '.join(
        f'process {pid} ({command[:120]}) holds {what}'
        for pid, (command, what) in state.holders.items()
    )
    return False, f'{who}. End it, or wait for it; lock file {lock}'
  if state.lock == 'foreign':
    owner = lock.stat().st_uid
    return False, (
        f'{lock} belongs to user {owner} and may not be opened: if none of its'
        f' processes uses the TPU, sudo rm {lock}'
    )
  if wanted and not state.devices:
    return False, 'no TPU here: neither /dev/accel* nor /dev/vfio/[0-9]*'
  seen = ', '.join(state.devices) or 'no TPU device files'
  if state.lock == 'free':
    seen += f'; {lock} is left over and harmless'
  if state.hidden and state.devices:
    seen += f'; {state.hidden} processes of other users not seen without sudo'
  return True, f'{seen}; held by nobody' if state.devices else seen
