"""The worker's side by itself: installs once, one job at a time, its code."""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Stands for a Python that makes environments whose pip only takes notes.
PYTHON = '''#!/bin/bash
case "$*" in
  *"import ensurepip"*) exit 0 ;;
  "-m venv --clear "*)
    echo venv >> "$HOME/notes"
    mkdir -p "$4/bin"
    cp "$0" "$4/bin/python" ;;
  "-m pip install "*) sleep 0.2; echo "pip ${@: -1}" >> "$HOME/notes"
    exit "$(cat "$HOME/pip_code" 2>/dev/null || echo 0)" ;;
  *) echo "ran $PWD $*" >> "$HOME/notes" ;;
esac
'''


class Worker:
  """A home folder with a tree."""

  def __init__(self, home):
    self.home, self.tree = home, home / 'bigtransfer' / 'trees' / 't'
    (self.tree / 'launch').mkdir(parents=True)
    for name in ('bootstrap.sh', 'requirements-tpu.txt'):
      shutil.copy(ROOT / 'launch' / name, self.tree / 'launch' / name)
    (home / 'bin').mkdir()
    python = home / 'bin' / 'python3.13'
    python.write_text(PYTHON)
    python.chmod(0o755)
    self.env = {'HOME': str(home), 'PATH': f'{home}/bin:/usr/bin:/bin'}

  def start(self, *argv, **env):
    return subprocess.Popen(
        ['bash', self.tree / 'launch' / 'bootstrap.sh', *argv],
        env=self.env | env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

  def __call__(self, *argv, code=0, **env):
    process = self.start(*argv, **env)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code, out + err
    return out + err

  def ended(self, seconds=20.0):
    until = time.monotonic() + seconds
    while 'state=running' in (text := self('status')):
      assert time.monotonic() < until
      time.sleep(0.05)
    return text.partition('state=')[2].strip()

  @property
  def notes(self):
    return (self.home / 'notes').read_text().splitlines()


@pytest.fixture
def worker(tmp_path):
  return Worker(tmp_path)


def test_two_at_once_install_once(worker):
  for process in [worker.start('install') for _ in range(2)]:
    assert process.wait(timeout=20) == 0
  file = worker.tree / 'launch' / 'requirements-tpu.txt'
  assert worker.notes == ['venv', f'pip {file}']
  worker('install')
  assert len(worker.notes) == 2
  file.write_text('jax==1\n')
  worker('install')
  assert worker.notes[2:] == ['venv', f'pip {file}']


def test_an_installation_that_failed_is_made_again(worker):
  (worker.home / 'pip_code').write_text('1')
  worker('install', code=1)
  worker('start', '--', 'x')
  assert worker.ended() == 'exited code=1'
  assert 'could not be installed' in worker('logs', '5')
  (worker.home / 'pip_code').unlink()
  worker('start', '--', '--config.a=b c')
  assert worker.ended() == 'exited code=0'
  assert worker.notes[-1] == (
      f'ran {worker.tree} -m bigtransfer.main --config.a=b c'
  )


def test_a_job_outlives_a_later_sync(worker):
  # The link that is changed under it is not what it runs from.
  link = worker.home / 'bigtransfer' / 'code'
  link.symlink_to(worker.tree)
  subprocess.run(['bash', link / 'launch' / 'bootstrap.sh', 'start', '--', 'x'],
                 env=worker.env, check=True)
  worker.ended()
  assert worker.notes[-1].startswith(f'ran {worker.tree} ')


def test_states(worker):
  assert worker('status').endswith('state=none code=-\n')
  assert 'no log' in worker('logs', '5', code=1)
  worker('start', '--', 'x', BIGTRANSFER_PYTHON='/bin/false')
  assert worker.ended() == 'exited code=1'
  # Killed together with its shell: the code of the run before is not its own.
  killed = worker.home / 'killed'
  killed.write_text('#!/bin/bash\nkill -9 $PPID $$\n')
  killed.chmod(0o755)
  worker('start', '--', 'x', BIGTRANSFER_PYTHON=str(killed))
  assert worker.ended() == 'lost code=-'
  worker('fly', code=2)


def test_setup_comes_first_and_its_failure_ends_the_job(worker):
  worker('start', '--setup', 'echo "it is $HOME" >> "$HOME/notes"', '--', 'x')
  assert worker.ended() == 'exited code=0'
  assert worker.notes[0] == f'it is {worker.home}'
  worker('start', '--setup', 'exit 9', '--', 'x')
  assert worker.ended() == 'exited code=1'
  assert '--setup failed: exit 9' in worker('logs', '5')


def test_a_shutdown_of_the_machine_leaves_the_code_of_the_job(worker):
  # Every process gets SIGTERM; the job takes longer than its shell.
  (worker.tree / 'bigtransfer').mkdir()
  (worker.tree / 'bigtransfer' / 'main.py').write_text(
      'import signal, sys, time\n'
      'def stop(*_): time.sleep(0.3); sys.exit(75)\n'
      'signal.signal(signal.SIGTERM, stop)\n'
      'print("ready", flush=True)\n'
      'time.sleep(20)\n'
  )
  worker('start', '--', BIGTRANSFER_PYTHON=sys.executable)
  while 'ready' not in worker('logs', '9'):
    time.sleep(0.05)
  pid = int((worker.home / 'bigtransfer' / 'job' / 'pid').read_text())
  os.killpg(os.getpgid(pid), 15)
  assert worker.ended() == 'exited code=75'


def test_a_stop_while_it_is_installed_is_kept(worker):
  worker('start', '--setup', 'sleep 0.5', '--', 'x')
  worker('stop')
  assert worker.ended() == 'exited code=75'
  assert not any(note.startswith('ran ') for note in worker.notes)
