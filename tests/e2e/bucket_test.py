"""A run in a bucket ends as one in a folder does, killed on the way or not."""

import json
import os
import pathlib
import runpy
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group('bucket')
ROOT = pathlib.Path(__file__).parents[2]
FAKE = runpy.run_path(str(ROOT / 'tests' / 'fake_gcs.py'))
WORKDIR, STEPS = 'gs://bucket/runs/a', 12
ARGUMENTS = [
    '--config=configs/quickstart.py:smoke',
    f'--config.total_steps={STEPS}',
    '--config.log_every=2',
    '--config.eval_every=4',
    '--config.checkpoint.every=3',
    '--config.checkpoint.best_metric=None',
    '--config.data.eval_examples=100',
]


def start(script, *arguments, served):
  environment = os.environ | served.environment | {
      'JAX_NUM_CPU_DEVICES': '2', 'JAX_PLATFORMS': 'cpu',
  }
  environment.pop('EPATH_USE_TF')  # It is the tests' own.
  return subprocess.run(
      [sys.executable, f'tests/e2e/{script}.py', *arguments], cwd=ROOT,
      env=environment, capture_output=True, text=True, timeout=300,
  )


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """A run that was killed and went on, what was done with it, its bucket."""
  folder = tmp_path_factory.mktemp('runs')
  with FAKE['bucket']() as served:
    # Past the evaluation of step 8, when checkpoint 6 is or will be there.
    killed = start(
        'main_with_faults', 'kill@9', str(folder / 'ids'), *ARGUMENTS,
        f'--workdir={WORKDIR}', served=served,
    )
    assert killed.returncode == -9, killed.stderr
    after_kill = dict(served.objects)
    # Half a checkpoint, newer than any other.
    for name, (content, _) in after_kill.items():
      if '/checkpoints/3/' in name and 'commit_success' not in name:
        served.put(name.replace('/3/', '/9/'), content)
    commands = folder / 'commands.json'
    commands.write_text(json.dumps([
        ['export', f'--workdir={WORKDIR}', f'--output={folder}/a.safetensors'],
        ['report', WORKDIR, f'--output={folder}'],
        ['main', *ARGUMENTS, f'--workdir={WORKDIR}'],
        ['main', *ARGUMENTS, f'--workdir={folder / "whole"}'],
        ['main', *ARGUMENTS, f'--workdir={WORKDIR}/'],
        ['main', *ARGUMENTS, f'--workdir={WORKDIR}', '--config.eval_only'],
        ['predict', f'--workdir={WORKDIR}'],
        ['main', *ARGUMENTS, f'--workdir={folder / "next"}',
         '--config.total_steps=2', f'--config.init_from={WORKDIR}'],
        ['main', *ARGUMENTS, '--workdir=gs://nowhere/run'],
        ['main', *ARGUMENTS, '--workdir=s3://bucket/run'],
    ]))
    yield folder, served, after_kill, start(
        'commands_in_turn', str(commands), served=served
    )


def test_all_commands_read_and_write_a_bucket(runs):
  folder, served, _, done = runs
  lines = done.stdout.splitlines()
  codes = [json.loads(line) for line in lines if line.startswith('{"module"')]
  assert [c['code'] for c in codes] == [0] * 8 + [2] * 2, done.stderr
  # It takes 5 s to import, and Orbax would for a bucket.
  assert codes[1] == {'module': 'report', 'code': 0, 'tensorflow': False}
  assert f'already finished at step {STEPS}; nothing to do' in lines
  assert f'starting from the parameters of {WORKDIR}' in lines
  assert (folder / 'a.safetensors').exists()
  assert served.content('runs/a/plots/curves.png').startswith(b'\x89PNG')
  assert 'runs/a/eval_only/per_class.csv' in served.objects


def test_metrics_are_the_same_byte_for_byte(runs):
  folder, served, after_kill, _ = runs
  # The evaluation put all lines up to it.
  killed, _ = after_kill['runs/a/metrics.jsonl']
  rows = [json.loads(line) for line in killed.splitlines()]
  assert rows[-1]['step'] == 8
  whole = (folder / 'whole' / 'metrics.jsonl').read_bytes()
  assert served.content('runs/a/metrics.jsonl') == whole
  assert len(whole.splitlines()) == STEPS + 3


def test_it_went_on_from_a_whole_checkpoint_and_keeps_two(runs):
  _, served, _, done = runs
  lines = served.content('runs/a/ledger.jsonl').splitlines()
  rows = [json.loads(line) for line in lines]
  starts = [r['step'] for r in rows if r['event'] == 'start']
  assert starts[0] == 0 and starts[1] in (3, 6) and len(starts) == 2
  assert f'going on from step {starts[1]} of {WORKDIR}' in done.stdout
  steps = {
      name.split('/')[3] for name in served.objects
      if name.startswith('runs/a/checkpoints/')
  }
  assert steps == {'9', '12'}
  for step in steps:
    assert f'runs/a/checkpoints/{step}/commit_success.txt' in served.objects


def test_what_cannot_be_a_workdir_is_one_line(runs):
  errors = [
      line for line in runs[3].stderr.splitlines() if line.startswith('error')
  ]
  assert errors == [
      'error: --workdir=gs://nowhere/run: there is no bucket nowhere',
      'error: --workdir=s3://bucket/run; accepted: a folder of this machine, or'
      ' gs://BUCKET/FOLDER without * ? [ ] # and empty names in it',
  ]
  assert 'Traceback' not in runs[3].stderr
