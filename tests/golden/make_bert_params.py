"""Writes bert_base_params.txt: path, shape and dtype of every parameter.

    python tests/golden/make_bert_params.py

Checkpoints and rules address parameters by these names, so the file changes
only together with a note in the changelog on how to convert old ones.
"""

import pathlib

import jax
import ml_collections

from bigtransfer import trees
from bigtransfer.models import bert

PATH = pathlib.Path(__file__).with_name('bert_base_params.txt')


def section(**changes) -> ml_collections.ConfigDict:
  """The model section of BERT-base, pretrained on the released vocabulary."""
  config = ml_collections.ConfigDict({
      'name': 'bert', 'variant': 'base', 'vocab_size': 30522,
      'vocab_multiple': 1, 'max_position': 512,
      'extend_positions': False, 'dropout': 0.1,
      'attention_dropout': 0.1, 'mixing': 'attention', 'head': 'pretraining',
      'gelu': 'tanh', 'layers': 0, 'hidden': 0, 'heads': 0, 'ffn': 0,
      'dtype': 'float32', 'remat': 'none', 'scan': True, 'num_classes': None,
  })  # fmt: skip
  with config.ignore_type():
    config.update(changes)
  return config


def lines(**changes) -> list[str]:
  model = bert.build(section(**changes))
  params, _ = jax.eval_shape(model.init, jax.random.key(0), {})
  return [f'{p} {a.shape} {a.dtype}' for p, a in trees.flatten(params)]


if __name__ == '__main__':
  PATH.write_text('\n'.join(lines()) + '\n', encoding='utf-8')
