"""Several processes do what one does, and stop, fail and go on as one."""

import glob
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('pod')]
ARGUMENTS = (
    '--config=configs/quickstart.py',
    '--config.batch_size=16',
    '--config.eval_batch_size=120',
    '--config.total_steps=12',
    '--config.eval_every=6',
    '--config.checkpoint.every=4',
    '--config.log_every=1',
    '--config.model.blocks=(1,)',
    '--config.model.root_width=8',
    '--config.model.num_groups=8',
    '--config.distributed.timeout=100',
)
# Devices in all: what a run computes does not depend on who owns them.
DEVICES = 4


def command(workdir, fault='none', processes=2, extra=(), grace=15):
  return [
      *(sys.executable, '-m', 'launch.local_pod'),
      *('--processes', str(processes)),
      *('--devices', str(DEVICES // processes)),
      *('--grace', str(grace)),
      *('--module', 'tests.e2e.main_in_pod', '--'),
      *(fault, f'{workdir}.ids', *ARGUMENTS, *extra, f'--workdir={workdir}'),
  ]


def environment():
  names = ('JAX_NUM_CPU_DEVICES', 'XLA_FLAGS')
  env = {k: v for k, v in os.environ.items() if k not in names}
  return env | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}


def run(*args, **kwargs):
  return subprocess.run(
      command(*args, **kwargs),
      cwd=ROOT,
      env=environment(),
      capture_output=True,
      text=True,
      timeout=300,
  )


def metrics(workdir):
  with open(f'{workdir}/metrics.jsonl') as f:
    return [json.loads(line) for line in f]


def ids(workdir):
  """Returns {step: all ids of the batch}."""
  found = {}
  for path in sorted(glob.glob(f'{workdir}.ids.*')):
    read = {}
    with open(path) as f:
      for line in f:
        record = json.loads(line)
        read[record['step']] = record['ids']
    for step, some in read.items():
      found.setdefault(step, []).extend(some)
  return found


def assert_same_run(workdir, reference):
  ours, theirs = metrics(workdir), metrics(reference)
  assert [(r['step'], r['kind']) for r in ours] == [
      (r['step'], r['kind']) for r in theirs
  ]
  for record, expected in zip(ours, theirs, strict=True):
    assert record['values'] == pytest.approx(expected['values'], rel=2e-5)
    if record['kind'] == 'train':
      assert record['values']['loss'] == pytest.approx(
          expected['values']['loss'], rel=1e-6
      )
    else:
      assert record['values']['num_examples'] == 2000


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('pod') / 'alone'
  result = run(workdir, processes=1)
  assert result.returncode == 0, result.stderr
  return workdir


@pytest.mark.parametrize('processes', [2, 4])
def test_processes_do_what_one_does(tmp_path, alone, processes):
  workdir = tmp_path / 'pod'
  result = run(workdir, processes=processes)
  assert result.returncode == 0, result.stderr
  assert_same_run(workdir, alone)
  expected = ids(alone)
  assert {k: v for k, v in ids(workdir).items() if k < 12} == {
      k: v for k, v in expected.items() if k < 12
  }
  assert '[1] step' not in result.stderr  # One progress line, not two.


def saved_steps(workdir):
  """Returns the steps of the complete checkpoints."""
  found = (workdir / 'checkpoints').iterdir()
  return sorted(int(path.name) for path in found if path.name.isdigit())


def test_a_signal_to_one_stops_all_whatever_they_do(tmp_path, alone):
  workdir = tmp_path / 'pod'

  def stopped(fault):
    result = run(workdir, fault=fault)
    assert result.returncode == 75, result.stderr
    return result.stdout

  # The step would take ten minutes to compile.
  assert 'stopped at step 0' in stopped('compile@0@1')
  assert saved_steps(workdir) == []
  # The evaluation after step 6 is given up, and made again.
  assert 'stopped and saved at step 6;' in stopped('evaluate@0@1')
  assert saved_steps(workdir) == [4, 6]
  assert metrics(workdir)[-1]['kind'] == 'train'
  # Checkpoint 8 gets written meanwhile.
  output = stopped('save@0@1')
  assert 'evaluation at step 6' in output
  last = saved_steps(workdir)[-1]
  assert 8 < last < 12 and f'stopped and saved at step {last};' in output
  result = run(workdir, processes=1)
  assert result.returncode == 0, result.stderr
  assert_same_run(workdir, alone)


@pytest.mark.parametrize('silent', [0, 1])
def test_others_name_a_process_that_is_silent(tmp_path, silent):
  limit = ['--config.distributed.heartbeat_timeout=4']
  result = run(
      tmp_path / 'run', fault=f'freeze@5@{silent}', extra=limit, grace=1
  )
  assert result.returncode == 1, result.stderr
  said = f'[{1 - silent}] error: process {silent} ({socket.gethostname()})'
  assert f'{said} was last heard from' in result.stderr
  assert 's ago (config.distributed.heartbeat_timeout=4)' in result.stderr


def test_others_name_a_process_that_makes_no_step(tmp_path):
  result = run(tmp_path / 'run', fault='hang@5@1')
  assert result.returncode == 1, result.stderr
  errors = [x for x in result.stderr.splitlines() if '] error: no step' in x]
  assert {error[:3] for error in errors} == {'[0]', '[1]'}
  for error in errors:
    assert 's (config.distributed.hang_seconds=3); behind: process 1 (' in error
    assert ' add_and_stand of train.py:' in error
  lines = result.stderr.splitlines()
  assert any(x.startswith('[1]') and 'in add_and_stand' in x for x in lines)


def test_a_process_that_dies_takes_the_others_along(tmp_path, alone):
  workdir = tmp_path / 'pod'
  result = run(workdir, fault='kill@6@1')
  assert result.returncode == 128 + signal.SIGKILL
  assert 'process 1' in result.stderr.splitlines()[-1]
  result = run(workdir)
  assert result.returncode == 0, result.stderr
  assert_same_run(workdir, alone)


def test_processes_of_different_configs_are_refused(tmp_path):
  port = free_port()
  running = [
      subprocess.Popen(
          [
              *(sys.executable, '-m', 'bigtransfer.main', *ARGUMENTS),
              *(f'--workdir={tmp_path}/run', f'--config.seed={index}'),
              f'--config.distributed.coordinator_address=localhost:{port}',
              '--config.distributed.num_processes=2',
              f'--config.distributed.process_id={index}',
          ],
          cwd=ROOT,
          env=environment() | {'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo'},
          stderr=subprocess.PIPE,
          text=True,
      )
      for index in range(2)
  ]
  errors = [process.communicate(timeout=200)[1] for process in running]
  assert [process.returncode for process in running] == [2, 2], errors
  assert 'start the same command on every worker' in errors[1]


def test_a_lone_process_of_two_ends_with_a_plain_sentence(tmp_path):
  begin = time.monotonic()
  result = subprocess.run(
      [
          *(sys.executable, '-m', 'bigtransfer.main'),
          '--config=configs/quickstart.py',
          f'--workdir={tmp_path}/run',
          f'--config.distributed.coordinator_address=localhost:{free_port()}',
          '--config.distributed.num_processes=2',
          '--config.distributed.process_id=0',
          '--config.distributed.timeout=5',
      ],
      cwd=ROOT,
      env=environment(),
      capture_output=True,
      text=True,
      timeout=60,
  )
  assert time.monotonic() - begin < 60
  assert result.returncode == 1
  last = result.stderr.splitlines()[-1]
  assert 'process 0 has waited 5 s for 2 processes' in last
  assert 'start the same command on every worker' in last


def free_port():
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return s.getsockname()[1]
