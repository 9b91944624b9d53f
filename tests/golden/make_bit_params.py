"""Writes bit_r50x1_params.txt: path, shape and dtype of every parameter.

    python tests/golden/make_bit_params.py

Checkpoints and rules address parameters by these names, so the file changes
only together with a note in the changelog on how to convert old ones.
"""

import pathlib

import jax

from bigtransfer import trees
from bigtransfer.models import bit
from configs import common

PATH = pathlib.Path(__file__).with_name('bit_r50x1_params.txt')


def lines() -> list[str]:
  config = common.base().model
  config.variant, config.num_classes = 'R50x1', 1000
  batch = {'image': jax.ShapeDtypeStruct((1, 224, 224, 3), 'float32')}
  params, _ = jax.eval_shape(bit.build(config).init, jax.random.key(0), batch)
  return [f'{p} {a.shape} {a.dtype}' for p, a in trees.flatten(params)]


if __name__ == '__main__':
  PATH.write_text('\n'.join(lines()) + '\n', encoding='utf-8')
