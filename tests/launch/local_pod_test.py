"""The local pod: output, signals, failures and what is left behind."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]

# What the processes of these pods run: `python -m member WHAT --config...`.
MEMBER = """
import os, signal, subprocess, sys, time

what = sys.argv[1]
options = dict(
    a.removeprefix('--config.distributed.').split('=') for a in sys.argv[2:])
index = int(options['process_id'])


def note(number, frame):
  if what == 'flood':
    os._exit(75)
  print('got', number, flush=True)
  if what != 'deaf':
    sys.exit(75)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
  signal.signal(number, note)


def sleep():
  print('ready', os.getpid(), flush=True)
  for _ in range(600):
    time.sleep(0.1)


if what == 'lines':
  for i in range(50):
    print(str(i) * 3000)
    print('err', i, file=sys.stderr)
  sys.stdout.write('a\\rb\\n\\n' + 'x' * 300_000 + '\\nno newline')
elif what == 'options':
  names = ('JAX_PLATFORMS', 'JAX_NUM_CPU_DEVICES',
           'JAX_CPU_COLLECTIVES_IMPLEMENTATION')
  print(*(os.environ[n] for n in names), os.getpgrp() == os.getpid())
  print(sorted(options.items()))
elif what == 'codes':
  sys.exit(int(os.environ['CODES'].split(',')[index]))
elif what == 'one':
  if index == 1:
    sys.exit(7)
  sleep()
elif what == 'deaf':
  if index == 1:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
  sleep()
elif what == 'flood':
  print('ready', os.getpid(), flush=True)
  while True:
    print('x' * 1000)
elif what == 'parent':
  child = [sys.executable, '-c', 'import time; time.sleep(60)']
  print('left', subprocess.Popen(child).pid)
else:
  sleep()
"""


def arguments(processes, what, *options):
  command = [sys.executable, '-m', 'launch.local_pod', '--devices', '2']
  return [
      *(*command, '--processes', str(processes), '--module', 'member'),
      *(*options, '--', what),
  ]


@pytest.fixture
def start(tmp_path):
  """Starts a pod of `member`, and ends it with the test."""
  (tmp_path / 'member.py').write_text(MEMBER)
  started = []

  def call(processes, what, *options, text=True, **env):
    path = f'{ROOT}{os.pathsep}{tmp_path}'
    started.append(
        subprocess.Popen(
            arguments(processes, what, *options),
            env={**os.environ, 'PYTHONPATH': path, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=text,
            start_new_session=True,
        )
    )
    return started[-1]

  yield call
  for pod in started:
    pod.kill()
    pod.wait()
    pod.stdout.close()
    pod.stderr.close()


def pids(pod, count):
  """Returns the pids of `count` processes once each is ready."""
  return [int(pod.stdout.readline().split()[-1]) for _ in range(count)]


def alive(pid):
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='ascii')
  except FileNotFoundError:
    return False
  return stat.rpartition(')')[2].split()[0] != 'Z'


def all_gone(processes, seconds=5.0):
  until = time.monotonic() + seconds
  while any(map(alive, processes)) and time.monotonic() < until:
    time.sleep(0.02)
  return not any(map(alive, processes))


def test_every_line_has_its_prefix_and_none_is_torn(start):
  pod = start(3, 'lines', text=False)
  out, err = (x.decode() for x in pod.communicate(timeout=30))
  expected = [str(i) * 3000 for i in range(50)]
  expected += ['a\rb', '', 'x' * 300_000, 'no newline']
  for index in range(3):
    prefix = f'[{index}] '
    lines = [x for x in out.split('\n') if x.startswith(prefix)]
    assert [x.removeprefix(prefix) for x in lines] == expected
    lines = [x for x in err.split('\n') if x.startswith(prefix)]
    assert lines == [f'{prefix}err {i}' for i in range(50)]
  assert len(out.split('\n')) == 3 * len(expected) + 1


def test_each_process_is_told_its_place_and_its_devices(start):
  out, err = start(2, 'options').communicate(timeout=30)
  assert not err
  for index in range(2):
    lines = re.findall(rf'^\[{index}\] (.*)', out, re.MULTILINE)
    assert lines[0] == 'cpu 2 gloo True'
    options = dict(re.findall(r"\('(\w+)', '(.*?)'\)", lines[1]))
    host, port = options.pop('coordinator_address').split(':')
    assert host == 'localhost' and 20000 <= int(port) < 32768
    expected = {'initialize': 'true', 'num_processes': '2'}
    assert options == {**expected, 'process_id': str(index)}


@pytest.mark.parametrize(
    ('codes', 'expected'),
    [('0,0', 0), ('75,75', 75), ('0,75', 75), ('2,2', 2), ('0,3', 3)],
)
def test_exit_code(start, codes, expected):
  pod = start(2, 'codes', CODES=codes)
  _, err = pod.communicate(timeout=30)
  assert pod.returncode == expected
  last = err.strip().split('\n')[-1]
  if expected in (0, 75):
    assert not last
  else:
    assert re.fullmatch(
        rf'error: process [01] ended with exit code {expected} \(of 2\)', last
    )


@pytest.mark.parametrize('name', ['SIGTERM', 'SIGINT', 'SIGHUP'])
def test_a_signal_reaches_each_process_once(start, name):
  pod = start(2, 'wait')
  pids(pod, 2)
  number = getattr(signal, name)
  os.killpg(pod.pid, number)  # as a terminal does
  out, err = pod.communicate(timeout=30)
  expected = [f'[{index}] got {number:d}' for index in range(2)]
  assert sorted(out.strip().split('\n')) == expected
  assert (pod.returncode, err) == (75, '')


def test_a_signal_goes_on_while_nobody_reads(start):
  pod = start(1, 'flood')
  processes = pids(pod, 1)
  time.sleep(0.5)  # all pipes are full
  pod.terminate()
  assert all_gone(processes)
  assert pod.poll() is None
  pod.communicate(timeout=30)
  assert pod.returncode == 75


def test_when_one_fails_all_stop(start):
  pod = start(3, 'one')
  out, err = pod.communicate(timeout=30)
  assert pod.returncode == 7
  assert 'local_pod: process 1 ended with exit code 7; stopping all' in err
  assert err.endswith('error: process 1 ended with exit code 7 (of 3)\n')
  assert '[1] ' not in out


def test_the_deaf_are_killed_after_the_grace(start):
  begin = time.monotonic()
  pod = start(2, 'deaf', '--grace', '0.5')
  (process,) = pids(pod, 1)
  out, err = pod.communicate(timeout=30)
  assert out == f'[0] got {signal.SIGTERM:d}\n'
  assert pod.returncode == 128 + signal.SIGKILL
  last = err.strip().split('\n')[-1]
  assert last == 'error: process 1 was ended by signal 9 (Killed) (of 2)'
  assert all_gone([process])
  assert 1.5 < time.monotonic() - begin < 20


def test_no_process_outlives_a_killed_launcher(start):
  pod = start(2, 'wait')
  processes = pids(pod, 2)
  assert all(map(alive, processes))
  pod.kill()
  assert all_gone(processes)


def test_what_a_process_left_behind_is_ended(start):
  begin = time.monotonic()
  pod = start(1, 'parent')
  (left,) = pids(pod, 1)
  assert pod.wait(timeout=30) == 0
  assert all_gone([left])
  assert time.monotonic() - begin < 20


def test_the_pod_stops_when_its_output_has_no_reader(start):
  pod = start(1, 'wait')
  processes = pids(pod, 1)
  pod.stdout.close()
  os.kill(processes[0], signal.SIGHUP)  # it prints, then would end with 75
  assert pod.wait(timeout=30) == 1
  last = pod.stderr.read().strip().split('\n')[-1]
  assert last == 'error: output cannot be written: Broken pipe (of 1)'
  assert all_gone(processes)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ('--processes 0 --devices 1 --', '--processes=0: must be at least 1'),
        ('--processes 1 --devices -1 --', '--devices=-1: must be at least 1'),
        ('--processes 1 --devices 1 --grace nan --', '--grace=nan: must be'),
        ('--processes 1 --devices 1', '`--` is missing'),
        ('--processes 1 --', 'required: --devices'),
        (
            '--processes 1 --devices 1 -- --config.distributed.process_id=1',
            'process_id=1: the launcher sets',
        ),
        ('--processes 1 --devices 1 --workdir a -- b', 'unrecognized'),
    ],
)
def test_wrong_use(options, message, capfd):
  from launch import local_pod

  with pytest.raises(SystemExit) as stop:
    local_pod.main(options.split())
  assert stop.value.code == 2
  assert message in capfd.readouterr().err.strip().split('\n')[-1]
