"""A Cloud TPU of a test's own, behind a gcloud that is first on PATH."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
STUB = pathlib.Path(__file__).with_name('gcloud_stub.py')


class Cloud:
  """What the stub keeps, see gcloud_stub.py."""

  def __init__(self, home):
    self.home = home
    self.path = home / 'state.json'

  def set(self, **values):
    self.path.write_text(json.dumps(self.state | values))

  @property
  def state(self):
    return json.loads(self.path.read_text()) if self.path.exists() else {}

  @property
  def calls(self):
    path = self.home / 'calls.jsonl'
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]

  def verbs(self, *hidden):
    """Returns 'tpu-vm create' for each call, without those named."""
    verbs = [' '.join(argv[2:4]) for argv in self.calls]
    return [v for v in verbs if v.split()[1] not in hidden]

  def preempt(self, name):
    subprocess.run([sys.executable, STUB, '--preempt', name], check=True)


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  home = tmp_path / 'cloud'
  bin_folder = home / 'bin'
  bin_folder.mkdir(parents=True)
  gcloud = bin_folder / 'gcloud'
  gcloud.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{STUB}" "$@"\n')
  gcloud.chmod(0o755)
  monkeypatch.setenv('STUB_PATH', os.environ['PATH'])
  monkeypatch.setenv('PATH', f'{bin_folder}:{os.environ["PATH"]}')
  monkeypatch.setenv('GCLOUD_STUB', str(home))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  made = Cloud(home)
  made.set(
      nodes={}, requests={}, types={}, failures=[], workers=1, worker_env=[{}],
      on_create=['READY'], on_request=['ACTIVE'], on_delete=[None], created='',
  )
  yield made
  made.preempt('a')  # ends what still runs on the workers
  violations = home / 'violations.txt'
  assert not violations.exists(), violations.read_text()


# Stands for bigtransfer.main: it notes its arguments, and does what they say.
MAIN = '''
import json, os, pathlib, signal, sys, time
shared = pathlib.Path(os.environ['SHARED'])
with open(shared / 'runs.jsonl', 'a') as f:
  f.write(json.dumps(sys.argv[1:]) + chr(10))
print('fake main', *sys.argv[1:], flush=True)
stop = lambda number, frame: (print('saved', flush=True), os._exit(75))
signal.signal(signal.SIGTERM, stop)
codes = [a.partition('=')[2] for a in sys.argv if a.startswith('--codes=')]
while not codes and not (shared / 'finish').exists():
  time.sleep(0.02)
if not codes:
  sys.exit(0)
# One code for each run so far, the last for all that follow.
codes = codes[0].split(',')
runs = len((shared / 'runs.jsonl').read_text().splitlines())
sys.exit(int(codes[min(runs, len(codes)) - 1]))
'''


class Project:
  """A repository with this launcher and with a fake of bigtransfer.main."""

  def __init__(self, root, cloud):
    self.root, self.cloud, self.shared = root, cloud, root.parent / 'shared'
    self.shared.mkdir()
    shutil.copytree(ROOT / 'launch', root / 'launch',
                    ignore=shutil.ignore_patterns('__pycache__'))
    (root / 'bigtransfer').mkdir()
    (root / 'bigtransfer' / 'main.py').write_text(MAIN)
    subprocess.run(['git', 'init', '-q', root], check=True)

  def command(self, verb, *options, arguments=None):
    """Returns the command line of a verb."""
    rest = [] if arguments is None else ['--', *arguments]
    fast = ['--poll_seconds=0.05']
    if verb in ('run', 'supervise', 'doctor'):
      fast += [f'--env=BIGTRANSFER_PYTHON={sys.executable}',
               f'--env=SHARED={self.shared}']
    if verb in ('up', 'supervise'):
      fast += ['--accelerator_type=v4-8']
    return [sys.executable, '-m', 'launch.tpu_vm', verb, '--name=a',
            '--zone=us-central2-b', '--project=p', *fast, *options, *rest]

  def __call__(self, verb, *options, arguments=None, code=0):
    done = subprocess.run(
        self.command(verb, *options, arguments=arguments), cwd=self.root,
        capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done

  @property
  def runs(self):
    path = self.shared / 'runs.jsonl'
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]

  def wait(self, condition, process=None, seconds=20.0):
    """Waits for a condition, at most until a process has ended."""
    until = time.monotonic() + seconds
    while not condition():
      ended = process is not None and process.poll() is not None
      assert not ended, process.stderr.read()
      assert time.monotonic() < until, 'it does not come'
      time.sleep(0.02)


@pytest.fixture
def project(tmp_path, cloud):
  (tmp_path / 'tree').mkdir()
  return Project(tmp_path / 'tree', cloud)
