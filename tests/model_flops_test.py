"""Operations of an example, by the config."""

import pytest

from bigtransfer import config as config_lib
from bigtransfer import model_flops
from configs import common


def make(name, **model):
  config = common.base()
  config.model.name = name
  for key, value in model.items():
    config.model[key] = value
  return config


def test_a_resnet_is_that_of_its_size():
  # 4.09 GMACs forward of ResNet-50 at 224 pixels (https://arxiv.org/abs/
  # 1512.03385 has 3.8e9 without the strides on 3x3), six operations in all.
  config = make('bit', num_classes=1000)
  flops = model_flops.train_flops(config, (224, 224, 3))
  assert flops == pytest.approx(6 * 4.09e9, rel=0.06)


def test_a_bert_predicts_words_in_pretraining_only():
  config = make('bert', variant='base', vocab_size=30522)
  config.data.seq_length, config.data.max_predictions = 128, 20
  tuned = model_flops.train_flops(config)
  config.data.kind = 'pretraining'
  # h v and h h of each prediction.
  head = 6 * 20 * (768 * 30522 + 768**2)
  assert model_flops.train_flops(config) - tuned == pytest.approx(head)
  # Six operations of 85 million weights and a word.
  assert tuned == pytest.approx(6 * 85e6 * 128, rel=0.03)


def test_nobody_has_counted_a_linear_model():
  assert model_flops.train_flops(make('linear'), (8, 8, 3)) is None


def test_steps_to_trace_are_a_pair():
  with pytest.raises((TypeError, ValueError), match='trace_steps'):
    config_lib.load('configs/quickstart.py', [('trace_steps', '3')])
