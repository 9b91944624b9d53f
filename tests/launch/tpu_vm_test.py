"""The command line: what it accepts, prints, and hands to gcloud."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from launch import tpu_vm

BASE = ['--name=a', '--zone=us-central2-b', '--project=p']
# All that a shell could take for its own.
AWKWARD = [
    '--config=c.py:x', '--config.a=b  c', "--config.b='", '--config.c="$HOME"',
    '--config.d=`id`;\\n&|<>*?#~!', '--config.e=ü\nnext', '--workdir=/w d',
]


def dry(capsys, *argv):
  """Returns the argument lists of the commands that a dry run prints."""
  assert tpu_vm.main([*argv, '--dry_run']) == 0
  return [shlex.split(x) for x in capsys.readouterr().out.splitlines()]


def test_up_direct(cloud, capsys):
  commands = dry(capsys, 'up', *BASE, '--accelerator_type=v4-8')
  assert [c[3:5] for c in commands] == [
      ['tpu-vm', 'describe'], ['tpu-vm', 'create'], ['tpu-vm', 'describe']
  ]
  assert commands[1] == [
      'gcloud', 'compute', 'tpus', 'tpu-vm', 'create', 'a',
      '--zone=us-central2-b', '--project=p', '--quiet',
      '--accelerator-type=v4-8', '--version=tpu-ubuntu2204-base',
  ]
  assert not cloud.calls


def test_up_with_everything(cloud, capsys):
  commands = dry(
      capsys, 'up', *BASE, '--accelerator_type=v6e-8', '--runtime_version=x',
      '--queued', '--reserved', '--network=n', '--subnetwork=s',
      '--service_account=me@p.iam', '--internal_ip',
  )
  (create,) = [c for c in commands if 'create' in c]
  assert create == [
      'gcloud', 'compute', 'tpus', 'queued-resources', 'create', 'a',
      '--node-id=a', '--zone=us-central2-b', '--project=p', '--quiet',
      '--accelerator-type=v6e-8', '--runtime-version=x', '--network=n',
      '--subnetwork=s', '--service-account=me@p.iam', '--reserved',
      '--internal-ips',
  ]


@pytest.mark.parametrize('verb', ['sync', 'run', 'logs', 'status', 'doctor'])
def test_ssh_and_scp_by_internal_addresses(cloud, capsys, verb):
  rest = ['--', '--config=c.py'] if verb == 'run' else []
  internal = [verb, *BASE, '--internal_ip', '--dry_run', *rest]
  assert tpu_vm.main(internal) == 0
  lines = capsys.readouterr().out.splitlines()
  reaching = [x for x in lines if ' ssh ' in x or ' scp ' in x]
  assert reaching
  assert all('--internal-ip ' in x for x in reaching)
  assert all('--zone=us-central2-b --project=p' in x for x in lines)


def test_each_printed_command_can_be_pasted(cloud, project):
  # What a dry run prints, run by a shell, does what the run itself does.
  project('up')
  printed = project('sync', '--dry_run').stdout
  printed += project('run', '--dry_run', arguments=AWKWARD).stdout
  subprocess.run(['bash', '-ec', printed], check=True, capture_output=True)
  project.wait(lambda: project.runs)
  assert project.runs[0][: len(AWKWARD)] == AWKWARD


def test_a_dry_run_of_all_verbs_calls_nothing(cloud, project):
  for verb in ('up', 'sync', 'run', 'logs', 'status', 'stop', 'doctor',
               'supervise', 'down'):
    arguments = ['--workdir=/x'] if verb in ('run', 'supervise') else None
    out = project(verb, '--dry_run', arguments=arguments).stdout
    assert all(x.startswith('gcloud compute tpus ') for x in out.splitlines())
    assert out
  assert not cloud.calls


WRONG = [
    (['up', '--name=', '--zone=us-central2-b'], '--name is empty'),
    (['up', '--name=a', '--zone='], '--zone is empty'),
    (['up', *BASE, '--accelerator_type=v4-8', '--network='],
     '--network is empty'),
    (['up', *BASE], 'needs --accelerator_type'),
    (['up', *BASE, '--accelerator_type=v4'], 'v3-32'),
    (['up', *BASE, '--accelerator_type=tpu7x-8'], 'GKE'),
    (['up', *BASE, '--accelerator_type=v4-8', '--spot', '--reserved'],
     'exclude'),
    (['up', *BASE, '--accelerator_type=v4-8', '--max_retries=-1'], 'at least'),
    (['up', '--name=A_b', '--zone=us-central2-b'], '--name=A_b'),
    (['up', '--name=a', '--zone=europe'], '--zone=europe'),
    (['fly', *BASE], 'fly'),
    (['up', *BASE, '--acc=v4-8'], '--acc'),
    (['status', *BASE, '--', 'x'], 'takes nothing after'),
    (['run', *BASE], 'follow `--`'),
    (['run', *BASE, '--', '--config', ''], 'argument 2 after `--` is empty'),
    (['run', *BASE, '--', '--workdir', 'runs/a'], 'or a full path'),
    (['run', *BASE, '--', '--workdir=runs/a'], 'or a full path'),
    (['run', *BASE, '--', '--workdir=s3://a/b'], 'must be gs://BUCKET/FOLDER'),
    (['run', *BASE, '--env=A', '--', 'x'], 'NAME=VALUE'),
    (['logs', *BASE, '--worker=1;2'], 'all or numbers'),
]


@pytest.mark.parametrize(('argv', 'text'), WRONG)
def test_wrong_use(cloud, capsys, argv, text):
  with pytest.raises(SystemExit) as e:
    tpu_vm.main(argv)
  assert e.value.code == 2
  assert text in capsys.readouterr().err.splitlines()[-1]
  assert not cloud.calls


@pytest.mark.parametrize(('given', 'added'), [
    ([], ['--config.platform=tpu', '--config.distributed.initialize=true']),
    (['--config.platform=cpu'], ['--config.distributed.initialize=true']),
    (['--config.distributed.initialize=false'], ['--config.platform=tpu']),
])
def test_the_job_must_find_tpus_and_each_other(given, added):
  argv = ['run', *BASE, '--', '--workdir=/x', *given]
  _, rest = tpu_vm.tpu_vm_args.parse('', argv)
  assert rest == ['--workdir=/x', *given, *added]


def test_stderr_of_gcloud_is_shown(cloud, capsys):
  cloud.set(failures=[{'when': 'describe', 'stderr': 'PERMISSION_DENIED: no'}])
  assert tpu_vm.main(['status', *BASE]) == 1
  err = capsys.readouterr().err
  assert 'PERMISSION_DENIED: no' in err
  assert 'roles/tpu.admin' in err


def test_without_gcloud(monkeypatch, tmp_path, capsys):
  monkeypatch.setenv('PATH', str(tmp_path))
  assert tpu_vm.main(['status', *BASE]) == 1
  assert 'docs/install' in capsys.readouterr().err.splitlines()[-1]


def test_one_launcher_at_a_time(cloud, capsys):
  argv = ['down', *BASE]
  with tpu_vm.alone(tpu_vm.tpu_node.Spec('a', 'us-central2-b', 'p')):
    assert tpu_vm.main(argv) == 2
    assert f'process {os.getpid()}' in capsys.readouterr().err
  assert tpu_vm.main(argv) == 0


def test_it_runs_where_no_accelerator_stack_is_installed(cloud, tmp_path):
  code = 'import launch.tpu_vm, launch.supervisor, launch.requirements, sys;'
  code += 'import json; print(json.dumps(sorted(sys.modules)))'
  out = subprocess.run(
      [sys.executable, '-S', '-c', code], check=True, capture_output=True,
      cwd=tpu_vm.ROOT,
  ).stdout
  assert not {'jax', 'numpy', 'absl', 'ml_collections'} & set(json.loads(out))


def test_every_verb_may_be_repeated(cloud, project):
  for _ in range(2):
    project('down')
  for _ in range(2):
    project('up')
  assert cloud.verbs('describe') == ['tpu-vm create']
  for _ in range(2):
    project('sync')
  for _ in range(2):
    project('run', arguments=['--workdir=/x'])
  project.wait(lambda: project.runs)
  assert 'running already' in project('run', arguments=['--workdir=/x']).stderr
  other = project('run', arguments=['--workdir=/y'], code=2)
  assert 'another job is running' in other.stderr
  assert ': running' in project('status').stdout
  assert 'fake main --workdir=/x' in project('logs').stdout
  project('stop')
  project.wait(lambda: 'exited, code 75' in project('status').stdout)
  project('stop')
  assert len(project.runs) == 1
  for _ in range(2):
    project('down')
  assert 'NOT FOUND' in project('status').stdout


def test_doctor_runs_on_the_workers(cloud, project):
  project('up')
  project('sync')
  done = project('doctor', arguments=['--platform=cpu', '--help'])
  assert 'python -m launch.doctor' in done.stdout
  project('doctor', arguments=['--nonsense'], code=1)
