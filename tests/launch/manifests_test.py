"""The files for Kubernetes and Slurm say what the documentation says."""

import pathlib
import re
import subprocess

import pytest
import yaml

LAUNCH = pathlib.Path(__file__).parents[2] / 'launch'
SBATCH = LAUNCH / 'slurm' / 'bigtransfer.sbatch'


@pytest.fixture(scope='module')
def jobset():
  text = (LAUNCH / 'k8s' / 'jobset.yaml').read_text(encoding='utf-8')
  (document,) = yaml.safe_load_all(text)
  return document


def test_jobset_restarts_all_hosts_but_not_after_wrong_use(jobset):
  assert jobset['apiVersion'] == 'jobset.x-k8s.io/v1alpha2'
  assert jobset['kind'] == 'JobSet'
  policy = jobset['spec']['failurePolicy']
  assert 0 < policy['maxRestarts'] < 100
  (rule,) = policy['rules']
  assert rule['action'] == 'FailJobSet'
  assert rule['onJobFailureReasons'] == ['PodFailurePolicy']
  (workers,) = jobset['spec']['replicatedJobs']
  job = workers['template']['spec']
  assert job['parallelism'] == job['completions']
  assert job['backoffLimit'] == 0
  (rule,) = job['podFailurePolicy']['rules']
  assert rule['action'] == 'FailJob'
  assert rule['onExitCodes']['values'] == [2]
  assert rule['onExitCodes']['operator'] == 'In'


def test_jobset_pods_fill_the_slice_and_run_main_directly(jobset):
  (workers,) = jobset['spec']['replicatedJobs']
  job = workers['template']['spec']
  pod = job['template']['spec']
  (container,) = pod['containers']
  topology = pod['nodeSelector']['cloud.google.com/gke-tpu-topology']
  a, b = map(int, topology.split('x'))
  chips = container['resources']['limits']['google.com/tpu']
  assert a * b == job['parallelism'] * chips
  # Kubernetes demands it of jobs with a podFailurePolicy.
  assert pod['restartPolicy'] == 'Never'
  assert pod['terminationGracePeriodSeconds'] >= 60
  assert container['name'] == 'main'
  assert container['command'] == ['python', '-m', 'bigtransfer.main']
  assert '--config.platform=tpu' in container['args']
  mounts = {m['name']: m['mountPath'] for m in container['volumeMounts']}
  assert set(mounts) == {v['name'] for v in pod['volumes']}
  (workdir,) = (a for a in container['args'] if a.startswith('--workdir='))
  assert workdir.partition('=')[2].startswith(mounts['runs'] + '/')
  (config,) = (a for a in container['args'] if a.startswith('--config='))
  assert (LAUNCH.parent / config.partition('=')[2]).exists()


def test_dockerfile_installs_the_pins():
  text = (LAUNCH / 'k8s' / 'Dockerfile').read_text(encoding='utf-8')
  assert '-r launch/requirements-tpu.txt' in text
  assert re.search(r'^FROM python:3\.1[123]-', text, re.MULTILINE)


def test_sbatch_directives():
  text = SBATCH.read_text(encoding='utf-8')
  directives = dict(re.findall(r'^#SBATCH --([\w-]+)(?:=(.*))?$', text, re.M))
  assert directives['ntasks-per-node'] == directives['gpus-per-node']
  assert directives['signal'].startswith('TERM@')
  assert {'requeue', 'nodes', 'time', 'open-mode'} <= set(directives)
  # Slurm ignores directives after the first command.
  first = re.search(r'^[^#\s]', text, re.MULTILINE).start()
  assert '#SBATCH' not in text[first:]


@pytest.mark.parametrize(('srun', 'restarts', 'code', 'requeued'), [
    (0, 0, 0, False),
    (1, 0, 1, False),
    (2, 0, 2, False),
    (75, 0, 75, True),
    (75, 3, 1, False),
])
def test_sbatch_queues_again_after_75(tmp_path, srun, restarts, code, requeued):
  for name, body in {
      'srun': f'echo "$@" > {tmp_path}/srun.txt; exit {srun}',
      'scontrol': f'echo "$@" > {tmp_path}/scontrol.txt',
      'sleep': 'exit 0',
  }.items():
    (tmp_path / name).write_text(f'#!/bin/bash\n{body}\n')
    (tmp_path / name).chmod(0o755)
  env = {
      'PATH': f'{tmp_path}:/usr/bin:/bin', 'SLURM_JOB_ID': '7',
      'MAX_RESTARTS': '3', 'SLURM_RESTART_COUNT': str(restarts),
  }
  done = subprocess.run(
      ['bash', SBATCH, '--config', 'c.py', '--config.a=b c'], env=env
  )
  assert done.returncode == code
  assert '-m bigtransfer.main --config c.py --config.a=b c' in (
      tmp_path / 'srun.txt'
  ).read_text()
  assert (tmp_path / 'scontrol.txt').exists() == requeued
  if requeued:
    assert (tmp_path / 'scontrol.txt').read_text() == 'requeue 7\n'
