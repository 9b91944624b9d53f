"""Where the memory of a device is drawn to go."""

import types

import jax
import jax.numpy as jnp
import pytest
from PIL import Image

from bigtransfer import plan_picture


def leaf(*shape):
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


PARAMS = {
    'encoder': {'layers': {'query': {'kernel': leaf(24, 8)}}},
    'head': {'kernel': leaf(100), 'bias': leaf(10)},
}
STATE = types.SimpleNamespace(
    params=PARAMS,
    opt_state={'mu': PARAMS, 'nu': PARAMS, 'count': leaf()},
    ema=(),
)
BUILT = types.SimpleNamespace(program=types.SimpleNamespace(abstract=STATE))
PLAN = {
    'fits': True, 'phase': 'length128', 'topology': 'v3-8', 'per_device': 32,
    'peak_bytes': 9000, 'usable_bytes': 20000, 'activation_bytes': 5000,
    'layers': {'encoder/query': 3000, 'loss': 700, 'step': 300},
}


def test_each_byte_is_of_the_layer_that_it_is_for():
  layers = plan_picture.breakdown(BUILT, PLAN)
  assert layers['encoder/query'] == {
      'parameters': 4 * 24 * 8, 'moments': 2 * 4 * 24 * 8, 'activations': 3000,
  }
  assert layers['head'] == {'parameters': 4 * 110, 'moments': 2 * 4 * 110}
  assert layers['loss'] == {'activations': 700}
  # What is in no layer, and what the compiler has beyond them.
  assert layers['gradients, the rest'] == {
      'activations': 300 + 1000, 'moments': 4,
  }


def test_all_of_it_is_state_and_activations():
  layers = plan_picture.breakdown(BUILT, PLAN)
  total = sum(sum(kinds.values()) for kinds in layers.values())
  assert total == 3 * 4 * (24 * 8 + 110) + 4 + 5000


def test_a_picture_has_a_part_for_each_phase_that_fits(tmp_path):
  sizes = []
  for plans in ([PLAN], [PLAN, PLAN], [PLAN, PLAN | {'fits': False}]):
    path = tmp_path / f'{len(sizes)}.png'
    plan_picture.draw([(BUILT, plan) for plan in plans], str(path))
    with Image.open(path) as image:
      sizes.append(image.size)
  one, two, again = sizes
  assert two == (2 * one[0], one[1]) and again == one


def test_nothing_to_draw_is_an_error(tmp_path):
  with pytest.raises(ValueError, match='no phase fits'):
    plan_picture.draw([(BUILT, {'fits': False})], str(tmp_path / 'a.png'))
