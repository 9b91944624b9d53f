"""Operations of BiT, counted by hand, against what XLA counts."""

import jax
import jax.numpy as jnp
import pytest

from bigtransfer.models import bit, bit_flops
from configs import common


def config(**values):
  c = common.base().model
  c.num_classes = 10
  for key, value in values.items():
    c[key] = value
  return c


def counted(c, shape):
  """XLA's count for the gradient of the sum of the logits, not compiled."""
  model = bit.build(c)
  batch = {'image': jax.ShapeDtypeStruct((1, *shape), jnp.float32)}
  params, state = jax.eval_shape(model.init, jax.random.key(0), batch)

  def loss(params, batch):
    outputs, _ = model.apply(params, state, batch, train=True)
    return jnp.sum(outputs['logits'])

  lowered = jax.jit(jax.grad(loss)).lower(params, batch)
  return lowered.cost_analysis()['flops']


@pytest.mark.parametrize(
    ('values', 'shape'),
    [
        ({'variant': 'R26x1', 'blocks': (1, 2, 1)}, (96, 64, 3)),
        ({'variant': 'R26x2', 'blocks': (1, 1), 'stem': 'small'}, (28, 28, 1)),
    ],
)
def test_count_is_that_of_xla(values, shape):
  # Without norms, so that hardly anything but convolutions is left. XLA leaves
  # out products with padding, 1 to 8 % here, and counts additions.
  c = config(norm='none', weight_standardization=False, **values)
  ratio = bit_flops.train_flops(c, shape) / counted(c, shape)
  assert 0.97 < ratio < 1.09


def test_r50x1_is_as_published():
  # 4.1e9 multiplications forward at 224 pixels (He et al. count the original,
  # whose stride is on the 1x1), three times two of that for training.
  flops = bit_flops.train_flops(config(num_classes=1000), (224, 224, 3))
  assert flops == pytest.approx(24.6e9, rel=0.02)
