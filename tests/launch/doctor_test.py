"""Each check passing and failing, and the command as a whole."""

import email.utils
import http.server
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import venv

import pytest

from launch import doctor, local_pod, probes, tpu_in_use

ROOT = pathlib.Path(__file__).parents[2]
TPU = {
    'backend': 'tpu',
    'kind': 'TPU v4',
    'devices': 8,
    'local': 4,
    'processes': 2,
    'stderr': [],
}


@pytest.fixture
def healthy(monkeypatch):
  """A worker where all is well: what probes return, to be changed."""
  answers = {
      'devices': TPU,
      'splits': {'where': '/d', 'splits': {'train': 5, 'test': 2}},
      'tpu': tpu_in_use.State(['/dev/accel0'], {}, 0, 'none'),
      'versions': ({'jax': '0.10.2'}, []),
  }
  calls = {}

  def probe(name):
    def call(*args):
      calls[name] = args
      if isinstance(answers[name], Exception):
        raise answers[name]
      return answers[name]

    return call

  monkeypatch.setattr(probes, 'devices', probe('devices'))
  monkeypatch.setattr(probes, 'splits', probe('splits'))
  monkeypatch.setattr(tpu_in_use, 'look', probe('tpu'))
  monkeypatch.setattr(doctor.versions, 'check', probe('versions'))
  answers['calls'] = calls
  return answers


def diagnose(capfd, *options):
  """Returns the exit code and {check: (ok, detail)}."""
  options = [*options, '--json', '--min_free_gb', '0']
  code = doctor.main(options)
  answers = json.loads(capfd.readouterr().out)
  return code, {a['name']: (a['ok'], a['detail']) for a in answers}


ALL = ('--platform', 'tpu', '--devices', '8', '--processes', '2')
DATA = ('--source', 'folder', '--data', '/d')


def test_all_is_well(healthy, capfd, tmp_path):
  code, found = diagnose(capfd, *ALL, *DATA, '--workdir', str(tmp_path))
  assert code == 0
  assert list(found) == [
      'python', 'packages', 'tpu', 'workdir', 'clock', 'disk', 'data', 'backend'
  ]
  assert all(ok for ok, _ in found.values())
  assert found['backend'][1] == 'tpu, 8 devices (4 here, TPU v4), 2 processes'
  assert found['data'][1] == 'folder /d: train 5, test 2'
  assert healthy['calls']['devices'] == (120, 2, None, None)
  assert healthy['calls']['splits'] == (120, 'folder', '/d', None)


@pytest.mark.parametrize(
    ('key', 'answer', 'check', 'message'),
    [
        ('devices', {**TPU, 'devices': 4}, 'backend', 'asked for devices 8;'),
        ('devices', {**TPU, 'processes': 1}, 'backend', 'for processes 2;'),
        (
            'devices',
            {**TPU, 'backend': 'cpu', 'stderr': ['a', 'no libtpu']},
            'backend',
            'for backend tpu; JAX_PLATFORMS=here; JAX: no libtpu',
        ),
        (
            'devices',
            probes.ProbeError('no answer in 9 s'),
            'backend',
            'no answer in 9 s; run it on all 2 workers at once',
        ),
        ('splits', probes.ProbeError('none'), 'data', 'folder: none'),
        (
            'splits',
            {'where': '/d', 'splits': {'train': 5, 'test': 0}},
            'data',
            'train 5, test 0; no examples in test',
        ),
        ('tpu', tpu_in_use.State([], {}, 0, 'none'), 'tpu', 'no TPU here'),
        (
            'tpu',
            tpu_in_use.State(['/dev/a'], {5: ('vim', '/dev/a')}, 0, 'none'),
            'tpu',
            'process 5 (vim) holds /dev/a',
        ),
        (
            'versions',
            ({}, ['jax 0.4 is not >=0.10']),
            'packages',
            'jax 0.4 is not >=0.10; install them with: pip install -e ".[tpu]"',
        ),
    ],
)
def test_one_check_fails(
    healthy, capfd, monkeypatch, key, answer, check, message
):
  monkeypatch.setenv('JAX_PLATFORMS', 'here')
  healthy[key] = answer
  code, found = diagnose(capfd, *ALL, *DATA)
  assert code == 1
  assert [name for name, (ok, _) in found.items() if not ok] == [check]
  assert message in found[check][1]


def test_python():
  assert doctor.check_python((3, 12, 1)).ok
  old = doctor.check_python((3, 10, 9))
  assert not old.ok
  assert old.detail.startswith('3.10.9, needed is >=3.11,<3.14')
  setup = (ROOT / 'setup.py').read_text()
  assert re.search("python_requires='(.*)'", setup)[1] == doctor.PYTHON


def test_workdir(tmp_path):
  check, ahead = doctor.check_workdir(str(tmp_path / 'runs' / 'a'), 9)
  assert check.ok
  assert check.detail.endswith(f'is writable (tried in {tmp_path})')
  assert abs(ahead) < 1
  assert not os.listdir(tmp_path)
  (tmp_path / 'file').touch()
  for bad in (tmp_path / 'file' / 'a', pathlib.Path('/proc/a')):
    check, ahead = doctor.check_workdir(str(bad), 9)
    assert not check.ok and ahead is None
    assert check.detail.startswith(f'{bad} is not writable: ')


def test_workdir_in_a_bucket(monkeypatch):
  monkeypatch.setattr(probes, 'bucket', lambda *args: time.time() + 99)
  check, ahead = doctor.check_workdir('gs://b/a', 9)
  assert check == ('workdir', True, 'gs://b/a is writable')
  assert 98 < ahead < 100
  clock = doctor.check_clock(ahead, None)
  assert not clock.ok
  assert 'the workdir is +99' in clock.detail

  def fail(*args):
    raise probes.ProbeError('403')

  monkeypatch.setattr(probes, 'bucket', fail)
  check, _ = doctor.check_workdir('gs://b/a', 9)
  assert check[1:] == (False, 'gs://b/a is not writable: 403')


@pytest.fixture
def web_server():
  """Returns a function that serves the time with an error, at an address."""

  class Handler(http.server.BaseHTTPRequestHandler):
    error = 0.0

    def do_HEAD(self):
      self.send_response_only(200)
      date = email.utils.formatdate(time.time() + self.error, usegmt=True)
      self.send_header('Date', date)
      self.end_headers()

    def log_message(self, *args):
      pass

  server = http.server.HTTPServer(('localhost', 0), Handler)
  threading.Thread(target=server.serve_forever).start()

  def serve(error):
    Handler.error = error
    return f'http://localhost:{server.server_port}'

  yield serve
  server.shutdown()
  server.server_close()


def test_clock(web_server, monkeypatch):
  assert doctor.check_clock(0.0, web_server(0.0)).ok
  late = doctor.check_clock(0.0, web_server(400.0))
  assert not late.ok
  assert 'does not agree with http://localhost' in late.detail
  gone = doctor.check_clock(None, 'http://localhost:1')
  assert not gone.ok
  assert gone.detail.startswith('no Date from http://localhost:1: ')
  monkeypatch.setattr(time, 'time', lambda: 1e9)
  past = doctor.check_clock(None, None)
  assert not past.ok
  assert past.detail.startswith('2001-09-09 01:46:40 UTC; does not agree')


def test_disk(tmp_path, monkeypatch):
  folder = str(tmp_path / 'runs')
  assert doctor.check_disk([folder], 0).ok

  class Usage:
    def __init__(self, path):
      self.free = 5e9 if path == tmp_path else 80e9

  monkeypatch.setattr(doctor.shutil, 'disk_usage', Usage)
  seen = f'5.0 GB free in {tmp_path}, 80.0 GB free in /'
  assert doctor.check_disk([folder, '/'], 5) == ('disk', True, seen)
  needed = f'{seen}; 6 GB needed'
  assert doctor.check_disk([folder, '/'], 6) == ('disk', False, needed)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ('--devices 0', '--devices=0: must be above 0'),
        ('--data /a', 'need --source'),
        ('--source zip', 'invalid choice'),
        ('--coordinator a:1', '--coordinator and --process_id need each'),
        ('--coordinator a:1 --process_id 0', 'needs --processes'),
    ],
)
def test_wrong_use(options, message, capfd):
  with pytest.raises(SystemExit) as stop:
    doctor.main(options.split())
  assert stop.value.code == 2
  assert message in capfd.readouterr().err.strip().split('\n')[-1]


def run(*options, **env):
  env = {**os.environ, 'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', **env}
  command = [sys.executable, '-m', 'launch.doctor', '--min_free_gb', '0']
  return subprocess.run(
      [*command, *options], env=env, capture_output=True, text=True, timeout=120
  )


def test_the_command_with_a_wrong_data_dir(tmp_path):
  (tmp_path / 'mnist').mkdir()
  ended = run(
      *('--platform', 'tpu', '--devices', '8', '--source', 'tfds'),
      *('--name', 'cifar10', '--workdir', str(tmp_path)),
      TFDS_DATA_DIR=str(tmp_path),
      JAX_NUM_CPU_DEVICES='8',
  )
  assert ended.returncode == 1
  # Whoever asks for a TPU needs libtpu, which the tests do without.
  missing = '' if importlib.util.find_spec('libtpu') else 'packages, '
  assert ended.stderr == f'error: failed: {missing}tpu, data, backend\n'
  lines = dict(re.findall(r'^(?:ok|FAIL) +(\w+) +(.*)', ended.stdout, re.M))
  assert 'cpu, 8 devices (8 here, cpu), 1 processes' in lines['backend']
  assert 'asked for backend tpu; JAX_PLATFORMS=cpu' in lines['backend']
  seen = f'The data dir seen is {tmp_path}, from TFDS_DATA_DIR: it holds mnist'
  assert lines['data'].endswith(seen)
  assert lines['workdir'] == f'{tmp_path} is writable'


def test_two_workers_find_each_other():
  address = f'localhost:{local_pod.free_port()}'
  place = ('--processes', '2', '--coordinator', address, '--process_id')
  ended = [None, None]

  def work(index):
    ended[index] = run(*place, str(index), JAX_NUM_CPU_DEVICES='1')

  threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  for worker in ended:
    assert worker.returncode == 0, worker.stdout
    assert 'cpu, 2 devices (1 here, cpu), 2 processes' in worker.stdout


def test_it_runs_where_nothing_is_installed(tmp_path):
  venv.create(tmp_path / 'bare', symlinks=True)
  python = tmp_path / 'bare' / 'bin' / 'python'
  ended = subprocess.run(
      [python, '-m', 'launch.doctor', '--workdir', str(tmp_path)],
      cwd=ROOT,
      env={'PATH': os.environ['PATH']},
      capture_output=True,
      text=True,
      timeout=60,
  )
  assert ended.returncode == 1
  assert "No module named 'jax'" in ended.stdout
  assert re.search('^ok    python ', ended.stdout, re.M)
  assert re.search('^FAIL  packages ', ended.stdout, re.M)
