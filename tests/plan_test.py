"""The planner's command, on a tiny model and slice."""

import importlib.util
import json
import pathlib
import re

import jax
import pytest

from bigtransfer import config as config_lib
from bigtransfer import (
  out_of_memory,
  plan,
  plan_data,
  plan_search,
  planning,
  program,
  topologies,
)

CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason="libtpu is not installed: pip install 'bigtransfer[plan]'",
)


def test_an_unknown_slice_is_wrong_use(capsys):
  code = plan.main([
      '--config', 'configs/bert_pretrain.py:tiny', '--topology', 'v3-100',
  ])
  assert code == 2
  assert 'v3-128' in capsys.readouterr().err.splitlines()[-1]


MEASURED = {
    'compile_seconds': 1.0, 'argument_bytes': 2**20, 'temporary_bytes': 2**20,
    'peak_bytes': 2**21, 'hbm_bytes': 1e6, 'executed_flops': 1e9,
    'collectives': [], 'layers': {'stem': 2**19},
}


@pytest.fixture
def run(monkeypatch):
  """The command with CPU devices for a slice, and an idle compiler.

  It says of more than 2 examples a pass that they do not fit.
  """

  def compile_(built, lowered):
    del lowered
    if built.config.batch_size > 2 * built.parts:
      return {'needed_bytes': 2**35, 'available_bytes': 2**34}
    return MEASURED

  monkeypatch.setattr(planning, '_compile', compile_)
  monkeypatch.setattr(
      planning, '_devices', lambda t: jax.devices()[: t.num_devices]
  )
  return lambda *args: plan.main([
      '--config', 'configs/quickstart.py:smoke', '--topology', 'v3-8',
      '--no_cache', *args,
  ])


def row(text, label):
  """The cells of the first table in `text`."""
  line = next(x for x in text.splitlines() if x.strip().startswith(label))
  return re.split(r'  +', line.strip())[1:]


def test_slices_stand_side_by_side(run, capsys):
  assert run('--compare', 'v5litepod-8') == 0
  text = capsys.readouterr().out
  assert row(text, 'slice') == ['v3-8', 'v5litepod-8']
  assert row(text, 'chips, devices') == ['4, 8', '8, 8']
  # 1e9 operations at 61.5e12 and 197e12 a second.
  assert row(text, 'ms: arithmetic') == ['0.0163', '0.00508']


def test_arguments_of_the_recipe_stand_side_by_side(run, capsys):
  assert run('--compare', 'smoke=false', '--config.batch_size=8') == 0
  found = row(capsys.readouterr().out, 'parameters')
  assert len(found) == 2 and found[0] != found[1]


@pytest.mark.parametrize('asked', [True, False])
def test_what_fits_is_searched_for(run, asked, tmp_path, monkeypatch, capsys):
  """Where it is asked for, and where the job does not fit."""
  path, jobs = tmp_path / 'plan.json', []

  def search(job, topology, cache):
    jobs.append((job.name, topology.name, cache))
    fits = MEASURED | {
        'accum_steps': 4, 'per_device': 2, 'remat': 'unit',
        'sharding': 'as given', 'step_seconds': 0.25,
    }
    return [
        plan_search.Found('none', None, None),
        plan_search.Found('unit', 2, fits),
        plan_search.Found('stage', plan_search.FAR, None),
    ]

  monkeypatch.setattr(plan_search, 'search', search)
  more = ['--search'] if asked else ['--config.batch_size=64']
  assert run(*more, '--json', str(path)) == (0 if asked else 1)
  text = capsys.readouterr()
  assert jobs == [('train', 'v3-8', False)]
  # Each policy, the settings that fit, and the best of all.
  settings = "accum_steps=4 (2 per device and pass), model.remat='unit': peak"
  for line in (
      "  remat='none': nothing per device",
      "  remat='unit': about 2 at most",
      "  remat='stage': 4,096 or more",
      f'    batch {16 if asked else 64}: {settings}',
      f'  best: {settings}',
  ):
    assert line in text.out
  written = json.loads(path.read_text())
  (found,) = written['search'].items()
  assert found[0] == 'train v3-8'
  assert [f['largest'] for f in found[1]] == [None, 2, plan_search.FAR]
  assert written['plans'][0]['fits'] is asked
  assert ('it needs 32.00 GiB' in text.err) is not asked


def test_nothing_is_searched_for_unasked(run, capsys):
  assert run() == 0
  assert 'what fits' not in capsys.readouterr().out


def test_a_picture_is_drawn_where_asked(run, tmp_path, capsys):
  path = tmp_path / 'plan.png'
  assert run('--picture', str(path)) == 0
  assert path.read_bytes().startswith(b'\x89PNG')
  assert f'picture: {path}' in capsys.readouterr().out


# Recipes as they are for their targets. Of each, `smoke` is compiled for the
# smallest slice of the same generation.
RECIPES = {
    'bert_finetune.py': '',
    'bert_pretrain.py': 'recipe=lamb_64k_32k',
    'bit_pretrain.py': '',
    'quickstart.py': '',
}


def test_every_recipe_is_planned():
  found = {p.name for p in CONFIGS.glob('*.py')
           if 'def get_config' in p.read_text()}
  assert found == set(RECIPES)


@pytest.mark.slow
@pytest.mark.usefixtures('no_cache')
@needs_compiler
@pytest.mark.parametrize('recipe', RECIPES)
def test_a_recipe_compiles_for_its_generation(recipe):
  spec = f'configs/{recipe}:{RECIPES[recipe]}'
  target = topologies.parse(config_lib.load(spec).target)
  smallest = topologies.slices(target.chip.name)[0]
  batch = ('batch_size', str(8 * smallest.num_devices))
  config = config_lib.load(f'{spec},smoke', [batch])
  # The second phase is the first with longer sequences.
  job = planning.jobs(config, plan_data.Asked())[0]
  [p] = planning.plan([planning.build(job, smallest)], cache=False)
  assert p['fits'] and p['topology'] == smallest.name
  assert p['state_bytes'] < p['peak_bytes'] < p['usable_bytes']
  # Work of the model, sums and norms, and what remat repeats.
  ratio = p['executed_flops'] * p['devices'] / p['model_flops']
  assert 0.85 < ratio < 1.15
  # Gradients are added up once, in float32.
  if smallest.num_devices > 1:
    assert p['collective_bytes'] == pytest.approx(4 * p['parameters'], rel=0.05)


@needs_compiler
@pytest.mark.parametrize(
    'spec',
    [
        'bert_finetune.py:sst2',
        'bert_finetune.py:speeches',
        'bert_pretrain.py:large,recipe=lamb_64k_32k',
        'bert_pretrain.py:large,recipe=lamb_untuned,batch=512',
        'bert_pretrain.py:large,recipe=mlperf,batch=6144',
        'bert_pretrain.py:tiny',
        'bit_pretrain.py:R50x1',
        'quickstart.py',
    ],
)
def test_a_recipe_is_laid_over_the_slice_that_it_names(spec):
  config = config_lib.load(f'configs/{spec}')
  topology = topologies.parse(config.target)
  for job in planning.jobs(config, plan_data.Asked()):
    # Meshes, batches and layouts are checked; nothing is compiled.
    built = planning.build(job, topology)
    assert job.config.batch_size % built.parts == 0
    assert planning.held(built.program.abstract) < topology.chip.usable / 2


@pytest.mark.usefixtures('no_cache')
@needs_compiler
def test_a_job_that_does_not_fit_says_how_much_it_needs():
  # 2,048 times the batch on one chip: refused within seconds.
  config = config_lib.load(
      'configs/quickstart.py:smoke', [('batch_size', str(2**21))]
  )
  job = planning.jobs(config, plan_data.Asked())[0]
  built = planning.build(job, topologies.parse('v5litepod-1'))
  found = planning.plan([built], cache=False)[0]
  assert not found['fits']
  assert found['available_bytes'] == pytest.approx(15.75 * 2**30, rel=1e-3)
  assert found['needed_bytes'] > 2 * found['available_bytes']
  # The same where the step is compiled to be run.
  phase = program.Phase(job.name, built.config, None, 0, built.program)
  with pytest.raises(out_of_memory.OutOfMemoryError, match=(
      r'phase train .* which has 15.75 GiB \(batch 2,097,152, .*'
      r'try --config.accum_steps=2 or --config.model.remat=unit; '
  )):
    program.compile_step(phase).result()


def test_a_mesh_that_does_not_fit_is_wrong_use(capsys):
  pytest.importorskip('libtpu')
  code = plan.main([
      '--config', 'configs/quickstart.py', '--topology', 'v5litepod-4',
      '--config.mesh.data=3',
  ])
  assert code == 2
  assert 'data=3' in capsys.readouterr().err.splitlines()[-1]


def test_without_the_compiler_its_package_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(topologies.MissingCompilerError, match='bigtransfer.plan'):
    topologies.devices(topologies.parse('v3-8'))
