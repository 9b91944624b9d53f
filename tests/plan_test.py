"""The planner's command, on a tiny model and slice."""

import ast
import importlib.util
import json

import pytest

from bigtransfer import config as config_lib
from bigtransfer import (
  plan,
  plan_cache,
  plan_data,
  planning,
  topologies,
)

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason="libtpu is not installed: pip install 'bigtransfer[plan]'",
)


def test_out_of_memory_is_read_from_what_the_compiler_says():
  message = (
      'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory'
      ' in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded by 4.75G.'
  )
  assert planning.out_of_memory(message) == (
      round(20.5 * 2**30), round(15.75 * 2**30)
  )
  assert planning.out_of_memory('something else') is None


def test_an_unknown_slice_is_wrong_use(capsys):
  code = plan.main([
      '--config', 'configs/bert_pretrain.py:tiny', '--topology', 'v3-100',
  ])
  assert code == 2
  assert 'v3-128' in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.usefixtures('no_cache')
@needs_compiler
def test_a_tiny_job_is_planned(tmp_path, capsys):
  code = plan.main([
      '--config', 'configs/bert_pretrain.py:tiny', '--topology', 'v4-8',
      '--json', str(tmp_path / 'plan.json'),
      '--picture', str(tmp_path / 'plan.png'),
  ])
  assert code == 0, capsys.readouterr().err
  with open(tmp_path / 'plan.json') as f:
    plans = json.load(f)['plans']
  assert [p['phase'] for p in plans] == ['length128', 'length512']
  assert all(p['fits'] for p in plans)
  # Parameters, two moments and little else, all in float32.
  for p in plans:
    assert p['state_bytes'] == pytest.approx(12 * p['parameters'], rel=0.01)
  assert (tmp_path / 'plan.png').stat().st_size > 1000


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


def test_what_was_compiled_is_read_back(tmp_path):
  made = []

  def make():
    made.append(1)
    return {'peak_bytes': 1}

  for expected in ({'peak_bytes': 1}, {'peak_bytes': 1, 'cached': True}):
    assert plan_cache.cached(str(tmp_path), 'a', make) == expected
  assert plan_cache.has('a', str(tmp_path)) and len(made) == 1
  plan_cache.cached(None, 'a', make)
  assert len(made) == 2


def test_the_cache_knows_every_source_of_a_step():
  """What `program` imports is hashed, or shows in the resolved config."""
  hashed = {p.relative_to(plan_cache._PACKAGE).as_posix()
            for glob in plan_cache._SOURCES
            for p in plan_cache._PACKAGE.glob(glob)}
  seen, left = set(), ['program.py']
  while left:
    path = left.pop()
    if path in seen:
      continue
    seen.add(path)
    tree = ast.parse(plan_cache._PACKAGE.joinpath(path).read_text())
    for node in ast.walk(tree):
      if not isinstance(node, ast.ImportFrom) or not node.module:
        continue
      if node.module.partition('.')[0] == 'bigtransfer':
        folder = '/'.join(node.module.split('.')[1:])
        left += [
            name for name in (
                f'{folder}.py',
                *(f'{folder}/{a.name}.py'.lstrip('/') for a in node.names),
            ) if plan_cache._PACKAGE.joinpath(name).is_file()
        ]
  assert len(seen) > 10
  assert seen <= hashed


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
