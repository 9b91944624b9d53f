"""The planner's command, on a tiny model and slice."""

import importlib.util
import json

import pytest

from bigtransfer import plan, planning

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
