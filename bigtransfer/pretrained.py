"""Parameters of models trained elsewhere, and ours for use elsewhere.

BERT: safetensors files with the names of TensorFlow (`python -m
input_pipeline.tf_checkpoint` writes them from Google's checkpoints), of
Hugging Face, or of this project.
"""

import dataclasses
import json
import os
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors_numpy

from bigtransfer import bert_interchange, trees
from bigtransfer.models import bert, bert_config

WEIGHTS, CONFIG = 'model.safetensors', 'config.json'
_WORDS = ('embeddings/word/embedding', 'mlm/bias')
_LAYOUTS = ('hf', 'tf', 'own')


def load(
    name_or_path: str, *, head: str = 'keep', num_classes: int | None = None
) -> dict[str, Any]:
  """Returns the parameters of a BERT as nested dicts of float32 NumPy arrays.

  Args:
    name_or_path: a .safetensors file, or a folder with `model.safetensors`.
    head: 'keep' all heads of the file; 'drop' them; 'zero' drops them and
      adds a `head` of zeros for `num_classes`.
    num_classes: outputs of that head.

  Raises:
    FileNotFoundError: there is nothing at the path.
    ValueError: it does not hold the parameters of a BERT; names what it has
      or lacks.
  """
  if head not in ('keep', 'zero', 'drop'):
    raise ValueError(f"head={head!r}: expected 'keep', 'zero' or 'drop'")
  if (head == 'zero') != bool(num_classes):
    raise ValueError(
        f"head={head!r} with num_classes={num_classes}: head='zero' needs a "
        'number of classes, the others take none'
    )
  params = _read(weights_file(name_or_path))
  if head == 'keep':
    return params
  for name in bert_interchange.HEADS:
    params.pop(name, None)
  if head == 'zero':
    hidden = params['pooler']['bias'].size
    params['head'] = {
        'kernel': np.zeros((hidden, num_classes), np.float32),
        'bias': np.zeros(num_classes, np.float32),
    }
  return params


def weights_file(path: str) -> str:
  """Returns the .safetensors file that a file or folder is about.

  Raises FileNotFoundError, saying what to do about other kinds of files.
  """
  if os.path.basename(path).startswith('BiT-') or path.endswith('.npz'):
    raise ValueError(
        f'{path!r}: the released BiT weights cannot be read; expected a BERT, '
        'as a .safetensors file or a folder with one'
    )
  if os.path.isdir(path) and os.path.exists(os.path.join(path, WEIGHTS)):
    return os.path.join(path, WEIGHTS)
  if os.path.isfile(path):
    return path
  if os.path.exists(path + '.index'):
    raise ValueError(
        f'{path!r} is a TensorFlow checkpoint; convert it first: '
        f'python -m input_pipeline.tf_checkpoint {path} bert.safetensors'
    )
  raise FileNotFoundError(
      f'{path!r} is neither a .safetensors file nor a folder with {WEIGHTS}'
  )


def save(
    path: str, params: Any, *, layout: str = 'hf', config: Any = None
) -> None:
  """Writes a BERT for use elsewhere.

  Args:
    path: layout 'hf': a folder, made if need be, that transformers loads;
      'tf', 'own': a .safetensors file with TensorFlow's or our own names.
    params: nested dicts of arrays.
    layout: see above.
    config: the `model` section. Padding of the vocabulary is cut off.

  Raises:
    ValueError: an unknown layout, or parameters that are not of `config`.
  """
  if layout not in _LAYOUTS:
    raise ValueError(f'layout={layout!r}: expected one of {_LAYOUTS}')
  params = _resize_vocab(params, config.vocab_size, config)
  _check_sizes(params, config)
  if layout == 'own':
    tensors = dict(trees.flatten(params))
  elif layout == 'tf':
    tensors = bert_interchange.to_tf(params)
  else:
    text = json.dumps(bert_config.to_json(config), indent=2)
    name = 'qa_outputs' if config.head == 'span' else 'classifier'
    tensors = bert_interchange.to_hf(params, head=name)
    if config.head == 'none':
      # transformers' bare model has no prefix.
      tensors = {k.removeprefix('bert.'): v for k, v in tensors.items()}
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, CONFIG), 'w', encoding='utf-8') as f:
      f.write(text)
    path = os.path.join(path, WEIGHTS)
  tensors = {k: np.ascontiguousarray(v) for k, v in tensors.items()}
  # transformers refuses files that do not say so.
  safetensors_numpy.save_file(tensors, path + '.new', {'format': 'pt'})
  os.replace(path + '.new', path)


def check_config(path: str, config: Any) -> None:
  """Compares a `model` section with the config.json beside the weights.

  Shapes do not show how many heads there are, nor which GELU it is.

  Raises:
    ValueError: they describe different networks; names the keys to set.
  """
  folder = path if os.path.isdir(path) else os.path.dirname(path)
  names = [os.path.join(folder, name) for name in (CONFIG, 'bert_config.json')]
  found = next(filter(os.path.exists, names), None)
  if found is None:
    return
  with open(found, encoding='utf-8') as f:
    values = json.load(f)
  if 'num_hidden_layers' not in values:
    return  # Of something else, such as a run.
  theirs = bert_config.from_json(values)
  ours = dataclasses.asdict(bert.size(config))
  wrong = [
      f'--config.model.{key}={theirs[key]}'
      for key in ('heads', 'mixing', 'gelu')
      if theirs.get(key, ours[key]) != ours[key]
  ]
  if wrong:
    raise ValueError(f'{found} is of another network: {" ".join(wrong)}')


def extend_positions(params: Any, rows: int, fresh: Any = None) -> Any:
  """Returns parameters with a position table of `rows` rows.

  The rows there are stay exactly as they are; the new ones are those of
  `fresh`, a table of `rows` rows, or zeros, to be trained.

  Raises ValueError where that would take rows away.
  """
  table = np.asarray(params['embeddings']['position']['embedding'])
  if rows < len(table):
    raise ValueError(
        f'a position table of {len(table)} rows cannot be extended to {rows}'
    )
  if fresh is None:
    fresh = np.zeros((rows, table.shape[1]), table.dtype)
  table = np.concatenate([table, np.asarray(fresh)[len(table) : rows]])
  embeddings = params['embeddings'] | {'position': {'embedding': table}}
  return params | {'embeddings': embeddings}


def fit(params: Any, wanted: Any, fresh: Any, config: Any) -> Any:
  """Returns `params` made into the tree `wanted`, to start training from.

  Heads that are missing come from `fresh`, heads that are not wanted are left
  out, and the vocabulary is padded as the model's is.

  Args:
    params: nested dicts of arrays, with or without heads.
    wanted: the model's parameters, arrays or shapes.
    fresh: the model's parameters as initialized.
    config: the `model` section.

  Raises:
    ValueError: a difference in what is no missing head; names the first.
  """
  rows = len(wanted['embeddings']['word']['embedding'])
  params = _resize_vocab(params, rows, config)
  for name in bert_interchange.HEADS:
    if name not in wanted:
      params.pop(name, None)
    elif name not in params:
      params[name] = fresh[name]
  if problem := trees.mismatch(params, wanted):
    raise ValueError(f'{problem}: it is of another model')
  return params


def _resize_vocab(params, rows, config):
  """Returns a copy with word tables of `rows`, padded by zeros or cut.

  Only from or to the vocabulary's own size: all else is another vocabulary.
  """
  multiple = config.vocab_multiple
  padded = -(-config.vocab_size // multiple) * multiple
  flat = dict(trees.flatten(params))
  for path in _WORDS:
    if path not in flat:
      continue
    array = flat[path]
    if len(array) not in (config.vocab_size, padded):
      raise ValueError(
          f'has {path} of {len(array)} rows, but '
          f'model.vocab_size={config.vocab_size}'
          + (f' padded to {padded}' if padded != config.vocab_size else '')
      )
    if len(array) != rows:
      array = np.asarray(array)[: config.vocab_size]
      padding = [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1)
      flat[path] = np.pad(array, padding)
  return bert_interchange.unflatten(flat)


def _check_sizes(params, config):
  """Compares what both say; exported files would load as another model."""
  words, hidden = params['embeddings']['word']['embedding'].shape
  size = bert.size(config)
  expected = {
      'vocab_size': (words, config.vocab_size),
      'hidden': (hidden, size.hidden),
      'max_position': (
          len(params['embeddings']['position']['embedding']),
          config.max_position,
      ),
  }
  for stack in params['encoder'].values():
    kernel = stack['intermediate']['kernel']
    if size.mixing != 'hybrid':
      expected['layers'] = len(kernel), size.layers
    expected['ffn'] = kernel.shape[-1], size.ffn
  for key, (found, wanted) in expected.items():
    if found != wanted:
      raise ValueError(
          f'parameters with {key}={found}, but a model section with {wanted}'
      )


def _read(path):
  try:
    with safe_open(path, framework='numpy') as f:
      tensors = {name: f.get_tensor(name) for name in f.keys()}
  except SafetensorError as e:
    raise ValueError(f'{path!r} is no .safetensors file: {e}') from e
  layout = bert_interchange.detect(tensors)
  if layout is None:
    raise ValueError(
        f'{path!r} does not hold a BERT: it has {sorted(tensors)[:5]}...'
    )
  read = {
      'hf': bert_interchange.from_hf,
      'tf': bert_interchange.from_tf,
      'own': bert_interchange.unflatten,
  }
  try:
    params = read[layout](tensors)
  except ValueError as e:
    raise ValueError(f'{path!r}: {e}') from e
  return jax.tree.map(lambda x: x.astype(np.float32), params)
