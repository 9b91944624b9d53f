"""What is said of a step that has no room."""

import types

import pytest

from bigtransfer import out_of_memory
from configs import bert_pretrain, bit_pretrain, common

# As libtpu 0.0.42 has them: of values that are too many, and of a program.
VALUES = (
    'RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in'
    ' memory space hbm. Used 20.50G of 15.75G hbm. Exceeded by 4.75G.\n\nMore.'
)
PROGRAM = (
    'RESOURCE_EXHAUSTED: TPU program size (1.5T) exceeds available HBM (15.48G)'
)


def phase(config, parts, **values):
  for key, value in values.items():
    config[key] = value
  program = types.SimpleNamespace(parts=parts)
  return types.SimpleNamespace(name='train', config=config, program=program)


@pytest.mark.parametrize(
    ('message', 'need', 'have'),
    [(VALUES, 20.5, 15.75), (PROGRAM, 1536, 15.48)],
)
def test_sizes_are_read_from_what_the_compiler_says(message, need, have):
  assert out_of_memory.sizes(message) == (
      round(need * 2**30), round(have * 2**30)
  )


def test_other_errors_stay_what_they_are():
  assert out_of_memory.sizes('INTERNAL: Used 3 of 4') is None
  assert out_of_memory.error('INTERNAL: a bug', None) is None


def test_what_to_try_is_named_from_cheap_to_dear():
  config = bit_pretrain.get_config('R50x1')
  text = str(out_of_memory.error(VALUES, phase(
      config, 8, batch_size=320, accum_steps=2)))
  assert 'phase train runs out of memory: it needs 20.50 GiB' in text
  assert 'which has 15.75 GiB (batch 320, accum_steps=2, 20 per' in text
  assert 'More' not in text
  assert (
      'try --config.accum_steps=4 or --config.model.remat=unit or'
      ' --config.sharding.preset=zero1; python -m bigtransfer.plan' in text
  )


@pytest.mark.parametrize(
    ('remat', 'expected'), [('none', 'dots'), ('dots', 'layer')]
)
def test_the_next_policy_is_that_of_the_model(remat, expected):
  config = bert_pretrain.get_config()
  config.model.remat = remat
  text = str(out_of_memory.error(VALUES, phase(config, 1, batch_size=2)))
  assert f'=2 or --config.model.remat={expected}; python' in text


def test_where_nothing_is_left_only_a_larger_slice_helps():
  config = common.base()
  config.model.remat = 'stage'
  text = str(out_of_memory.error(VALUES, phase(config, 1, batch_size=1)))
  assert 'try a larger slice; ' in text


def test_memory_that_runs_out_without_sizes_is_quoted():
  text = str(out_of_memory.error(
      'RESOURCE_EXHAUSTED: Attempting to reserve 5.81G.\nStack trace', None
  ))
  assert 'the job runs out of memory: RESOURCE_EXHAUSTED: Attempting' in text
  assert '--search' in text
  assert 'Stack' not in text
