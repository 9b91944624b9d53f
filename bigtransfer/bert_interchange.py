"""Names of BERT parameters elsewhere: TensorFlow's and Hugging Face's.

TensorFlow names are those of google-research/bert (`modeling.py`,
`run_pretraining.py`, `run_classifier.py`, `run_squad.py`); Hugging Face ones
those of transformers' `modeling_bert.py`. Ours are converted by way of the
former. Trees hold NumPy arrays.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bigtransfer import trees

# Ours, without the last component, to TensorFlow's.
_LAYER = {
    'query': 'attention/self/query',
    'key': 'attention/self/key',
    'value': 'attention/self/value',
    'attention_output': 'attention/output/dense',
    'attention_norm': 'attention/output/LayerNorm',
    'intermediate': 'intermediate/dense',
    'output': 'output/dense',
    'output_norm': 'output/LayerNorm',
}
_MODULES = {
    'embeddings/norm': 'bert/embeddings/LayerNorm',
    'pooler': 'bert/pooler/dense',
    'mlm/transform': 'cls/predictions/transform/dense',
    'mlm/norm': 'cls/predictions/transform/LayerNorm',
}
_TENSORS = {
    'embeddings/word/embedding': 'bert/embeddings/word_embeddings',
    'embeddings/position/embedding': 'bert/embeddings/position_embeddings',
    'embeddings/segment/embedding': 'bert/embeddings/token_type_embeddings',
    'mlm/bias': 'cls/predictions/output_bias',
    'nsp/kernel': 'cls/seq_relationship/output_weights',
    'nsp/bias': 'cls/seq_relationship/output_bias',
    'head/kernel': 'output_weights',
    'head/bias': 'output_bias',
}
# [classes, hidden] in the files, [hidden, classes] here.
_TRANSPOSED = {'nsp/kernel', 'head/kernel'}
HEADS = ('mlm', 'nsp', 'head')
_OPTIMIZER = re.compile(
    r'.*/(adam|lamb)_[mv](_\d+)?|.*/Adam(_\d+)?|global_step|beta[12]_power'
)
_SQUAD = 'cls/squad/'
# What transformers calls the heads of fine-tuned models.
_HF_HEADS = ('classifier', 'qa_outputs')
_HF_IGNORED = re.compile(r'(bert\.)?embeddings\.position_ids')
_HF_TIED = {
    'cls.predictions.decoder.weight': 'bert/embeddings/word_embeddings',
    'cls.predictions.decoder.bias': 'cls/predictions/output_bias',
}


def detect(names: Any) -> str | None:
  """Returns whose names these are: 'own', 'tf', 'hf', or None."""
  names = set(names)
  if 'embeddings/word/embedding' in names:
    return 'own'
  if 'bert/embeddings/word_embeddings' in names:
    return 'tf'
  hf = 'embeddings.word_embeddings.weight'
  return 'hf' if {hf, 'bert.' + hf} & names else None


def from_tf(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Returns our tree of a TensorFlow checkpoint's arrays by name.

  States of optimizers are left out. Heads may be missing, nothing else.

  Raises:
    ValueError: lists names that are missing or unknown, or names the first
      tensor whose shape does not fit the others.
  """
  tensors = {
      name.removeprefix(_SQUAD): value
      for name, value in tensors.items()
      if not _OPTIMIZER.fullmatch(name)
  }
  found = (re.match(r'bert/encoder/layer_(\d+)/', n) for n in tensors)
  layers = 1 + max((int(m[1]) for m in found if m), default=-1)
  names = _names(layers)
  _check_names(tensors, names, layers)
  flat = {}
  for path, many in names:
    if many[0] in tensors:
      flat[path] = _stack([np.asarray(tensors[n]) for n in many], path, many)
  _check_shapes(flat)
  return unflatten(flat)


def to_tf(params: Any) -> dict[str, np.ndarray]:
  """Returns arrays by TensorFlow name, the inverse of `from_tf`.

  Raises ValueError for parameters that BERT does not have, such as those of
  an encoder that mixes by Fourier transforms.
  """
  flat = dict(trees.flatten(params))
  kernel = flat.get('encoder/layers/query/kernel')
  names = dict(_names(0 if kernel is None else len(kernel)))
  unknown = [path for path in flat if path not in names]
  if unknown or kernel is None:
    raise ValueError(
        f'these layouts know no {unknown or "layers without attention"}: '
        "expected the parameters of model.name='bert' with mixing='attention'"
    )
  tensors = {}
  for path, value in flat.items():
    value = np.asarray(value)
    if path.startswith('encoder/layers/'):
      tensors.update(zip(names[path], value, strict=True))
    else:
      transposed = path in _TRANSPOSED
      tensors[names[path][0]] = value.T if transposed else value
  return tensors


def from_hf(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Returns our tree of arrays by Hugging Face name, with or without `bert.`.

  Raises ValueError as `from_tf` does, and for an output table that is not
  the table of words, to which ours is tied.
  """
  renamed, tied = {}, {}
  for name, value in tensors.items():
    if _HF_IGNORED.fullmatch(name):
      continue
    if name in _HF_TIED:
      tied[name] = value
    else:
      tf_name, transpose = _hf_to_tf(name)
      renamed[tf_name] = value.T if transpose else value
  for name, value in tied.items():
    if not np.array_equal(value, renamed.setdefault(_HF_TIED[name], value)):
      raise ValueError(f'{name} differs from {_HF_TIED[name]}: expected ties')
  return from_tf(renamed)


def to_hf(params: Any, *, head: str = 'classifier') -> dict[str, np.ndarray]:
  """Returns arrays by Hugging Face name, the inverse of `from_hf`.

  `head` is what the head of a fine-tuned model is called: 'classifier', or
  'qa_outputs' where it is that of spans.
  """
  tensors = {}
  for name, value in to_tf(params).items():
    name = re.sub(r'^output_(weights|bias)', rf'{head}/output_\1', name)
    *modules, last = name.split('/')
    modules = [re.sub(r'^layer_(\d+)', r'layer.\1', m) for m in modules]
    value = value.T if last == 'kernel' else value
    if last.endswith('_embeddings'):
      modules.append(last)
    kind = 'bias' if last in ('bias', 'beta', 'output_bias') else 'weight'
    tensors['.'.join([*modules, kind])] = np.ascontiguousarray(value)
  return tensors


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
  """Returns nested dicts of {'a/b': leaf}."""
  tree = {}
  for path, leaf in flat.items():
    *parents, last = path.split('/')
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = leaf
  return tree


def _is_head(path):
  return path.split('/')[0] in HEADS


def _check_names(tensors, names, layers):
  """Raises ValueError for names of the body or of a head that is not whole."""
  begun = {p.split('/')[0] for p, many in names if many[0] in tensors}
  missing, known = [], set()
  for path, many in names:
    known.update(many)
    if not _is_head(path) or path.split('/')[0] in begun:
      missing += [n for n in many if n not in tensors]
  unknown = [n for n in tensors if n not in known]
  if missing or unknown or not layers:
    raise ValueError(
        f'not the tensors of a BERT of {layers} layers: missing '
        f'{missing or "none"}, unknown {unknown or "none"}'
    )


def _names(layers):
  """Returns pairs of our path and its TensorFlow names, one per layer."""
  pairs = [(path, [name]) for path, name in _TENSORS.items()]
  for ours, theirs in _MODULES.items():
    pairs += [(f'{ours}/{k}', [f'{theirs}/{v}']) for k, v in _leaves(ours)]
  for ours, theirs in _LAYER.items():
    for k, v in _leaves(ours):
      names = [f'bert/encoder/layer_{i}/{theirs}/{v}' for i in range(layers)]
      pairs.append((f'encoder/layers/{ours}/{k}', names))
  return pairs


def _leaves(module):
  if module.endswith('norm'):
    return [('scale', 'gamma'), ('bias', 'beta')]
  return [('kernel', 'kernel'), ('bias', 'bias')]


def _stack(arrays, path, names):
  for name, array in zip(names, arrays, strict=True):
    if array.shape != arrays[0].shape:
      raise ValueError(
          f'{name} has shape {array.shape}, but {names[0]} {arrays[0].shape}'
      )
  if path.startswith('encoder/layers/'):
    return np.stack(arrays)
  return arrays[0].T if path in _TRANSPOSED else arrays[0]


def _check_shapes(flat):
  """Compares shapes with those that hidden, inner size and words imply."""
  words, hidden = flat['embeddings/word/embedding'].shape
  layers, _, inner = flat['encoder/layers/intermediate/kernel'].shape
  for path, array in flat.items():
    module, leaf = path.split('/')[-2:]
    inputs = outputs = hidden
    if module == 'intermediate':
      outputs = inner
    elif module == 'output':
      inputs = inner
    elif module in ('nsp', 'head'):
      outputs = 2 if module == 'nsp' else array.shape[-1]
    shape = (inputs, outputs) if leaf == 'kernel' else (outputs,)
    if leaf == 'embedding':
      shape = (2 if module == 'segment' else len(array), hidden)
    elif path == 'mlm/bias':
      shape = (words,)
    if path.startswith('encoder/layers/'):
      shape = (layers, *shape)
    if array.shape != shape:
      raise ValueError(f'{path} has shape {array.shape}, expected {shape}')


def _hf_to_tf(name):
  """Returns the TensorFlow name and whether the array is to be transposed."""
  *modules, kind = name.split('.')
  if modules and modules[0] in _HF_HEADS:
    return {'weight': 'output_weights'}.get(kind, 'output_bias'), False
  if modules[:1] != ['bert'] and modules[:1] != ['cls']:
    modules.insert(0, 'bert')
  joined = re.sub(r'/layer/(\d+)', r'/layer_\1', '/'.join(modules))
  last = modules[-1]
  if last.endswith('_embeddings'):
    return joined, False
  if last == 'LayerNorm':
    # Files from before 2019 say gamma and beta.
    kind = {'weight': 'gamma', 'bias': 'beta'}.get(kind, kind)
    return f'{joined}/{kind}', False
  if joined == 'cls/predictions':
    return f'{joined}/output_{kind}', False
  if joined == 'cls/seq_relationship':
    return f'{joined}/output_{"weights" if kind == "weight" else kind}', False
  if kind == 'weight':
    return f'{joined}/kernel', True
  return f'{joined}/{kind}', False
