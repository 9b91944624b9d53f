"""A BERT's config.json, as Google and transformers write it, and ours."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bigtransfer.models import bert

_GELUS = {'gelu': 'erf', 'gelu_new': 'tanh', 'gelu_pytorch_tanh': 'tanh'}
# Of the `model` section, and of a config.json.
_KEYS = {
    'layers': 'num_hidden_layers',
    'hidden': 'hidden_size',
    'heads': 'num_attention_heads',
    'ffn': 'intermediate_size',
    'vocab_size': 'vocab_size',
    'max_position': 'max_position_embeddings',
    'dropout': 'hidden_dropout_prob',
    'attention_dropout': 'attention_probs_dropout_prob',
}
_ARCHITECTURES = {
    'pretraining': 'BertForPreTraining',
    'classification': 'BertForSequenceClassification',
    'span': 'BertForQuestionAnswering',
    'none': 'BertModel',
}


def from_json(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what a BERT config.json says, as keys of the `model` section.

  Google's bert_config.json has no `model_type`, and its 'gelu' is the tanh
  approximation; that of transformers is the exact one.

  Raises ValueError for a key that asks for another network.
  """
  gelus = _GELUS | ({} if 'model_type' in values else {'gelu': 'tanh'})
  for key, default, accepted in (
      ('model_type', 'bert', ('bert',)),
      ('hidden_act', 'gelu', tuple(gelus)),
      ('position_embedding_type', 'absolute', ('absolute',)),
      ('layer_norm_eps', 1e-12, (1e-12,)),
      ('type_vocab_size', 2, (2,)),
  ):
    value = values.get(key, default)
    if value not in accepted:
      raise ValueError(
          f'config.json: {key}={value!r}, expected one of {accepted}'
      )
  layers, hidden = values['num_hidden_layers'], values['hidden_size']
  section = {k: values[v] for k, v in _KEYS.items() if v in values}
  return section | {
      'name': 'bert',
      'variant': f'L{layers}_H{hidden}',
      'gelu': gelus[values.get('hidden_act', 'gelu')],
      'mixing': 'attention',
  }


def to_json(config: Any) -> dict[str, Any]:
  """Returns the config.json of transformers for a `model` section.

  Raises ValueError for an encoder that transformers' BERT is not.
  """
  size = bert.size(config)
  if size.mixing != 'attention':
    raise ValueError(
        f'model.mixing={size.mixing!r}: only attention has a config.json'
    )
  known = dict(config.items()) | dataclasses.asdict(size)
  values = {theirs: known[ours] for ours, theirs in _KEYS.items()}
  if config.head == 'classification':
    names = {i: f'LABEL_{i}' for i in range(config.num_classes)}
    values |= {
        'id2label': names, 'label2id': {v: k for k, v in names.items()}
    }
  return values | {
      'architectures': [_ARCHITECTURES[config.head]],
      'model_type': 'bert',
      'hidden_act': {'erf': 'gelu', 'tanh': 'gelu_new'}[size.gelu],
      'layer_norm_eps': 1e-12,
      'type_vocab_size': 2,
      'initializer_range': 0.02,
  }
