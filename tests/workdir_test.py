"""A workdir belongs to one experiment."""

import types

import pytest

from bigtransfer import config as config_lib
from bigtransfer import workdir
from configs import common


def phases_of(config, num_examples=100, class_names=('a', 'b')):
  data = types.SimpleNamespace(
      class_names=class_names,
      identity=lambda: {
          'num_examples': num_examples, 'image_shape': [28, 28, 1]
      },
  )
  return [
      types.SimpleNamespace(
          name=name, config=config_lib.resolve(given, num_examples), data=data
      )
      for name, given in config_lib.phases(config)
  ]


def test_it_can_be_opened_again_and_read(tmp_path):
  config = common.base()
  assert workdir.open_for(str(tmp_path), config, phases_of(config)) == []
  config.log_every = 7
  config.checkpoint.keep = 9
  assert workdir.open_for(str(tmp_path), config, phases_of(config)) == []
  run = workdir.load(str(tmp_path))
  assert run['config'].log_every == 7
  assert run['config'].optimizer.decay_rules == (
      ('.*/kernel', 1.0), ('.*', 0.0)
  )
  assert run['class_names'] == ['a', 'b'] and run['phase'] == 'train'
  assert run['image_shape'] == [28, 28, 1]


def test_another_experiment_is_refused_with_its_differences(tmp_path):
  config = common.base()
  workdir.open_for(str(tmp_path), config, phases_of(config))
  config.batch_size = 4
  config.model.variant = 'R101x1'
  before = (tmp_path / 'config.json').read_bytes()
  with pytest.raises(ValueError) as e:
    workdir.open_for(str(tmp_path), config, phases_of(config), step=1)
  assert 'batch_size: 128 -> 4' in str(e.value)
  assert "model.variant: 'R50x1' -> 'R101x1'" in str(e.value)
  assert (tmp_path / 'config.json').read_bytes() == before


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(num_examples=101), 'num_examples: 100 -> 101'),
        (dict(class_names=('a', 'c')), 'class names'),
    ],
)
def test_other_data_is_another_experiment(tmp_path, change, message):
  config = common.base()
  workdir.open_for(str(tmp_path), config, phases_of(config))
  with pytest.raises(ValueError, match=message):
    workdir.open_for(str(tmp_path), config, phases_of(config, **change), 1)


def test_a_longer_run_is_remarked_on(tmp_path):
  config = common.base()
  config.total_steps = 10
  workdir.open_for(str(tmp_path), config, phases_of(config))
  config.total_steps = 20
  [remark] = workdir.open_for(str(tmp_path), config, phases_of(config), 1)
  assert 'was 10 and is 20' in remark


def test_the_remark_shows_both_rates_and_a_shorter_run_is_refused(tmp_path):
  config = common.base()
  config.total_steps = 10
  config.optimizer.learning_rate = 1.0
  config.schedule.name = 'linear'
  workdir.open_for(str(tmp_path), config, phases_of(config))
  config.total_steps = 20
  [remark] = workdir.open_for(str(tmp_path), config, phases_of(config), step=5)
  assert 'was 0.5 and is 0.75' in remark
  config.total_steps = 4
  with pytest.raises(ValueError, match='has checkpoint 5.*at 4'):
    workdir.open_for(str(tmp_path), config, phases_of(config), step=5)
  assert workdir.load(str(tmp_path))['config'].total_steps == 20


def test_what_is_no_workdir_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match='no config.json'):
    workdir.load(str(tmp_path))


def test_without_a_checkpoint_anything_may_change(tmp_path):
  config = common.base()
  workdir.open_for(str(tmp_path), config, phases_of(config))
  config.batch_size = 4
  assert workdir.open_for(str(tmp_path), config, phases_of(config)) == []
  assert workdir.load(str(tmp_path))['config'].batch_size == 4


def test_the_optimizer_may_change_when_that_is_asked_for(tmp_path):
  config = common.base()
  workdir.open_for(str(tmp_path), config, phases_of(config))
  config.optimizer.name = 'adam'
  with pytest.raises(ValueError, match="optimizer.name: 'sgd' -> 'adam'"):
    workdir.open_for(str(tmp_path), config, phases_of(config), step=1)
  config.reset_optimizer = True
  workdir.open_for(str(tmp_path), config, phases_of(config), step=1)


def test_accumulation_in_a_phase_may_change(tmp_path):
  config = common.base()
  config.phases = ({'name': 'a', 'accum_steps': 4, 'seed': 1},)
  workdir.open_for(str(tmp_path), config, phases_of(config))
  config.phases = ({'name': 'a', 'accum_steps': 8, 'seed': 1},)
  assert workdir.open_for(str(tmp_path), config, phases_of(config), 1) == []
  config.phases = ({'name': 'a', 'accum_steps': 8, 'seed': 2},)
  with pytest.raises(ValueError, match='phases'):
    workdir.open_for(str(tmp_path), config, phases_of(config), 1)


def test_parameters_of_another_vocabulary_are_refused(tmp_path):
  def data(sha256):
    return types.SimpleNamespace(
        class_names=None, identity=lambda: {'vocab_sha256': sha256}
    )

  config = common.base()
  [phase] = phases_of(config)
  phase.data = data('one')
  workdir.open_for(str(tmp_path), config, [phase])
  workdir.check_vocabulary(str(tmp_path), data('one'))
  workdir.check_vocabulary(None, data('two'))
  with pytest.raises(ValueError, match='another vocabulary'):
    workdir.check_vocabulary(str(tmp_path), data('two'))
