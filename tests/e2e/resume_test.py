"""Killed at any step and run again, a run ends as if nothing had happened."""

import json
import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from bigtransfer import goodput, saved, trees
from input_pipeline import order

# The runs are made once, on one worker.
pytestmark = pytest.mark.xdist_group('resume')
ROOT = pathlib.Path(__file__).parents[2]
STEPS, EXAMPLES, BATCH = 12, 40, 16
ARGUMENTS = [
    '--config=configs/quickstart.py:smoke',
    f'--config.total_steps={STEPS}',
    f'--config.batch_size={BATCH}',
    '--config.log_every=3',
    '--config.eval_every=5',
    '--config.checkpoint.every=5',
    '--config.ema_decay=0.9',
    '--config.data.source=folder',
    '--config.data.train_ops='
    'decode|pad(2)|random_crop(16)|flip_lr|value_range(-1,1)',
    '--config.data.eval_ops=decode|central_crop(16)|value_range(-1,1)',
    '--config.augment.mixup_alpha=0.2',
]
# Killed at step 1, at an epoch's end (5 steps are two epochs) while the save
# of step 5 is under way, anywhere, and at the last step; and stopped politely
# at a step that is evaluated and at the last one.
FAULTS = [
    'kill@1', 'kill@5', f'kill@{random.randint(1, 9)}', 'term@10', 'kill@12',
    'term@12', 'none',
]


def start(workdir, fault, *extra):
  environment = dict(os.environ, JAX_NUM_CPU_DEVICES='2', JAX_PLATFORMS='cpu')
  return subprocess.run(
      [sys.executable, 'tests/e2e/main_with_faults.py', fault,
       f'{workdir}.ids', *ARGUMENTS, f'--workdir={workdir}',
       f'--config.data.path={workdir.parent / "photos"}', *extra],
      cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
  )


def save_photos(folder):
  """Writes 40 images of 16x16 in two classes, and 10 to evaluate on."""
  pixels = np.random.default_rng(0).integers(0, 255, (50, 16, 16, 3), np.uint8)
  for i, image in enumerate(pixels):
    split = 'train' if i < EXAMPLES else 'test'
    path = folder / split / ('even', 'odd')[i % 2] / f'{i}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def records(path):
  return [json.loads(line) for line in pathlib.Path(path).read_text()
          .splitlines()]


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """An unbroken run and one that met every fault in turn."""
  folder = tmp_path_factory.mktemp('runs')
  save_photos(folder / 'photos')
  whole = start(folder / 'whole', 'none')
  assert whole.returncode == 0, whole.stderr
  broken = [start(folder / 'broken', fault) for fault in FAULTS]
  return folder, whole, broken


def test_exit_codes_say_what_happened(runs):
  _, _, broken = runs
  want = {'kill': -9, 'term': 75, 'none': 0}
  for fault, run in zip(FAULTS, broken, strict=True):
    assert run.returncode == want[fault.partition('@')[0]], run.stderr
  assert 'stopped and saved at step 10' in broken[3].stdout
  assert 'going on from step 10' in broken[4].stdout
  assert 'stopped and saved at step 12' in broken[5].stdout


def test_metrics_are_the_same_byte_for_byte(runs):
  folder, _, _ = runs
  whole = (folder / 'whole' / 'metrics.jsonl').read_bytes()
  assert (folder / 'broken' / 'metrics.jsonl').read_bytes() == whole
  rows = records(folder / 'whole' / 'metrics.jsonl')
  train = [r['step'] for r in rows if r['kind'] == 'train']
  assert train == list(range(1, STEPS + 1))
  assert [r['step'] for r in rows if r['kind'] == 'eval'] == [5, 10, 12]
  assert rows[-1]['values']['num_examples'] == 10
  # The rate of step k is that of update k: warm-up 1, so full at step 2.
  rates = [r['values']['lr'] for r in rows if r['kind'] == 'train']
  assert rates[0] == 0 and rates[1] == pytest.approx(max(rates))


def test_parameters_are_the_same_bit_for_bit(runs):
  folder, _, _ = runs
  for part in ('params', 'ema', 'opt_state', 'progress'):
    a, b = (
        saved.restore_part(str(folder / name / 'checkpoints'), STEPS, part)
        for name in ('whole', 'broken')
    )
    assert str(a.keys()) == str(b.keys())
    for path, leaf in trees.flatten(a):
      other = dict(trees.flatten(b))[path]
      np.testing.assert_array_equal(leaf, other, err_msg=f'{part}/{path}')


def test_every_start_reads_the_same_examples_at_the_same_steps(runs):
  folder, _, _ = runs
  for name in ('whole', 'broken'):
    seen = records(f'{folder / name}.ids')
    assert {r['step'] for r in seen} >= set(range(STEPS))
    for r in seen:
      want = order.ids_at(
          r['step'], num_examples=EXAMPLES, batch_size=BATCH, seed=0
      )
      assert r['ids'] == want.tolist()


def test_the_ledger_tells_the_story(runs):
  folder, _, _ = runs
  rows = records(folder / 'broken' / 'ledger.jsonl')
  starts = [r['step'] for r in rows if r['event'] == 'start']
  # A kill may come before or after the save under way is complete.
  for step, possible in zip(
      starts, [{0}, {0}, {0, 5}, {0, 5}, {10}, {10, 12}, {12}], strict=True
  ):
    assert step in possible, (FAULTS, starts)
  assert [(r['step'], r['reason']) for r in rows if r['event'] == 'stop'] == [
      (10, 'stopped'), (12, 'stopped'), (12, 'done')
  ]
  spent = goodput.of_workdir(str(folder / 'broken'))
  assert spent.starts == len(FAULTS)
  assert 0 < spent.share < 1 and spent.seconds['lost'] > 0
  assert sum(spent.seconds.values()) == pytest.approx(spent.total)


def test_a_finished_run_does_nothing(runs):
  folder, _, _ = runs
  before = (folder / 'whole' / 'metrics.jsonl').read_bytes()
  again = start(folder / 'whole', 'none')
  assert again.returncode == 0, again.stderr
  assert 'already finished at step 12; nothing to do' in again.stdout
  assert (folder / 'whole' / 'metrics.jsonl').read_bytes() == before


def test_one_device_continues_what_two_began(runs, tmp_path):
  """And in two micro-batches: the examples are the same, the sums rounded."""
  folder, _, _ = runs
  os.symlink(folder / 'photos', tmp_path / 'photos')
  stopped = start(tmp_path / 'run', 'term@7')
  assert stopped.returncode == 75, stopped.stderr
  environment = dict(os.environ, JAX_NUM_CPU_DEVICES='1', JAX_PLATFORMS='cpu')
  done = subprocess.run(
      [sys.executable, '-m', 'bigtransfer.main', *ARGUMENTS,
       f'--workdir={tmp_path / "run"}', '--config.accum_steps=2',
       f'--config.data.path={tmp_path / "photos"}'],
      cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
  )
  assert done.returncode == 0, done.stderr
  whole = records(folder / 'whole' / 'metrics.jsonl')
  other = records(tmp_path / 'run' / 'metrics.jsonl')
  for a, b in zip(whole, other, strict=True):
    assert (a['step'], a['kind']) == (b['step'], b['kind'])
    # Equal up to the stop; the first loss after it comes from equal parameters;
    # from there on training carries the differences in the last bits along.
    tolerance = 0 if a['step'] <= 7 else 1e-6 if a['step'] == 8 else 1e-3
    assert a['values']['loss'] == pytest.approx(
        b['values']['loss'], rel=tolerance
    )
