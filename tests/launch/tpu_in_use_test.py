"""Who holds the TPU, on machines made of folders."""

import os
import subprocess
import sys
import textwrap

import pytest

from launch import tpu_in_use


class Machine:
  """Fake /proc, /dev and lock file."""

  def __init__(self, root):
    self.proc, self.dev = root / 'proc', root / 'dev'
    self.lock = root / 'libtpu_lockfile'
    (self.dev / 'vfio').mkdir(parents=True)
    (self.dev / 'vfio' / 'vfio').touch()  # is there without a TPU too
    self.proc.mkdir()
    (self.proc / 'meminfo').touch()

  def device(self, name):
    (self.dev / name).touch()

  def process(self, pid, command, *files):
    folder = self.proc / str(pid)
    (folder / 'fd').mkdir(parents=True)
    (folder / 'cmdline').write_bytes(command.replace(' ', '\0').encode())
    for number, file in enumerate(files):
      (folder / 'fd' / str(number)).symlink_to(file)

  def judge(self, wanted=True):
    state = tpu_in_use.look(self.proc, self.dev, self.lock)
    return tpu_in_use.judge(state, wanted, self.lock)


@pytest.fixture
def machine(tmp_path):
  return Machine(tmp_path)


def test_no_tpu(machine):
  machine.process(7, 'qemu', machine.dev / 'vfio' / 'vfio')
  assert machine.judge(wanted=False) == (True, 'no TPU device files')
  ok, detail = machine.judge()
  assert not ok
  assert detail.startswith('no TPU here')


@pytest.mark.parametrize('name', ['accel0', 'vfio/0'])
def test_a_free_tpu(machine, name):
  machine.device(name)
  machine.process(7, 'bash', '/dev/null', 'socket:[1]')
  ok, detail = machine.judge()
  assert ok
  assert detail == f'{machine.dev / name}; held by nobody'


@pytest.mark.parametrize('name', ['accel1', 'vfio/3'])
def test_the_process_that_holds_it_is_named(machine, name):
  machine.device(name)
  machine.process(7, 'bash', '/dev/null')
  machine.process(42, 'python3 train.py', '/dev/null', machine.dev / name)
  machine.lock.touch()
  ok, detail = machine.judge()
  assert not ok
  holds = f'process 42 (python3 train.py) holds {machine.dev / name}.'
  assert detail.startswith(holds)
  assert str(machine.lock) in detail


def test_the_holder_of_the_lock_is_named(machine):
  machine.device('accel0')
  machine.process(42, 'python3 train.py')
  machine.lock.touch()
  inode = machine.lock.stat().st_ino
  (machine.proc / 'locks').write_text(textwrap.dedent(f"""\
      1: FLOCK  ADVISORY  WRITE 5 08:01:{inode} 0 EOF
      2: POSIX  ADVISORY  WRITE 6 08:01:{inode + 1} 0 EOF
      3: POSIX  ADVISORY  WRITE 42 08:01:{inode} 0 EOF
      3: -> POSIX  ADVISORY  WRITE 9 08:01:{inode} 0 EOF
      """))
  ok, detail = machine.judge()
  assert not ok
  assert detail.startswith(
      f'process 42 (python3 train.py) holds {machine.lock}.'
  )


def test_a_left_over_lock_is_harmless(machine):
  machine.device('accel0')
  machine.lock.touch()
  ok, detail = machine.judge()
  assert ok
  assert f'{machine.lock} is left over and harmless' in detail


def test_a_lock_of_another_user(machine):
  machine.lock.touch()
  state = tpu_in_use.State([], {}, 0, 'foreign')
  ok, detail = tpu_in_use.judge(state, False, machine.lock)
  assert not ok
  assert f'sudo rm {machine.lock}' in detail


def test_processes_of_others_are_counted(machine):
  state = tpu_in_use.State(['/dev/accel0'], {}, 3, 'none')
  ok, detail = tpu_in_use.judge(state, True, machine.lock)
  assert ok
  assert '3 processes of other users not seen' in detail


def test_a_real_lock_and_a_real_open_file(machine):
  """The kernel's own /proc: with the lock as libtpu takes it."""
  machine.device('accel0')
  code = (
      'import fcntl, sys; lock = open(sys.argv[1], "w"); fcntl.lockf(lock,'
      ' fcntl.LOCK_EX); held = open(sys.argv[2]); print(1, flush=True);'
      ' sys.stdin.read()'
  )
  device = machine.dev / 'accel0'
  with subprocess.Popen(
      [sys.executable, '-c', code, str(machine.lock), str(device)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
  ) as process:
    process.stdout.readline()
    state = tpu_in_use.look(dev=machine.dev, lock=machine.lock)
    assert list(state.holders) == [process.pid]
    command, what = state.holders[process.pid]
    assert command.startswith(sys.executable)
    assert what == f'{device}, {machine.lock}'
    assert state.lock == 'held'
    process.stdin.close()
  state = tpu_in_use.look(dev=machine.dev, lock=machine.lock)
  assert (state.holders, state.lock) == ({}, 'free')
  assert os.getpid() not in state.holders
