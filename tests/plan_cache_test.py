"""What is compiled once, and when it is compiled again."""

import ast
import importlib.metadata
import json

import pytest

from bigtransfer import plan_cache, topologies
from configs import quickstart


def test_what_was_compiled_is_read_back(tmp_path):
  made = []

  def make():
    made.append(1)
    return {'peak_bytes': 1}

  for expected in ({'peak_bytes': 1}, {'peak_bytes': 1, 'cached': True}):
    assert plan_cache.cached(str(tmp_path), 'a', make) == expected
  assert plan_cache.has('a', str(tmp_path)) and len(made) == 1
  assert not plan_cache.has('b', str(tmp_path))
  plan_cache.cached(None, 'a', make)
  assert len(made) == 2


def test_a_compilation_that_fails_leaves_nothing(tmp_path):
  with pytest.raises(ZeroDivisionError):
    plan_cache.cached(str(tmp_path), 'a', lambda: {'x': 1 / 0})
  with pytest.raises(TypeError):
    plan_cache.cached(str(tmp_path), 'a', lambda: {'x': object()})
  assert not list(tmp_path.iterdir())


def test_a_file_is_whole_json(tmp_path):
  plan_cache.cached(str(tmp_path), 'a', lambda: {'x': 1})
  (path,) = tmp_path.iterdir()
  assert path.name == 'a.json'
  assert json.loads(path.read_text()) == {'x': 1}


def test_another_config_slice_or_compiler_is_another_key(monkeypatch):
  config = quickstart.get_config()
  slices = [topologies.parse(name) for name in ('v3-8', 'v2-8')]
  monkeypatch.setattr(importlib.metadata, 'version', lambda name: '1')
  keys = [plan_cache.key(config, topology) for topology in slices]
  assert keys[0] == plan_cache.key(quickstart.get_config(), slices[0])
  config.batch_size = 64
  keys.append(plan_cache.key(config, slices[0]))
  monkeypatch.setattr(importlib.metadata, 'version', lambda name: '2')
  keys.append(plan_cache.key(config, slices[0]))
  monkeypatch.setattr(plan_cache, '_sources', lambda: 'changed')
  keys.append(plan_cache.key(config, slices[0]))
  assert len(set(keys)) == 5


def test_the_cache_knows_every_source_of_a_step():
  """What `program` imports is hashed, or shows in the resolved config."""
  hashed = {p.relative_to(plan_cache._PACKAGE).as_posix()
            for glob in plan_cache._SOURCES
            for p in plan_cache._PACKAGE.glob(glob)}
  seen, left = set(), ['program.py']
  while left:
    path = left.pop()
    if path in seen:
      continue
    seen.add(path)
    tree = ast.parse(plan_cache._PACKAGE.joinpath(path).read_text())
    for node in ast.walk(tree):
      if not isinstance(node, ast.ImportFrom) or not node.module:
        continue
      if node.module.partition('.')[0] == 'bigtransfer':
        folder = '/'.join(node.module.split('.')[1:])
        left += [
            name for name in (
                f'{folder}.py',
                *(f'{folder}/{a.name}.py'.lstrip('/') for a in node.names),
            ) if plan_cache._PACKAGE.joinpath(name).is_file()
        ]
  assert len(seen) > 10
  assert seen <= hashed
