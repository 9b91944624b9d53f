"""Arguments of recipes, and every recipe as it stands."""

import glob
import os

import pytest

from bigtransfer import config as config_lib
from configs import common

CONFIGS = os.path.dirname(common.__file__)
RECIPES = sorted(
    path
    for path in glob.glob(os.path.join(CONFIGS, '*.py'))
    if 'def get_config(' in open(path).read()
)


@pytest.mark.parametrize(
    'arg, expected',
    [
        (None, ('R50x1', 'folder', 1, False)),
        ('', ('R50x1', 'folder', 1, False)),
        ('R101x3', ('R101x3', 'folder', 1, False)),
        ('R101x3,csv', ('R101x3', 'csv', 1, False)),
        ('data=csv,n=3,smoke', ('R50x1', 'csv', 3, True)),
        ('smoke=false,variant=a=b', ('a=b', 'folder', 1, False)),
    ],
)
def test_parse_arg(arg, expected):
  args = common.parse_arg(
      arg, variant='R50x1', data=('folder', 'csv'), n=1, smoke=False
  )
  assert tuple(args.values()) == expected


@pytest.mark.parametrize(
    'arg', ['x=1', 'data=zip', 'n=1.5', 'a,b,c', 'n=1,n=2', 'smoke=perhaps']
)
def test_parse_arg_refuses(arg):
  with pytest.raises(ValueError, match='argument'):
    common.parse_arg(
        arg, variant='R50x1', data=('folder', 'csv'), smoke=False, n=1
    )


@pytest.mark.parametrize('path', RECIPES, ids=os.path.basename)
@pytest.mark.parametrize('arg', ['', ':smoke'])
def test_recipes_load_resolve_and_survive_json(path, arg):
  config = config_lib.load(path + arg)
  assert config.is_locked
  resolved = config_lib.resolve(config, 1_281_167)
  assert isinstance(resolved.total_steps, int)
  again = config_lib.from_json(config_lib.to_json(resolved))
  assert again == resolved


def test_bit_pretrain_is_the_recipe_of_the_paper():
  path = os.path.join(CONFIGS, 'bit_pretrain.py')
  config = config_lib.load(f'{path}:R50x1,data=imagenet2012')
  c = config_lib.resolve(config, 1_281_167)
  assert c.total_steps == round(90 * 1_281_167 / 4096)
  assert c.optimizer.learning_rate == pytest.approx(0.48)
  assert c.schedule.warmup == 5000
  assert c.schedule.boundaries == (9384, 18767, 25023)
  assert (c.optimizer.weight_decay, c.optimizer.decay) == (1e-4, 'coupled')


@pytest.mark.parametrize(
    'data, lr, decay',
    [('imagenet2012', 1.6, 1.6e-3), ('imagenet21k', 0.48, 4.8e-4)],
)
def test_bit_pretrain_has_the_presets_of_big_vision(data, lr, decay):
  path = os.path.join(CONFIGS, 'bit_pretrain.py')
  config = config_lib.load(f'{path}:R50x1,data={data},recipe=big_vision')
  c = config_lib.resolve(config, 1_281_167)
  assert c.optimizer.learning_rate == pytest.approx(lr)
  assert c.optimizer.weight_decay == pytest.approx(decay)
  assert c.clip_norm == 1.0
