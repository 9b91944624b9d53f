"""TensorFlow checkpoints as .safetensors files with the same names.

python -m input_pipeline.tf_checkpoint bert_model.ckpt bert.safetensors

Nothing but this needs TensorFlow to read the released BERT weights.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import numpy as np
from safetensors import numpy as safetensors_numpy

from input_pipeline.host import tf


def read(path: str) -> dict[str, np.ndarray]:
  """Returns the arrays of a checkpoint by name, without what is text.

  (TensorFlow 2 describes its objects there.)

  Args:
    path: what `.index` and `.data-00000-of-00001` were added to.

  Raises:
    FileNotFoundError: there is no such checkpoint.
    ValueError: it cannot be read.
  """
  if not tf.io.gfile.exists(path + '.index'):
    raise FileNotFoundError(
        f'there is no {path}.index: expected the path of a TensorFlow '
        'checkpoint without its last suffix, such as bert_model.ckpt'
    )
  try:
    reader = tf.train.load_checkpoint(path)
    types = reader.get_variable_to_dtype_map()
    names = sorted(name for name in types if types[name] != tf.string)
    return {name: np.asarray(reader.get_tensor(name)) for name in names}
  except (tf.errors.OpError, RuntimeError) as e:
    raise ValueError(f'{path} cannot be read: {e}') from e


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      'python -m input_pipeline.tf_checkpoint',
      description='Writes the arrays of a TensorFlow checkpoint as one'
      ' .safetensors file, by the same names.',
  )
  parser.add_argument('checkpoint', help='such as bert_model.ckpt')
  parser.add_argument('output', help='.safetensors file')
  args = parser.parse_args(argv)
  try:
    folder = os.path.dirname(os.path.abspath(args.output))
    if not os.path.isdir(folder):
      raise FileNotFoundError(f'there is no folder {folder!r}')
    tensors = read(args.checkpoint)
    if not tensors:
      raise ValueError(f'{args.checkpoint} holds no arrays')
  except (OSError, ValueError) as e:
    print(f'error: {e}', file=sys.stderr)
    return 2
  tensors = {k: np.ascontiguousarray(v) for k, v in tensors.items()}
  safetensors_numpy.save_file(tensors, args.output + '.new')
  os.replace(args.output + '.new', args.output)
  print(f'wrote {len(tensors)} arrays to {args.output}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
