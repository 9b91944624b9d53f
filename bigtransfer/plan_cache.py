"""What was compiled once is not compiled again.

A file per compilation, named by the hash of all that it depends on: the
resolved config, the slice, the versions of JAX and libtpu, and the sources of
what is compiled.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from bigtransfer import config as config_lib

FOLDER = '~/.cache/bigtransfer/plans'
_PACKAGE = pathlib.Path(__file__).parent
# What a step is made of, and what reads the compiled program.
_SOURCES = (
    'hlo.py', 'hlo_cost.py', 'hlo_memory.py', 'mesh.py', 'mixing.py',
    'models/*.py', 'norms.py', 'optim/*.py', 'out_of_memory.py', 'program.py',
    'reduction.py', 'sharding.py', 'state.py', 'tasks/*.py', 'train_step.py',
    'trees.py',
)


def key(config: Any, topology: Any) -> str:
  """Returns the hash of a resolved config on a slice."""
  parts = (
      config_lib.to_json(config),
      str(topology),
      jax.__version__,
      importlib.metadata.version('libtpu'),
      _sources(),
  )
  return hashlib.sha256('\n'.join(parts).encode()).hexdigest()[:32]


@functools.cache
def _sources():
  paths = sorted(p for glob in _SOURCES for p in _PACKAGE.glob(glob))
  digest = hashlib.sha256()
  for path in paths:
    digest.update(path.read_bytes())
  return digest.hexdigest()


def cached(
    folder: str | None, name: str, make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
  """Returns what `make` returns, from `folder` if it is there; None = off."""
  if folder is None:
    return make()
  path = pathlib.Path(os.path.expanduser(folder), f'{name}.json')
  if path.exists():
    return json.loads(path.read_text(encoding='utf-8')) | {'cached': True}
  value = make()
  path.parent.mkdir(parents=True, exist_ok=True)
  # Whole or not at all, also where two planners write the same.
  part = path.with_suffix(f'.{os.getpid()}')
  part.write_text(json.dumps(value), encoding='utf-8')
  part.replace(path)
  return value


def has(name: str, folder: str = FOLDER) -> bool:
  """Says whether a compilation is there."""
  return pathlib.Path(os.path.expanduser(folder), f'{name}.json').exists()
