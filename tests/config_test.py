"""Loading, resolving and comparing configs."""

import ml_collections
import pytest

from bigtransfer import config as config_lib
from bigtransfer import durations
from configs import common


@pytest.mark.parametrize(
    'duration, expected',
    [
        (300, 300),
        (0, 0),
        ('300 steps', 300),
        ('1 step', 1),
        ('2 epochs', 20),  # 2 * 1005 / 100 = 20.1
        ('2.5 epochs', 25),
        ('50000 examples', 500),
        ('10%', 100),
        ('0%', 0),
        ('0.001 epochs', 1),  # More than nothing was asked for.
    ],
)
def test_durations(duration, expected):
  got = durations.steps(
      duration, batch_size=100, num_examples=1005, total_steps=1000
  )
  assert got == expected and isinstance(got, int)


def test_durations_without_what_they_refer_to():
  with pytest.raises(ValueError, match='training set'):
    durations.steps('1 epoch', batch_size=1)
  config = common.base()
  config.total_steps = '10%'
  with pytest.raises(ValueError, match="total_steps='10%'"):
    config_lib.resolve(config, 100)


def test_resolve_gives_steps_and_the_scaled_rate():
  config = common.base()
  config.batch_size = 512
  config.total_steps = '4 epochs'
  config.schedule.warmup = '10%'
  config.schedule.boundaries = ('1 epoch', 30)
  config.checkpoint.keep_every = '1 epoch'
  config.optimizer.learning_rate = 0.1
  config.optimizer.batch_rule = 'linear'
  c = config_lib.resolve(config, 5120)
  assert (c.total_steps, c.schedule.warmup) == (40, 4)
  assert c.schedule.boundaries == (10, 30)
  assert c.checkpoint.keep_every == 10
  assert c.optimizer.learning_rate == pytest.approx(0.2)
  assert config.optimizer.learning_rate == 0.1  # The given one is as it was.
  assert c.is_locked


def test_phases_are_copies_with_their_overrides():
  config = common.base()
  config.phases = (
      {'name': 'short', 'total_steps': 10},
      {'name': 'long', 'optimizer.learning_rate': 1, 'batch_size': 7},
  )
  (a, short), (b, long) = config_lib.phases(config)
  assert (a, b) == ('short', 'long')
  assert (short.total_steps, short.batch_size) == (10, 128)
  assert (long.optimizer.learning_rate, long.batch_size) == (1.0, 7)
  assert config.batch_size == 128
  [(name, only)] = config_lib.phases(common.base())
  assert name == 'train' and only.phases == ()


@pytest.mark.parametrize(
    'phases, message',
    [
        (({'total_steps': 3},), 'name of its own'),
        (({'name': 'a'}, {'name': 'a'}), 'name of its own'),
        (({'name': 'a', 'totl_steps': 3},), 'did you mean total_steps'),
        (({'name': 'a', 'batch_size': 'x'},), 'batch_size must be int'),
        (3, 'must be tuple of dicts'),
    ],
)
def test_impossible_phases_are_refused(phases, message):
  config = common.base()
  with pytest.raises(
      (ValueError, TypeError, KeyError, AttributeError), match=message
  ):
    config.phases = phases
    config_lib.phases(config)


def test_json_keeps_tuples_and_none():
  config = ml_collections.ConfigDict(
      {'a': (), 'b': ((1, 2), (3, 4)), 'c': {'d': {'e': None}}, 'f': 1e-4}
  )
  again = config_lib.from_json(config_lib.to_json(config))
  assert again.to_dict() == config.to_dict()
  assert isinstance(again.b[0], tuple)
  with pytest.raises(TypeError, match=r'config.a\[1\] is a set'):
    config_lib.to_json(ml_collections.ConfigDict({'a': (1, {2})}))


def test_differences_are_named_but_free_ones_are_not():
  def of(batch, log, keep):
    config = common.base()
    config.batch_size, config.log_every = batch, log
    config.checkpoint.keep = keep
    config.model.remat = ('none', 'unit')[keep - 1]
    config.optimizer.momentum = batch / 1000
    return ml_collections.ConfigDict(config.to_dict())

  lines = config_lib.differences(of(100, 1, 1), of(200, 2, 2))
  assert lines == ['batch_size: 100 -> 200', 'optimizer.momentum: 0.1 -> 0.2']


def test_load(tmp_path):
  path = tmp_path / 'recipe.py'
  with pytest.raises(FileNotFoundError, match='recipe.py'):
    config_lib.load(str(path))
  path.write_text('x = 1\n')
  with pytest.raises(ValueError, match='get_config'):
    config_lib.load(str(path))
  path.write_text(
      'from configs import common\n'
      'def get_config(arg):\n'
      '  c = common.base()\n'
      "  c.seed = common.parse_arg(arg, seed=1)['seed']\n"
      '  return c\n'
  )
  config = config_lib.load(f'{path}:seed=5', [('batch_size', '64')])
  assert (config.seed, config.batch_size) == (5, 64)


def test_a_preset_fills_what_nobody_gave():
  config = common.base()
  config.optimizer.name = 'lamb'
  config.optimizer.preset = 'deepspeed'
  config.optimizer.ratio_max = None  # As the default is, but given.
  config.phases = ({'name': 'a'}, {'name': 'b', 'optimizer.preset': 'nvlamb'})
  (_, a), (_, b) = config_lib.phases(config)
  assert (a.optimizer.ratio_min, a.optimizer.ratio_max) == (0.01, None)
  assert not a.optimizer.bias_correction
  assert b.optimizer.pre_norm and b.optimizer.bias_correction
  assert b.optimizer.ratio_min is None
  config.optimizer.name = 'adamw'
  with pytest.raises(ValueError, match="preset='deepspeed' is for lamb"):
    config_lib.phases(config)


def test_the_warmup_of_untuned_lamb_follows_the_batch():
  """3,125 steps (You et al.), a fifth of the 15,625 of a batch of 32K."""
  config = common.base()
  config.optimizer.learning_rate = 6.25e-4
  config.optimizer.base_batch_size = 512
  config.optimizer.batch_rule = 'lamb_epoch_warmup'
  config.schedule.warmup = '0.3125%'
  config.total_steps = '512000000 examples'
  for batch_size, rate in ((512, 6.25e-4), (4096, 1.77e-3), (32768, 5e-3)):
    config.batch_size = batch_size
    resolved = config_lib.resolve(config, 10**6)
    assert resolved.schedule.warmup == 3125
    assert resolved.optimizer.learning_rate == pytest.approx(rate, rel=2e-3)
  config.schedule.warmup = 3125
  with pytest.raises(ValueError, match='warmup=3125.*percentage'):
    config_lib.resolve(config, 10**6)


def test_the_command_line_holds_in_every_phase():
  config = common.base()
  config.phases = ({'name': 'a', 'batch_size': 8}, {'name': 'b', 'seed': 3})
  config.override('batch_size', '4')
  assert [c.batch_size for _, c in config_lib.phases(config)] == [4, 4]
  assert [c.seed for _, c in config_lib.phases(config)] == [0, 3]


def layout(**values):
  config = common.base()
  config.model.name = 'bert'
  for key, value in values.items():
    section, _, key = key.partition('_')
    config[section][key] = value
  [(_, phase)] = config_lib.phases(config)
  return phase


def test_a_layout_preset_fills_what_nobody_gave():
  phase = layout(sharding_preset='fsdp')
  assert phase.sharding.rules == (('.*', 'fsdp'),)
  assert (phase.mesh.data, phase.mesh.fsdp) == (1, -1)
  assert phase.model.remat == 'dots'
  phase = layout(sharding_preset='zero1')
  assert phase.sharding.opt_state_rules == (('.*', 'zero'),)
  assert (phase.mesh.data, phase.mesh.fsdp) == (-1, 1)
  rules = (('.*/kernel', 'fsdp'), ('.*', 'replicate'))
  phase = layout(
      sharding_preset='fsdp', sharding_rules=rules, mesh_fsdp=4,
      model_remat='layer',
  )
  assert phase.sharding.rules == rules
  assert (phase.mesh.data, phase.mesh.fsdp) == (-1, 4)
  assert phase.model.remat == 'layer'


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        (dict(sharding_preset='tensor'), r'config.mesh.model=1; accepted: 2'),
        (
            dict(sharding_preset='fsdp', mesh_fsdp=1),
            r"preset='fsdp' splits over the fsdp axis, and config.mesh.fsdp=1",
        ),
        (
            dict(sharding_preset='tensor', model_name='bit', mesh_model=2),
            "'tensor' is for bert",
        ),
        (dict(sharding_preset='zero3'), "'zero1', 'fsdp', 'tensor'"),
        (dict(sharding_rules=(('.*', 'zero'),)), "value: 'replicate', 'fsdp'"),
    ],
)
def test_a_layout_that_splits_nothing_is_refused(values, message):
  with pytest.raises(ValueError, match=message):
    layout(**values)
