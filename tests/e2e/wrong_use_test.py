"""Wrong input ends in one clear line, exit code 2 or 1, and loses nothing."""

import json
import math
import os
import resource
import shutil
import signal

import jax
import numpy as np
import pytest
from PIL import Image

from bigtransfer import main, saved

RECIPE = 'configs/quickstart.py:smoke'
LINEAR = [
    '--config=configs/quickstart.py:smoke',
    '--config.model.name=linear',
    '--config.compilation_cache=None',
]


def save_image(path, value=0, size=(12, 10)):
  path.parent.mkdir(parents=True, exist_ok=True)
  pixels = np.full((*size, 3), value, np.uint8)
  Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path):
  """Eight images of each of two classes, and two of each to evaluate on."""
  for split, count in (('train', 8), ('val', 2)):
    for label, name in enumerate(('cat', 'dog')):
      for i in range(count):
        save_image(
            tmp_path / 'photos' / split / name / f'{i}.png', 200 * label + i
        )
  return tmp_path / 'photos'


def of_folder(folder):
  return [
      *LINEAR,
      '--config.data.source=folder',
      f'--config.data.path={folder}',
      '--config.data.eval_split=val',
      '--config.data.train_ops=decode|resize(8)|value_range(-1,1)',
      '--config.data.eval_ops=decode|resize(8)|value_range(-1,1)',
  ]


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(os.path.dirname(os.path.dirname(main.__file__)))
  handlers = [
      (s, signal.getsignal(s)) for s in (signal.SIGTERM, signal.SIGINT)
  ]

  def run(*args, workdir=tmp_path / 'run'):
    """Returns the exit code and the last line on stderr."""
    try:
      code = main.main([*args, f'--workdir={workdir}'])
    except SystemExit as e:  # argparse
      code = e.code
    captured = capsys.readouterr()
    assert 'Traceback' not in captured.err
    return code, captured.err.strip().splitlines()[-1:], captured.out

  yield run
  for number, handler in handlers:
    signal.signal(number, handler)


@pytest.mark.parametrize(
    'args, message',
    [
        (['--config=configs/nope.py'], "no config file 'configs/nope.py'"),
        ([f'--config={RECIPE},colour=red'], 'colour=red'),
        ([*LINEAR, '--config.batch_sise=3'], 'did you mean batch_size'),
        ([*LINEAR, '--config.model.wdith=3'], 'there is no model.wdith'),
        ([*LINEAR, '--config.total_steps=1e4'], "got str '1e4'"),
        ([*LINEAR, '--config.optimizer.b1=high'], 'b1 must be float'),
        ([*LINEAR, '--frobnicate'], 'unrecognized arguments: --frobnicate'),
        ([*LINEAR, 'stray'], 'unrecognized arguments: stray'),
        ([*LINEAR, '--flagfile=x'], 'unrecognized arguments: --flagfile=x'),
        ([*LINEAR, '--config.batch_size=10'], 'nearest: 8 or 16'),
        ([*LINEAR, '--config.batch_size=24', '--config.accum_steps=2'],
         'accum_steps=2'),
        ([f'--config={RECIPE}', '--config.model.num_groups=3'],
         '8 channels not divisible by 3 groups'),
        ([f'--config={RECIPE}', '--config.model.variant=R51x1'], 'R51x1'),
        ([*LINEAR, '--config.model.name=vit'], "'vit'"),
        ([*LINEAR, '--config.task=clasify'], "'clasify'"),
        ([*LINEAR, "--config.evaluators=fewshots,"], "'fewshots'"),
        ([*LINEAR, '--config.data.source=zip'], "'zip'"),
        ([*LINEAR, '--config.data.train_ops=value_rnge(0,1)'], 'value_range'),
        ([*LINEAR, '--config.data.train_ops=resize()'], 'resize'),
        ([*LINEAR, '--config.data.train_split=valid'], 'valid'),
        ([*LINEAR, '--config.schedule.warmup=3'], 'warmup'),
        ([*LINEAR, '--config.schedule.name=stair',
          '--config.schedule.boundaries=2,1'], 'boundaries'),
        ([*LINEAR, '--config.optimizer.lr_rules=(("nope/.*",1),(".*",1))'],
         'nope/.*'),
        ([*LINEAR, '--config.optimizer.decay_rules=(("head/kernel",1),)'],
         'head/bias'),
        ([*LINEAR, '--config.mesh.model=3'], 'mesh'),
        ([*LINEAR, '--config.platform=tpu'], "found 'cpu'"),
        ([*LINEAR, '--config.init_from=/nope.safetensors'], '/nope'),
        ([*LINEAR, '--config.init_from=README.md'], 'no .safetensors file'),
        ([*LINEAR, '--config.eval_only'], 'no checkpoint'),
        ([*LINEAR, '--config.model.num_classes=5'], 'less than the 10'),
        ([*LINEAR, '--config.ema_decay=5'], 'below 1'),
        ([*LINEAR, '--config.clip_norm=nan'], 'clip_norm'),
        ([*LINEAR, '--config.checkpoint.best_metric=acuracy'], "'acuracy'"),
        ([*LINEAR, '--config.sharding.rules=((".*", 5),)'], 'sharding.rules'),
        ([*LINEAR, '--config.phases=(1,)'], 'config.phases must be'),
        ([*LINEAR, '--config.phases=({"name": "a"}, {"name": "b",'
          ' "data.train_ops": "pad(2)|value_range(-1, 1)",'
          ' "data.eval_ops": "pad(2)|value_range(-1, 1)"})'],
         'phase a, before b'),
        (['--config=README.md'], 'a .py file'),
        ([*LINEAR, '--config.trace_steps=4,3'], 'trace_steps=(4, 3)'),
        ([*LINEAR, '--config.phases=({"name": "a"}, {"name": "a"})'],
         'name of its own'),
    ],
)
def test_mistakes_in_the_command(run, args, message):
  code, [line], _ = run(*args)
  assert code == 2, line
  assert message in line


def test_a_workdir_is_needed(capsys):
  assert main.main(LINEAR) == 2
  assert '--workdir is missing' in capsys.readouterr().err


def test_folders_that_cannot_be(run, photos):
  code, [line], _ = run(*of_folder(photos / 'nope'))
  assert code == 2 and str(photos / 'nope') in line
  (photos / 'train' / 'empty').mkdir()
  code, [line], _ = run(*of_folder(photos))
  assert code == 2 and 'empty' in line
  shutil.rmtree(photos / 'train' / 'empty')
  save_image(photos / 'val' / 'wolf' / '0.png')
  code, [line], _ = run(*of_folder(photos))
  assert code == 2 and "'wolf'" in line and 'training split' in line


def test_bad_images_of_the_evaluation_are_listed_too(run, photos, tmp_path):
  bad = photos / 'val' / 'dog' / '1.png'
  bad.write_bytes(b'')
  code, _, out = run(*of_folder(photos), '--config.data.bad_images=skip')
  assert code == 0 and 'num_examples 3' in out
  listed = (tmp_path / 'run' / 'bad_images.txt').read_text()
  assert listed == f'{bad}\n'


def test_a_bad_image_stops_the_run_or_is_listed(run, photos, tmp_path):
  bad = photos / 'train' / 'cat' / '3.png'
  bad.write_bytes(bad.read_bytes()[:40])
  code, [line], _ = run(*of_folder(photos))
  assert code == 1 and str(bad) in line
  code, _, out = run(
      *of_folder(photos), '--config.data.bad_images=skip',
      workdir=tmp_path / 'other',
  )
  assert code == 0 and 'skipped 1 bad images' in out
  listed = (tmp_path / 'other' / 'bad_images.txt').read_text()
  assert listed == f'{bad}\n'


def test_a_csv_label_out_of_range_names_the_record(run, photos, tmp_path):
  table = tmp_path / 'table'
  table.mkdir()
  images = sorted((photos / 'train').glob('*/*.png'))
  rows = [f'{path},{i % 2}' for i, path in enumerate(images)]
  (table / 'train.csv').write_text('path,label\n' + '\n'.join(rows) + '\n')
  (table / 'val.csv').write_text(f'path,label\n{images[0]},2\n')
  args = [*of_folder(table), '--config.data.source=csv']
  code, [line], _ = run(*args)
  assert code == 2 and str(images[0]) in line and '2' in line


def test_the_workdir_of_another_experiment(run, tmp_path):
  assert run(*LINEAR)[0] == 0
  before = (tmp_path / 'run' / 'config.json').read_bytes()
  code, [line], _ = run(*LINEAR, '--config.optimizer.learning_rate=0.5')
  assert code == 2 and 'optimizer.learning_rate: 0.1 -> 0.5' in line
  assert (tmp_path / 'run' / 'config.json').read_bytes() == before
  code, [line], _ = run(*LINEAR, '--config.total_steps=2')
  assert code == 2 and 'has checkpoint 3' in line
  assert 'already finished' in run(*LINEAR)[2]


def test_a_longer_run_goes_on_with_a_note_of_both_rates(run):
  assert run(*LINEAR)[0] == 0
  code, _, out = run(*LINEAR, '--config.total_steps=5')
  assert code == 0
  assert 'total_steps was 3 and is 5' in out
  assert 'going on from step 3' in out and 'done: 5 steps' in out


def test_another_optimizer_goes_on_with_a_new_state(run, tmp_path):
  assert run(*LINEAR)[0] == 0
  args = [*LINEAR, '--config.optimizer.name=adam', '--config.total_steps=6',
          '--config.schedule.name=constant', '--config.reset_optimizer']
  # The schedule is no part of the optimizer section.
  code, [line], _ = run(*args)
  assert code == 2 and 'schedule.name' in line
  args.remove('--config.schedule.name=constant')
  code, _, out = run(*args)
  assert code == 0 and 'going on from step 3' in out
  with open(tmp_path / 'run' / 'metrics.jsonl') as f:
    rows = [json.loads(line)['values'] for line in f]
  train = [r for r in rows if 'lr' in r]
  # The clock of the schedule goes on: cosine over steps 1 to 6 at step 3.
  rate = 0.1 * 0.5 * (1 + math.cos(math.pi * 2 / 5))
  assert train[3]['lr'] == pytest.approx(rate, rel=1e-5)
  # Adam's first step moves every parameter with a gradient by the rate.
  assert train[3]['update_norm'] > 10 * rate


def test_parameters_that_do_not_fit(run, tmp_path):
  assert run(*LINEAR)[0] == 0
  bit = [f'--config={RECIPE}', '--config.compilation_cache=None']
  code, [line], _ = run(
      *bit, f'--config.init_from={tmp_path / "run"}', workdir=tmp_path / 'b'
  )
  assert code == 2 and 'another model' in line


def test_a_nan_stops_the_run_and_names_the_step(run, tmp_path):
  args = [*LINEAR, '--config.total_steps=12', '--config.checkpoint.every=5',
          '--config.optimizer.learning_rate=1e38', '--config.schedule.warmup=6']
  code, [line], _ = run(*args)
  assert code == 1
  assert 'loss' in line and 'an update of norm inf' in line


# Orbax's thread that finds the disk full raises there too.
@pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)
def test_a_full_disk_keeps_the_last_good_checkpoint(run, tmp_path):
  assert run(*LINEAR)[0] == 0
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  # No file may grow beyond 20 kB: the parameters alone are 31 kB.
  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 1e9)
  try:
    code, [line], _ = run(*LINEAR, '--config.total_steps=6')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  assert code == 1 and 'checkpoint' in line and 'intact' in line
  checkpoints = str(tmp_path / 'run' / 'checkpoints')
  assert saved.complete_steps(checkpoints) == [3]
  assert run(*LINEAR, '--config.total_steps=6')[0] == 0
  assert saved.complete_steps(checkpoints) == [3, 6]


def test_a_step_without_room_says_what_to_try(run, monkeypatch):
  def refuse(lowered):
    raise jax.errors.JaxRuntimeError(
        'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory'
        ' in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded by 4.75G.'
    )

  monkeypatch.setattr(jax.stages.Lowered, 'compile', refuse)
  code, [line], _ = run(*LINEAR)
  assert code == 2
  assert '20.50 GiB of each device, which has 15.75 GiB' in line
  assert '--config.accum_steps=2 or --config.sharding.preset=zero1' in line
