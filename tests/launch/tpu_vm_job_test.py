"""From `up` to `down` with the real job: two workers and a preemption."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from launch import local_pod

ROOT = pathlib.Path(__file__).parents[2]
WORKERS, STEPS, EVERY = 2, 160, 40
CACHE = os.environ['JAX_COMPILATION_CACHE_DIR']
VM = ['--name=a', '--zone=us-central2-b', '--project=p', '--poll_seconds=0.5']


def command(verb, *options):
  return [sys.executable, '-m', 'launch.tpu_vm', verb, *VM, *options]


def steps(workdir):
  """Returns the steps of the training records, in the order of the file."""
  path = workdir / 'metrics.jsonl'
  lines = path.read_text().splitlines() if path.exists() else []
  records = [json.loads(line) for line in lines]
  return [r['step'] for r in records if r['kind'] == 'train']


@pytest.mark.slow
def test_a_preempted_job_of_two_workers_ends_by_itself(cloud, tmp_path):
  # On a TPU the workers find each other by its metadata; here JAX takes them
  # for tasks of Slurm.
  address = f'localhost:{local_pod.free_port()}'
  cloud.set(workers=WORKERS, worker_env=[
      {
          'SLURM_JOB_ID': '1', 'SLURM_STEP_NODELIST': 'localhost',
          'SLURM_NTASKS': str(WORKERS), 'SLURM_PROCID': str(index),
          'SLURM_LOCALID': '0', 'JAX_COORDINATOR_ADDRESS': address,
          'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '1',
          'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo',
      }
      for index in range(WORKERS)
  ])
  workdir = tmp_path / 'shared' / 'run'
  subprocess.run(command('up', '--accelerator_type=v4-16'), cwd=ROOT,
                 check=True)
  log = tmp_path / 'supervise.txt'
  with open(log, 'w', encoding='utf-8') as f:
    supervise = subprocess.Popen(
        command(
            'supervise', '--accelerator_type=v4-16', '--max_retries=3',
            f'--env=BIGTRANSFER_PYTHON={sys.executable}',
            '--', '--config=configs/quickstart.py:smoke',
            f'--workdir={workdir}', '--config.platform=cpu',
            f'--config.total_steps={STEPS}', '--config.log_every=1',
            f'--config.checkpoint.every={EVERY}',
            f'--config.compilation_cache={CACHE}',
        ),
        cwd=ROOT, stdout=f, stderr=f,
    )
    try:
      until = time.monotonic() + 120
      while len(steps(workdir)) < 1.25 * EVERY:
        assert supervise.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)
      cloud.preempt('a')
      before = steps(workdir)
      code = supervise.wait(timeout=150)
    finally:
      supervise.kill()
      supervise.wait()
  text = log.read_text()
  assert code == 0, text
  # It was cut off in the middle, and went on from a checkpoint.
  assert before[-1] < STEPS, text
  assert steps(workdir) == list(range(1, STEPS + 1))
  ledger = [
      json.loads(line)
      for line in (workdir / 'ledger.jsonl').read_text().splitlines()
  ]
  starts = [r for r in ledger if r['event'] == 'start']
  assert [s['step'] == 0 for s in starts] == [True, False], ledger
  assert cloud.verbs('describe', 'ssh') == [
      'tpu-vm create', 'tpu-vm scp', 'tpu-vm delete', 'tpu-vm create',
      'tpu-vm scp',
  ]
  for _ in range(2):
    subprocess.run(command('down'), cwd=ROOT, check=True)
  assert cloud.state['nodes'] == {}
