"""Parameters on their own: exported, and taken as a start.

`python -m bigtransfer.export --workdir runs/photos --output photos.safetensors`
writes the parameters of a checkpoint (the moving average where there is one)
under their paths; `--config.init_from=photos.safetensors` starts from them.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors_numpy

from bigtransfer import checkpoint, trees, workdir


def save(path: str, params: Any, metadata: Mapping[str, str] | None = None):
  """Writes nested dicts of arrays as a .safetensors file, in one move."""
  tensors = {k: np.ascontiguousarray(v) for k, v in trees.flatten(params)}
  safetensors_numpy.save_file(tensors, path + '.new', dict(metadata or {}))
  os.replace(path + '.new', path)


def load(path: str) -> tuple[Any, dict[str, str]]:
  """Returns what `save` wrote: nested dicts of NumPy arrays, metadata."""
  params = {}
  with safe_open(path, framework='numpy') as f:
    for name in f.keys():
      *parents, last = name.split('/')
      node = params
      for parent in parents:
        node = node.setdefault(parent, {})
      node[last] = f.get_tensor(name)
    return params, f.metadata() or {}


def initial_params(source: str, abstract: Any) -> Any:
  """Reads parameters to start from.

  Args:
    source: a workdir, a checkpoint folder in one, or a .safetensors file.
    abstract: the parameters wanted, `jax.ShapeDtypeStruct`s with shardings.

  Raises:
    FileNotFoundError: there is nothing at `source`.
    MismatchError: it does not fit; names the first difference.
  """
  if not os.path.exists(source):
    raise FileNotFoundError(f'config.init_from={source!r} does not exist')
  if os.path.isfile(source):
    try:
      params, _ = load(source)
    except SafetensorError as e:
      raise checkpoint.MismatchError(
          f'config.init_from={source!r} is no .safetensors file: {e}'
      ) from e
    problem = trees.mismatch(params, abstract)
    if problem:
      raise checkpoint.MismatchError(
          f'config.init_from={source!r} {problem}: it is of another model'
      )
    return jax.tree.map(
        lambda x, a: jax.device_put(x.astype(a.dtype), a.sharding),
        params,
        abstract,
    )
  source = source.rstrip('/')
  folder, step = os.path.join(source, 'checkpoints'), None
  if os.path.basename(source).isdigit():
    folder, step = os.path.dirname(source), int(os.path.basename(source))
  if not os.path.isdir(folder):
    raise FileNotFoundError(
        f'config.init_from={source!r} is neither a workdir, nor a checkpoint'
        ' folder, nor a .safetensors file'
    )
  return checkpoint.restore_params(folder, step, abstract)[0]


def main(argv=None) -> int:
  parser = argparse.ArgumentParser('python -m bigtransfer.export', description=(
      'Writes the parameters of a checkpoint as one .safetensors file.'))
  parser.add_argument('--workdir', required=True, help='of the run')
  parser.add_argument('--output', required=True, help='.safetensors file')
  parser.add_argument('--step', type=int, help='default: the newest')
  args = parser.parse_args(argv)
  logging.set_verbosity(logging.ERROR)
  try:
    folder = os.path.dirname(os.path.abspath(args.output))
    if not os.path.isdir(folder):
      raise FileNotFoundError(f'there is no folder {folder!r}')
    run = workdir.load(args.workdir)
    params, step = checkpoint.restore_params(
        os.path.join(args.workdir, 'checkpoints'), args.step
    )
  except (FileNotFoundError, ValueError) as e:
    print(f'error: {e}', file=sys.stderr)
    return 2
  save(args.output, params, {
      'model': json.dumps(run['config'].model.to_dict()),
      'class_names': json.dumps(run['class_names']),
      'step': str(step),
  })
  print(f'wrote the parameters of step {step} to {args.output}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
