"""The batch of a config and the size of its data, without the data.

Shapes follow from the config alone. What only the data can tell (classes,
words, number of examples) is taken from the config, from what is asked for,
or from the published sizes below.
"""

import ast
import re
from typing import Any, NamedTuple

import numpy as np


class Asked(NamedTuple):
  """What the options of the planner say of the data; None = nothing."""

  num_examples: int | None = None
  num_classes: int | None = None
  vocab_size: int | None = None


class Known(NamedTuple):
  """A published training set; `shape` where its images are arrays."""

  num_examples: int
  num_classes: int
  shape: tuple[int, ...] | None = None


# Splits as TFDS has them. ImageNet-21k is the release of autumn 2011.
IMAGES = {
    ('imagenet2012', 'train'): Known(1_281_167, 1000),
    ('imagenet21k', 'full'): Known(14_197_122, 21_843),
    ('cifar10', 'train'): Known(50_000, 10, (32, 32, 3)),
    ('cifar100', 'train'): Known(50_000, 100, (32, 32, 3)),
    ('oxford_iiit_pet', 'train'): Known(3_680, 37),
    ('oxford_flowers102', 'train'): Known(1_020, 102),
    ('fashion_mnist', 'train'): Known(10_000, 10, (28, 28, 1)),
}
SENTENCES = {
    'cola': Known(8_551, 2),
    'sst2': Known(67_349, 2),
    'mrpc': Known(3_668, 2),
    'stsb': Known(5_749, 1),
    'qqp': Known(363_849, 2),
    'mnli': Known(392_702, 3),
    'qnli': Known(104_743, 2),
    'rte': Known(2_490, 2),
    'speeches': Known(16_971, 2),
}
# Of the uncased BERT that Google released, and of the speeches that ship.
BERT_VOCAB, SPEECHES_VOCAB = 30_522, 8_000
# The operation that says how large an image is, by its last number.
_SIZED = ('inception_crop', 'random_crop', 'central_crop', 'resize')


def fill(config: Any, asked: Asked) -> int | None:
  """Sets what the model needs of the data; returns the number of examples.

  Returns None where nobody knows it: a config in steps needs none.

  Raises:
    ValueError: the model needs something that nobody knows; names the option.
  """
  data, known = config.data, _known(config)
  if data.kind == 'images':
    needs = {'num_classes': known and known.num_classes}
  else:
    own = data.vocab == 'speeches'
    needs = {'vocab_size': SPEECHES_VOCAB if own else BERT_VOCAB}
    if data.kind == 'sentences':
      needs['num_classes'] = known and known.num_classes
  for key, value in needs.items():
    value = getattr(asked, key) or config.model[key] or value
    if value is None:
      raise ValueError(
          f'config.model.{key}=None: only the data tells, and'
          f' {_name(config)} is not known here; give --{key}'
      )
    config.model[key] = value
  if asked.num_examples or not known:
    return asked.num_examples
  if data.kind == 'images':
    return _part(known.num_examples, data.train_split)
  return known.num_examples


def batch_spec(config: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
  """Returns {name: (global shape, dtype)} of a training batch.

  Raises ValueError for images whose size no operation of the config sets.
  """
  data, b = config.data, config.batch_size
  whole, real = np.dtype('int32'), np.dtype('float32')
  if data.kind == 'images':
    return {
        'image': ((b, *_image_shape(config)), real),
        'label': ((b,), whole),
        'mask': ((b,), real),
    }
  tokens = ('input_ids', 'input_mask', 'segment_ids')
  spec = {key: ((b, data.seq_length), whole) for key in tokens}
  if data.kind == 'pretraining':
    masked = (b, data.max_predictions)
    spec |= {
        'masked_lm_positions': (masked, whole),
        'masked_lm_ids': (masked, whole),
        'masked_lm_weights': (masked, real),
        'next_sentence_labels': ((b,), whole),
    }
  elif data.kind == 'squad':
    spec |= {k: ((b,), whole) for k in ('start_positions', 'end_positions')}
  else:
    spec['label'] = ((b,), real if _regression(data) else whole)
  return spec | {'mask': ((b,), real)}


def _known(config):
  data = config.data
  if data.kind == 'images':
    split = re.sub(r'\[.*\]', '', data.train_split)
    if data.source in ('tfds', 'embedded'):
      return IMAGES.get((data.name, split))
    return None
  if data.kind != 'sentences':
    return None
  known = SENTENCES.get(data.task)
  if data.examples_per_class and known:
    count = data.examples_per_class * known.num_classes
    known = known._replace(num_examples=min(count, known.num_examples))
  return known


def _regression(data):
  return data.regression or data.task == 'stsb'


def _name(config):
  data = config.data
  if data.kind == 'sentences':
    return f'config.data.task={data.task!r}'
  return f'config.data.source={data.source!r}, name={data.name!r}'


def _part(count, split):
  """Applies the slice of a TFDS split: train[:99%], full[51200:]."""
  match = re.search(r'\[(-?\d*)(%?):(-?\d*)(%?)\]', split)
  if not match:
    return count
  ends = []
  for number, percent, default in (
      (match[1], match[2], 0), (match[3], match[4], count)
  ):
    at = default if not number else int(number)
    at = round(at * count / 100) if number and percent else at
    ends.append(max(0, count + at) if at < 0 else min(at, count))
  return max(0, ends[1] - ends[0])


def _image_shape(config):
  """Height, width and channels behind the operations of the config."""
  known = _known(config)
  height, width, channels = known.shape if known and known.shape else (0, 0, 3)
  for item in config.data.train_ops.split('|'):
    name, _, rest = item.strip().partition('(')
    if name == 'pad':
      size = ast.literal_eval(rest.rstrip(')'))
      height, width = height and height + 2 * size, width and width + 2 * size
    elif name.removeprefix('decode_') in _SIZED:
      call = ast.parse(item.strip(), mode='eval').body
      value = call.args[0] if call.args else call.keywords[0].value
      size = ast.literal_eval(value)
      height, width = (size, size) if isinstance(size, int) else size
  if not height:
    raise ValueError(
        f'config.data.train_ops={config.data.train_ops!r}: no operation sets'
        f' the size of an image ({", ".join(_SIZED)})'
    )
  return height, width, channels
