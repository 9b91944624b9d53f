"""Batches and sizes of data that need not be there."""

import numpy as np
import pytest

from bigtransfer import config as config_lib
from bigtransfer import plan_data
from configs import bert_finetune, bit_pretrain, quickstart
from input_pipeline import kinds


def phase(config):
  return config_lib.phases(config)[0][1]


@pytest.mark.parametrize(
    'config',
    [quickstart.get_config(), bert_finetune.get_config('speeches')],
    ids=['images', 'sentences'],
)
def test_a_batch_and_its_set_are_as_the_data_has_them(config):
  data = kinds.open_data(config)
  config = phase(config)
  examples = plan_data.fill(config, plan_data.Asked())
  spec = {
      k: (tuple(shape), np.dtype(kind))
      for k, (shape, kind) in data.spec.items() if k != 'id'
  }
  assert plan_data.batch_spec(config) == spec
  assert examples == data.num_examples
  assert {k: config.model[k] for k in data.model_fields()} == (
      data.model_fields()
  )


@pytest.mark.parametrize(
    ('arg', 'examples', 'classes'),
    [
        # 99 % of 1,281,167; 14,197,122 less the first 51,200.
        ('R50x1', 1_268_355, 1000),
        ('R50x1,data=imagenet21k', 14_145_922, 21_843),
    ],
)
def test_published_sets_are_known_by_split(arg, examples, classes):
  config = phase(bit_pretrain.get_config(arg))
  assert plan_data.fill(config, plan_data.Asked()) == examples
  assert config.model.num_classes == classes
  image, _ = plan_data.batch_spec(config)['image']
  assert image == (4096, 224, 224, 3)


def test_what_nobody_knows_is_asked_for():
  config = phase(bit_pretrain.get_config('R50x1,data=folder'))
  with pytest.raises(ValueError, match='--num_classes'):
    plan_data.fill(config, plan_data.Asked())
  asked = plan_data.Asked(num_classes=5, num_examples=300)
  assert plan_data.fill(config, asked) == 300
  assert config.model.num_classes == 5


def test_an_image_of_unknown_size_is_refused():
  config = phase(bit_pretrain.get_config('R50x1'))
  config.data.train_ops = 'decode|value_range(-1, 1)'
  with pytest.raises(ValueError, match='train_ops'):
    plan_data.batch_spec(config)
