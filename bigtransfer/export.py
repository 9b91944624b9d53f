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

from bigtransfer import (
    bert_interchange,
    distributed,
    files,
    pretrained,
    saved,
    trees,
    workdir,
)


def save(path: str, params: Any, metadata: Mapping[str, str] | None = None):
  """Writes nested dicts of arrays as a .safetensors file, in one move."""
  tensors = {k: np.ascontiguousarray(v) for k, v in trees.flatten(params)}
  safetensors_numpy.save_file(tensors, path + '.new', dict(metadata or {}))
  os.replace(path + '.new', path)


def load(path: str) -> tuple[Any, dict[str, str]]:
  """Returns what `save` wrote: nested dicts of NumPy arrays, metadata."""
  with safe_open(path, framework='numpy') as f:
    params = bert_interchange.unflatten({k: f.get_tensor(k) for k in f.keys()})
    return params, f.metadata() or {}


def initial_params(
    source: str, abstract: Any, *, model: Any = None, fresh: Any = None
) -> Any:
  """Reads parameters to start from.

  A BERT may come with other heads than the model's, as fine-tuning does: those
  that it lacks start as in `fresh`, those that the model lacks are left out.

  Args:
    source: a workdir, a checkpoint folder in one, or a .safetensors file; for
      a BERT also a folder or file as `pretrained.load` takes them.
    abstract: the parameters wanted, `jax.ShapeDtypeStruct`s with shardings.
    model: the `model` section.
    fresh: the model's parameters as initialized, for heads.

  Raises:
    FileNotFoundError: there is nothing at `source`.
    MismatchError: it does not fit; names the first difference.
  """
  if not files.exists(source):
    raise FileNotFoundError(f'config.init_from={source!r} does not exist')
  is_bert = model is not None and model.name == 'bert'
  folder, step = _checkpoint(source)
  if folder and not is_bert:
    return saved.restore_params(folder, step, abstract)[0]
  if folder:
    params, _ = saved.restore_params(folder, step)
  elif files.is_folder(source) and not is_bert:
    raise FileNotFoundError(
        f'config.init_from={source!r} is neither a workdir, nor a checkpoint'
        ' folder, nor a .safetensors file'
    )
  else:
    with files.here(source) as here:
      params = _of_others(source, here, model if is_bert else None)
  try:
    if is_bert and model.extend_positions:
      table = fresh['embeddings']['position']['embedding']
      params = pretrained.extend_positions(params, len(table), table)
    if is_bert:
      params = pretrained.fit(params, abstract, fresh, model)
    elif problem := trees.mismatch(params, abstract):
      raise ValueError(f'{problem}: it is of another model')
  except ValueError as e:
    raise saved.MismatchError(f'config.init_from={source!r} {e}') from e
  return jax.tree.map(
      lambda x, a: jax.device_put(x.astype(a.dtype), a.sharding),
      params,
      abstract,
  )


def _of_others(source, here, bert):
  """Reads what is no checkpoint of ours; `here` is where it lies by now."""
  if bert is not None:
    try:
      pretrained.check_config(here, bert)
      return pretrained.load(here)
    except ValueError as e:
      raise saved.MismatchError(f'config.init_from: {e}') from e
  try:
    return load(here)[0]
  except SafetensorError as e:
    raise saved.MismatchError(
        f'config.init_from={source!r} is no .safetensors file: {e}'
    ) from e


def _checkpoint(source):
  """Returns the folder of checkpoints that a path is about, and the step."""
  source = source.rstrip('/')
  folder, step = os.path.join(source, 'checkpoints'), None
  if os.path.basename(source).isdigit():
    folder, step = os.path.dirname(source), int(os.path.basename(source))
  return (folder, step) if files.is_folder(folder) else (None, None)


def main(argv=None) -> int:
  parser = argparse.ArgumentParser('python -m bigtransfer.export', description=(
      'Writes the parameters of a checkpoint as one .safetensors file.'))
  parser.add_argument('--workdir', required=True, help='of the run')
  parser.add_argument('--output', required=True, help='.safetensors file')
  parser.add_argument('--step', type=int, help='default: the newest')
  parser.add_argument(
      '--layout', choices=('own', 'hf', 'tf'), default='own',
      help="of a BERT also 'hf', a folder for Hugging Face's transformers, and"
      " 'tf', the names of Google's checkpoints",
  )
  args = parser.parse_args(argv)
  logging.set_verbosity(logging.ERROR)
  distributed.hush_libtpu()
  try:
    files.check(args.workdir, '--workdir')
    if '://' in args.output:
      raise ValueError(f'--output={args.output}; accepted: a local path')
    folder = os.path.dirname(os.path.abspath(args.output))
    if not os.path.isdir(folder):
      raise FileNotFoundError(f'there is no folder {folder!r}')
    run = workdir.load(args.workdir)
    params, step = saved.restore_params(
        os.path.join(args.workdir, 'checkpoints'), args.step
    )
  except (OSError, ValueError) as e:
    print(f'error: {e}', file=sys.stderr)
    return 2
  model = run['config'].model
  if args.layout != 'own':
    if model.name != 'bert':
      print(
          f'error: --layout {args.layout} is for bert, and this is a'
          f' {model.name}',
          file=sys.stderr,
      )
      return 2
    try:
      pretrained.save(args.output, params, layout=args.layout, config=model)
    except ValueError as e:
      print(f'error: {e}', file=sys.stderr)
      return 2
    print(f'wrote the parameters of step {step} to {args.output}')
    return 0
  save(args.output, params, {
      'model': json.dumps(run['config'].model.to_dict()),
      'class_names': json.dumps(run['class_names']),
      'step': str(step),
  })
  print(f'wrote the parameters of step {step} to {args.output}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
