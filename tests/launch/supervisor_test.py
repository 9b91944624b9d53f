"""Until the job is done: which code ends it, what comes after a preemption."""

import subprocess

import pytest

from launch import gcloud, supervisor, tpu_node, workers
from launch.workers import Status


@pytest.mark.parametrize(('states', 'code'), [
    ([('exited', 0), ('exited', 0)], 0),
    ([('exited', 0), ('running', None)], None),
    ([('exited', 2), ('exited', 1)], 2),
    ([('exited', 1), ('exited', 2)], 2),
    ([('exited', 75), ('exited', 75)], 75),
    ([('exited', 0), ('exited', 75)], 75),
    ([('exited', 75), ('exited', 1)], 1),
    ([('exited', 0), ('lost', None)], 1),
    ([('exited', 0), ('none', None)], 1),
    ([('exited', 137), ('exited', 0)], 137),
    ([], 1),
])
def test_the_code_of_all_workers(states, code):
  assert workers.outcome([Status('h', *state) for state in states]) == code


def test_status_lines_among_other_output():
  text = (
      'SSH: Attempting to connect to worker 0...\n'
      'bigtransfer-status host=t1v-n-1-w-0 state=exited code=75\n'
      'some banner\r\nbigtransfer-status host=w-1 state=running code=-\r\n'
  )
  assert workers.parse(text) == [
      Status('t1v-n-1-w-0', 'exited', 75), Status('w-1', 'running', None)
  ]


def node(created):
  return tpu_node.Node('READY', created=created)


def test_chip_hours_add_up_over_vms():
  now = [1e9 + 7200]
  meter = supervisor.Meter(4, 20.0, clock=lambda: now[0])
  # 2001-09-09 01:46:40 is a billion seconds after 1970.
  meter.see(node('2001-09-09T01:46:40.123456789Z'))
  assert meter.chip_hours == pytest.approx(8.0)
  now[0] += 3600
  meter.see(node('2001-09-09T01:46:40.123456789Z'))
  assert meter.chip_hours == pytest.approx(12.0)
  meter.close()
  now[0] += 3600
  assert meter.chip_hours == pytest.approx(12.0)
  meter.see(node('2001-09-09T05:46:40Z'))
  now[0] += 3600
  assert meter.chip_hours == pytest.approx(16.0)
  assert not meter.over
  now[0] += 3600
  assert meter.over


@pytest.mark.parametrize(('codes', 'code', 'runs'), [
    ('0', 0, 1),
    ('75,1,143,0', 0, 4),
    ('1,2', 2, 2),
])
def test_which_codes_end_it(project, codes, code, runs):
  done = project('supervise', arguments=[f'--codes={codes}'], code=code)
  assert len(project.runs) == runs
  assert f'the job has ended with exit code {code}' in done.stderr
  assert project.cloud.verbs('describe', 'ssh') == [
      'tpu-vm create', 'tpu-vm scp'
  ]
  assert 'verb down' in done.stderr


def test_retries_of_the_job_are_bounded_and_its_log_is_shown(project):
  done = project(
      'supervise', '--max_retries=2', '--delete_when_done',
      arguments=['--codes=1'], code=1,
  )
  assert len(project.runs) == 3
  assert 'gave up after 2 retries' in done.stderr.splitlines()[-1]
  assert 'fake main --codes=1' in done.stderr
  assert project.cloud.state['nodes'] == {}


@pytest.mark.parametrize(('queued', 'count'), [([], 1), (['--queued'], 2)])
def test_a_preempted_vm_is_made_again_and_the_job_goes_on(
    project, queued, count
):
  project.cloud.set(workers=count, worker_env=[{}] * count)
  process = subprocess.Popen(
      project.command('supervise', *queued, arguments=['--workdir=/x']),
      cwd=project.root, text=True, stderr=subprocess.PIPE,
  )
  project.wait(lambda: len(project.runs) == count, process)
  project.cloud.preempt('a')
  project.wait(lambda: len(project.runs) == 2 * count, process)
  (project.shared / 'finish').touch()
  _, err = process.communicate(timeout=30)
  assert process.returncode == 0, err
  assert project.runs == project.runs[:1] * (2 * count)
  kind = 'queued-resources' if queued else 'tpu-vm'
  assert project.cloud.verbs('describe', 'ssh') == [
      f'{kind} create', 'tpu-vm scp', f'{kind} delete', f'{kind} create',
      'tpu-vm scp',
  ]
  assert 'PREEMPTED' in err


def test_a_new_launcher_goes_on_watching(project):
  project('up')
  project('sync')
  project('run', arguments=['--workdir=/x'])
  project.wait(lambda: project.runs)
  process = subprocess.Popen(
      project.command('supervise', arguments=['--workdir=/x']),
      cwd=project.root, text=True, stderr=subprocess.PIPE,
  )
  for line in process.stderr:
    if 'running already' in line:
      break
  (project.shared / 'finish').touch()
  process.communicate(timeout=30)
  assert process.returncode == 0
  assert len(project.runs) == 1


def test_network_failures_on_the_way_do_not_end_it(project):
  project.cloud.set(failures=[
      {'when': 'scp', 'stderr': 'kex_exchange_identification', 'code': 255},
      {'when': 'tpu-vm ssh', 'stderr': 'Connection closed', 'code': 255},
      {'when': 'describe', 'stderr': 'UNAVAILABLE'},
  ])
  project('supervise', arguments=['--codes=0'])
  assert project.runs
  assert project.cloud.verbs().count('tpu-vm create') == 1


@pytest.mark.parametrize(('states', 'code'), [
    (['READY', 'PREEMPTED'], 0),
    (['READY'], 1),
])
def test_a_failure_on_a_vm_that_goes_away_is_a_preemption(
    project, states, code
):
  broken = {'when': 'scp', 'stderr': 'scp: no such file', 'code': 127}
  project.cloud.set(nodes={'a': states}, failures=[broken])
  done = project('supervise', arguments=['--codes=0'], code=code)
  assert 'scp: no such file' in done.stderr
  assert len(project.runs) == 1 - code


def test_network_failures_in_a_row_are_bounded(project):
  lost = {'when': 'tpu-vm ssh', 'stderr': 'Connection closed', 'code': 255}
  project.cloud.set(failures=[lost] * 99)
  done = project('supervise', '--max_retries=2', arguments=['--codes=0'],
                 code=1)
  assert 'gave up after 2 retries' in done.stderr
  assert len(project.cloud.calls) < 30


def test_a_limit_on_cost_saves_and_deletes(project):
  # The VM counts from its creation, in 1971.
  project.cloud.set(created='1971-01-01T00:00:00Z', nodes={'a': ['READY']})
  (project.cloud.home / 'workers' / '0').mkdir(parents=True)
  done = project(
      'supervise', '--max_chip_hours=10', arguments=['--workdir=/x'], code=75
  )
  assert 'max_chip_hours is reached' in done.stderr
  assert len(project.runs) == 1
  assert project.cloud.state['nodes'] == {}


def test_a_worker_that_hangs_is_asked_to_stop(cloud, monkeypatch):
  spec = tpu_node.Spec('a', 'us-central2-b')
  cloud.set(nodes={'a': ['READY']})
  asked = []

  class Hanging:
    def status(self, worker='all'):
      both = [Status('w-0', 'exited', 1), Status('w-1', 'running')]
      return both if worker == 'all' else both[:1]

    def stop(self):
      asked.append('stop')

  times = iter(range(0, 10_000, 200))
  job = supervisor.Supervisor(
      gcloud.Gcloud(gcloud.Retries(1, 0.0, print)), spec, Hanging(),
      supervisor.Meter(4, None), poll_seconds=0.0, max_wait_hours=1.0,
      say=print, sleep=lambda s: None, clock=lambda: next(times),
  )
  code, why = job._watch()
  assert code == 1
  assert 'only w-1 still ran' in why
  assert asked == ['stop']
