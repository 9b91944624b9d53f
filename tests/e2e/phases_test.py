"""Both phases of BERT: killed in either and between them, and at any split."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from bigtransfer import saved, trees

pytestmark = pytest.mark.xdist_group('phases')
ROOT = pathlib.Path(__file__).parents[2]
# Three steps of 128 tokens and three of 512; with dropout and norms, so that
# neither may depend on a restart.
ARGUMENTS = [
    '--config=configs/bert_pretrain.py:tiny,smoke',
    '--config.moments=keep',
    '--config.model.dropout=0.1',
    '--config.model.attention_dropout=0.1',
    '--config.checkpoint.every=1',
    '--config.norms_every=2',
]
FAULTS = ['kill@2', 'kill@3', 'term@4', 'kill@5', 'none']


def start(workdir, fault, *extra):
  environment = dict(os.environ, JAX_NUM_CPU_DEVICES='1', JAX_PLATFORMS='cpu')
  return subprocess.run(
      [sys.executable, 'tests/e2e/main_with_faults.py', fault,
       f'{workdir}.ids', *ARGUMENTS, f'--workdir={workdir}', *extra],
      cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
  )


def records(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs')
  whole = start(folder / 'whole', 'none')
  assert whole.returncode == 0, whole.stderr
  return folder, [start(folder / 'broken', fault) for fault in FAULTS]


def test_killed_in_both_phases_it_ends_as_if_nothing_had_happened(runs):
  folder, broken = runs
  assert [run.returncode for run in broken] == [-9, -9, 75, -9, 0], (
      broken[-1].stderr
  )
  assert (folder / 'broken' / 'metrics.jsonl').read_bytes() == (
      folder / 'whole' / 'metrics.jsonl'
  ).read_bytes()
  for part in ('params', 'opt_state', 'progress'):
    a, b = (
        saved.restore_part(str(folder / name / 'checkpoints'), 6, part)
        for name in ('whole', 'broken')
    )
    for (path, x), (other, y) in zip(
        trees.flatten(a), trees.flatten(b), strict=True
    ):
      assert path == other
      np.testing.assert_array_equal(x, y, err_msg=f'{part}/{path}')


def test_each_phase_has_its_own_schedule_and_norms(runs):
  rows = records(runs[0] / 'whole')
  train = [r for r in rows if r['kind'] == 'train']
  assert [(r['step'], r['phase']) for r in train] == [
      (1, 'length128'), (2, 'length128'), (3, 'length128'),
      (4, 'length512'), (5, 'length512'), (6, 'length512'),
  ]
  rates = [r['values']['lr'] for r in train]
  # A warm-up of one step in each: 0 and then the peak of the phase.
  assert rates[0] == rates[3] == 0
  assert rates[1] > rates[4] > 0
  # Counted from the beginning of a phase.
  assert [r['step'] for r in rows if r['kind'] == 'norms'] == [2, 5]


def test_the_table_has_512_positions_in_both_phases(runs):
  folder = str(runs[0] / 'whole' / 'checkpoints')
  first, second = (
      saved.restore_part(folder, step, 'params')['embeddings']['position']
      for step in (5, 6)
  )
  assert first['embedding'].shape == second['embedding'].shape == (512, 32)


def test_micro_batches_change_nothing(runs, tmp_path):
  """Dropout included: a mask belongs to a row of the global batch."""
  split = tuple(
      {'name': f'length{length}', 'data.seq_length': length,
       'data.max_predictions': most, 'batch_size': size, 'accum_steps': 2,
       'total_steps': 3, 'schedule.warmup': 1,
       'optimizer.learning_rate': rate}
      for length, most, size, rate in ((128, 20, 8, 3e-2), (512, 80, 4, 1e-2))
  )
  assert start(
      tmp_path / 'split', 'none', f'--config.phases={split!r}'
  ).returncode == 0
  for a, b in zip(
      records(runs[0] / 'whole'), records(tmp_path / 'split'), strict=True
  ):
    if a['kind'] == 'train':
      assert b['values']['loss'] == pytest.approx(a['values']['loss'], 1e-5)
