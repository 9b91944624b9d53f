"""The commands of the README, one after the other, at the smoke size."""

import csv
import json
import os
import signal

import numpy as np
import pytest
from PIL import Image

from bigtransfer import (
  coordination,
  export,
  main,
  predict,
  report,
  saved,
  trees,
)
from input_pipeline import batches

# The runs are made once, on one worker.
pytestmark = pytest.mark.xdist_group('commands')
ROOT = os.path.dirname(os.path.dirname(main.__file__))
SMOKE = [
    '--config=configs/quickstart.py:smoke',
    '--config.compilation_cache=None',
]


@pytest.fixture(autouse=True)
def _in_checkout(monkeypatch):
  monkeypatch.chdir(ROOT)
  handlers = {
      s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)
  }
  yield
  for number, handler in handlers.items():
    signal.signal(number, handler)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A finished smoke run of the quickstart."""
  folder = str(tmp_path_factory.mktemp('runs') / 'smoke')
  os.chdir(ROOT)
  assert main.main([*SMOKE, f'--workdir={folder}']) == 0
  return folder


def test_a_run_leaves_what_the_readme_lists(workdir):
  found = set(os.listdir(workdir))
  assert found >= {
      'checkpoints', 'metrics.jsonl', 'timing.jsonl', 'ledger.jsonl',
      'config.json', 'classes.json', 'per_class.csv', 'plots',
  }
  assert os.listdir(os.path.join(workdir, 'plots')) == ['curves.png']
  with open(os.path.join(workdir, 'per_class.csv')) as f:
    rows = list(csv.DictReader(f))
  assert [r['images'] for r in rows] == [
      str(n) for n in np.bincount(_test_labels(), minlength=10)
  ]


def _test_labels():
  from input_pipeline import sources

  source = sources.Embedded('fashion_mnist', 'test')
  return source.fetch(np.arange(2000))['label'].numpy()


def test_evaluation_alone_gives_what_the_run_gave(workdir, capsys):
  code = main.main([*SMOKE, f'--workdir={workdir}', '--config.eval_only'])
  with open(os.path.join(workdir, 'metrics.jsonl')) as f:
    values = json.loads(f.read().splitlines()[-1])['values']
  out = capsys.readouterr().out
  assert code == 0
  assert f'accuracy {values["accuracy"]:.4g}' in out
  assert 'num_examples 2000' in out


def test_evaluation_alone_is_stopped_by_a_signal(workdir, monkeypatch, capsys):
  read, after = batches.EvalBatches.__iter__, []

  def read_and_strike(self):
    os.kill(os.getpid(), signal.SIGTERM)
    for batch in read(self):
      yield batch
      after.append(batch)

  def leave(code):
    raise SystemExit(code)

  monkeypatch.setattr(batches.EvalBatches, '__iter__', read_and_strike)
  monkeypatch.setattr(coordination, 'leave', leave)
  with pytest.raises(SystemExit, match='75'):
    main.main([*SMOKE, f'--workdir={workdir}', '--config.eval_only'])
  captured = capsys.readouterr()
  assert 'evaluation at' not in captured.out
  # What was read ahead.
  assert len(after) <= 2


def test_prediction_of_files_and_of_examples(workdir, tmp_path, capsys):
  good, bad = str(tmp_path / 'coat.png'), str(tmp_path / 'bad.png')
  pixels = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)
  Image.fromarray(pixels).save(good)
  with open(bad, 'w') as f:
    f.write('no image')
  table = str(tmp_path / 'out.csv')
  code = predict.main(['--workdir', workdir, '--csv', table, good, bad])
  out = capsys.readouterr().out.splitlines()
  assert code == 1
  assert out[0].startswith(f'{good}: ') and out[0].count(',') == 2
  assert out[1] == f'{bad}: cannot be read as an image'
  with open(table) as f:
    header, row = csv.reader(f)
  assert header[:2] == ['path', 'T-shirt/top'] and len(header) == 11
  assert row[0] == good
  assert sum(map(float, row[1:])) == pytest.approx(1, abs=1e-4)

  assert predict.main(['--workdir', workdir, '--top', '1']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 10 and all('(is ' in line for line in lines)

  assert predict.main(['--workdir', workdir, str(tmp_path / 'nope.png')]) == 2
  assert 'nope.png' in capsys.readouterr().err
  assert predict.main(['--workdir', str(tmp_path)]) == 2


def test_exported_parameters_start_another_run(workdir, tmp_path, capsys):
  out = str(tmp_path / 'params.safetensors')
  assert export.main(['--workdir', workdir, '--output', out]) == 0
  params, metadata = export.load(out)
  assert metadata['step'] == '3'
  assert json.loads(metadata['class_names'])[0] == 'T-shirt/top'
  starts = [
      [f'--config.init_from={source}', '--config.optimizer.learning_rate=0']
      for source in (out, workdir, os.path.join(workdir, 'checkpoints', '3'))
  ]
  for i, start in enumerate(starts):
    other = str(tmp_path / str(i))
    assert main.main([*SMOKE, *start, f'--workdir={other}']) == 0
    assert 'starting from the parameters of' in capsys.readouterr().out
    export.main(['--workdir', other, '--output', str(tmp_path / 'b')])
    again, _ = export.load(str(tmp_path / 'b'))
    np.testing.assert_array_equal(
        params['block1']['unit01']['conv1']['kernel'],
        again['block1']['unit01']['conv1']['kernel'],
    )
  assert export.main(['--workdir', str(tmp_path), '--output', out]) == 2


def test_several_runs_in_one_picture(workdir, tmp_path, capsys):
  code = report.main([workdir, workdir, '--output', str(tmp_path)])
  assert not code and os.listdir(tmp_path) == ['curves.png']
  lines = capsys.readouterr().out.splitlines()
  assert lines[1].startswith(f'{workdir}: goodput ')
  assert lines[2].split()[0] == 'steps'


def test_the_plan_shows_config_and_rate_without_a_workdir(capsys):
  assert main.main([*SMOKE, '--config.print_plan']) == 0
  out = capsys.readouterr().out
  assert 'phase train: 3 steps of 16 examples' in out
  assert 'config.optimizer: ' in out and 'learning_rate=0.1 ' in out
  assert main.main([*SMOKE, '--help_config']) == 0
  out = capsys.readouterr().out
  assert 'optimizer.momentum = 0.9\n    Of sgd and lars.' in out


def test_phases_run_in_order_in_one_workdir(tmp_path, capsys):
  phases = ('({"name": "small", "total_steps": 2},'
            ' {"name": "large", "total_steps": 3, "batch_size": 32,'
            ' "schedule.warmup": 2})')
  args = ['--config=configs/quickstart.py:smoke', f'--config.phases={phases}',
          '--config.model.name=linear', '--config.compilation_cache=None',
          f'--workdir={tmp_path}']
  assert main.main(args) == 0
  assert 'done: 5 steps' in capsys.readouterr().out
  with open(tmp_path / 'metrics.jsonl') as f:
    rows = [json.loads(line) for line in f]
  train = [(r['step'], r['phase'], r['values']['lr']) for r in rows
           if r['kind'] == 'train']
  assert [t[:2] for t in train] == [
      (1, 'small'), (2, 'small'), (3, 'large'), (4, 'large'), (5, 'large')
  ]
  # Each phase has its own warm-up from its own step 0.
  assert [t[2] for t in train] == pytest.approx([0, 0.1, 0, 0.05, 0.1])
  assert main.main(args) == 0
  assert 'already finished at step 5' in capsys.readouterr().out


def test_a_phase_may_keep_the_moments_of_the_one_before(tmp_path):
  phases = '({"name": "a", "total_steps": 2}, {"name": "b", "total_steps": 1})'

  def buffer(moments, step):
    folder = tmp_path / moments
    args = ['--config=configs/quickstart.py:smoke', f'--workdir={folder}',
            f'--config.phases={phases}', f'--config.moments={moments}',
            '--config.optimizer.momentum=0.9', '--config.model.name=linear',
            '--config.compilation_cache=None', '--config.checkpoint.every=1',
            '--config.schedule.warmup=0']
    assert main.main(args) == 0
    state = saved.restore_part(
        str(folder / 'checkpoints'), step, 'opt_state'
    )
    [leaf] = [x for path, x in trees.flatten(state)
              if path.endswith('trace/head/kernel')]
    return np.asarray(leaf)

  before, kept, reset = buffer('keep', 2), buffer('keep', 3), buffer('reset', 3)
  assert np.abs(before).max() > 0
  np.testing.assert_allclose(kept - reset, 0.9 * before, atol=1e-6)


@pytest.mark.parametrize(
    'recipe', ['configs/bit_pretrain.py:R50x1,data=embedded,smoke',
               'configs/bit_pretrain.py:R101x3,recipe=big_vision,smoke'])
def test_every_recipe_runs_at_the_smoke_size(recipe, tmp_path):
  assert main.main([f'--config={recipe}', f'--workdir={tmp_path}',
                    '--config.compilation_cache=None']) == 0
