"""Who may import whom, how long a file may be, how a config is read.

The rules are functions over source text, so that each is also tried on source
that breaks it.
"""

import ast
import pathlib
import sys

import pytest
import setuptools

ROOT = pathlib.Path(__file__).parents[1]

# Top-level modules that each folder may import besides the standard library.
ALLOWED = {
    'configs': {'configs', 'ml_collections'},
    'launch': {'configs', 'launch'},
    'input_pipeline': {
        'absl',
        'array_record',
        'etils',
        'input_pipeline',
        'numpy',
        'safetensors',
        'tensorflow',
        'tensorflow_datasets',
        'tokenizers',
        'tqdm',
    },
    'bigtransfer': {
        'absl',
        'bigtransfer',
        'etils',
        'jax',
        'matplotlib',
        'ml_collections',
        'numpy',
        'optax',
        'orbax',
        'safetensors',
        'scipy',
        'tensorboardX',
        'tqdm',
    },
}

# More that single files and folders may import.
GRANTS = {
    'bigtransfer/models/': {'flax'},
    'bigtransfer/files.py': {'fsspec', 'google'},
    'bigtransfer/main.py': {'input_pipeline'},
    'bigtransfer/predict.py': {'input_pipeline'},
}

# Modules of bigtransfer, lowest first: each imports from lower rows, and from
# its own folder. This way no cycle is possible, and a part is read and tested
# without what stands above it.
LEVELS = (
    {'files', 'heartbeat', 'stopwatch'},
    {
        '__init__',
        'chips',
        'collect',
        'command_line',
        'coordination',
        'durations',
        'hlo',
        'host_memory',
        'json_lines',
        'ledger',
        'mesh',
        'mixing',
        'norms',
        'out_of_memory',
        'plan_data',
        'plan_table',
        'retention',
        'span_answers',
        'text_metrics',
        'trace',
        'trees',
    },
    {
        'bert_interchange',
        'distributed',
        'hlo_cost',
        'models',
        'optim',
        'progress',
        'saved',
        'sharding',
        'topologies',
    },
    {
        'config',
        'goodput',
        'hlo_memory',
        'model_flops',
        'reduction',
        'state',
        'tasks',
    },
    {'plan_cache', 'pretrained'},
    {
        'checkpoint',
        'evaluators',
        'metrics',
        'prefetch',
        'report',
        'train_step',
        'workdir',
    },
    {'export', 'messages', 'program'},
    {'entry', 'evaluation', 'planning'},
    {'plan_picture', 'plan_search', 'train'},
    {'main', 'plan', 'predict'},
)

MODULE_LINES = 300
FUNCTION_LINES = 60
# The train loop is read from top to bottom, as its order is what matters.
LOOP, LOOP_LINES = ('bigtransfer/train.py', '_loop'), 150
SIZED = (*ALLOWED, 'benchmarks')
ATTICS = {'common', 'misc', 'utils'}


def imported_names(tree):
  """Yields every imported dotted name, those inside functions included."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = '.' * node.level + (node.module or '')
      yield from (f'{base}.{alias.name}' for alias in node.names)


def own_module(path):
  """Returns the module or folder right under bigtransfer that `path` is of."""
  return path.split('/')[1].removesuffix('.py')


def level(module):
  """Returns the row of a module of bigtransfer; the last if it has none."""
  rows = [i for i, row in enumerate(LEVELS) if module in row]
  return rows[0] if rows else len(LEVELS)


def edge_problem(path, name):
  """Returns what is wrong with importing `name` in the file `path`, or None."""
  top, _, rest = name.partition('.')
  allowed = ALLOWED[path.split('/')[0]] | sys.stdlib_module_names
  for prefix, grant in GRANTS.items():
    if path.startswith(prefix):
      allowed = allowed | grant
  if top not in allowed:
    return f'may not import {name}'
  if top == 'bigtransfer' and path.startswith('bigtransfer/'):
    source, target = own_module(path), rest.split('.')[0]
    if source != target and level(target) >= level(source):
      return f'is not above {name}'
  return None


def chain(node):
  """Yields the names of a chain of attributes and subscripts."""
  while isinstance(node, ast.Attribute | ast.Subscript):
    if isinstance(node, ast.Attribute):
      yield node.attr
    node = node.value
  if isinstance(node, ast.Name):
    yield node.id


def config_problems(tree):
  """Yields reads of a config with a default that base() does not declare."""
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call):
      continue
    receiver = None
    if isinstance(node.func, ast.Attribute) and node.func.attr == 'get':
      receiver = node.func.value
    elif getattr(node.func, 'id', None) == 'getattr' and len(node.args) == 3:
      receiver = node.args[0]
    names = chain(receiver)
    if any(n in ('cfg', 'config') or n.endswith('_config') for n in names):
      yield f'line {node.lineno}: read config.key, without a default'


def size_problems(path, source, tree):
  """Yields modules and functions that are too long to be read at once."""
  lines = len(source.splitlines())
  if lines > MODULE_LINES:
    yield f'has {lines} lines, more than {MODULE_LINES}'
  for node in ast.walk(tree):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
      lines = own_lines(node)
      limit = LOOP_LINES if (path, node.name) == LOOP else FUNCTION_LINES
      if lines > limit:
        yield f'{node.name}() has {lines} lines, more than {limit}'


def own_lines(function):
  """Returns the length of a function without those that it defines.

  A function that makes a step is long by the functions that it closes over;
  each of them is measured by itself.
  """
  inner = [n for n in function.body if isinstance(n, ast.FunctionDef)]
  lines = sum(n.end_lineno - n.lineno + 1 for n in inner)
  return function.end_lineno - function.lineno + 1 - lines


def problems(path, source):
  """Returns what breaks a rule in the file `path` (from the root, with /)."""
  tree = ast.parse(source)
  found = []
  folder, name = path.split('/')[0], pathlib.PurePosixPath(path).stem
  if name in ATTICS and path != 'configs/common.py':
    found.append('is named for nothing that it does')
  if folder in ALLOWED:
    edges = (edge_problem(path, name) for name in imported_names(tree))
    found += [edge for edge in edges if edge]
    found += config_problems(tree)
  if folder == 'bigtransfer' and level(own_module(path)) == len(LEVELS):
    found.append('has no place in LEVELS')
  if folder in SIZED:
    found += size_problems(path, source, tree)
  return [f'{path} {problem}' for problem in found]


def files():
  """Returns every Python file of the project, from the root, with /."""
  folders = (*SIZED, 'tests')
  paths = (p for folder in folders for p in ROOT.joinpath(folder).rglob('*.py'))
  return sorted(p.relative_to(ROOT).as_posix() for p in paths)


def test_the_project_keeps_the_rules():
  paths = files()
  assert {'bigtransfer/trees.py', 'configs/common.py'} <= set(paths)
  found = []
  for path in paths:
    found += problems(path, ROOT.joinpath(path).read_text(encoding='utf-8'))
  assert not found, '\n'.join(found)


def test_every_folder_of_modules_is_installed():
  folders = {
      path.rpartition('/')[0].replace('/', '.')
      for path in files()
      if path.startswith(('bigtransfer/', 'input_pipeline/'))
  }
  packages = setuptools.find_packages(ROOT, include=['bigtransfer*', 'input*'])
  assert folders == set(packages)


LONG = 'def f():\n' + '  x = 1\n' * 60
NESTED = 'def f():\n' + '  def g():\n' + '    x = 1\n' * 50 + '  y = 1\n' * 50


@pytest.mark.parametrize(
    ('path', 'source', 'problem'),
    [
        ('configs/a.py', 'import jax', 'may not import jax'),
        ('configs/a.py', 'from bigtransfer import trees', 'may not import'),
        ('launch/a.py', 'import numpy as np', 'may not import numpy'),
        (
            'launch/a.py',
            'import ml_collections',
            'may not import ml_collections',
        ),
        (
            'input_pipeline/a.py',
            'import jax.numpy as jnp',
            'may not import jax',
        ),
        ('input_pipeline/a.py', 'from configs import common', 'may not import'),
        (
            'bigtransfer/tasks/a.py',
            'import tensorflow',
            'may not import tensor',
        ),
        (
            'bigtransfer/train.py',
            'import input_pipeline',
            'may not import input',
        ),
        (
            'bigtransfer/main.py',
            'import configs.common',
            'may not import configs',
        ),
        ('bigtransfer/tasks/a.py', 'import flax', 'may not import flax'),
        ('bigtransfer/train.py', 'import flax.linen', 'may not import flax'),
        (
            'bigtransfer/state.py',
            'def f():\n  import flax',
            'may not import flax',
        ),
        (
            'bigtransfer/state.py',
            'from . import trees',
            'may not import ..trees',
        ),
        (
            'bigtransfer/trees.py',
            'from bigtransfer import mesh',
            'is not above',
        ),
        ('bigtransfer/tasks/a.py', 'import bigtransfer.train', 'is not above'),
        (
            'bigtransfer/optim/a.py',
            'from bigtransfer.models import bit',
            'above',
        ),
        ('bigtransfer/new.py', '', 'no place'),
        (
            'bigtransfer/main.py',
            'from bigtransfer import attic',
            'is not above',
        ),
        (
            'bigtransfer/state.py',
            'config.get("key", 1)',
            'line 1: read config.key',
        ),
        (
            'bigtransfer/state.py',
            'self.config.model.get("key")',
            'read config.key',
        ),
        (
            'bigtransfer/state.py',
            'model_config["a"].get("key")',
            'read config.key',
        ),
        ('configs/a.py', 'getattr(config, "key", 1)', 'read config.key'),
        ('bigtransfer/state.py', NESTED + '  y = 1\n' * 10, 'f() has 61 lines'),
        ('bigtransfer/state.py', LONG, 'f() has 61 lines, more than 60'),
        ('benchmarks/a.py', 'x = 1\n' * 301, 'has 301 lines, more than 300'),
        (
            'bigtransfer/train.py',
            LONG.replace('f()', '_loop()') + '  x = 1\n' * 90,
            '_loop() has 151 lines, more than 150',
        ),
        ('input_pipeline/utils.py', '', 'is named for nothing'),
        ('tests/common.py', '', 'is named for nothing'),
    ],
)
def test_broken_rules_are_found(path, source, problem):
  found = problems(path, source)
  assert len(found) == 1, found
  assert problem in found[0]


@pytest.mark.parametrize(
    ('path', 'source'),
    [
        ('configs/common.py', 'import re\nimport ml_collections'),
        ('launch/a.py', 'import json\nfrom configs import common'),
        ('input_pipeline/a.py', 'import tensorflow as tf\nimport numpy as np'),
        ('bigtransfer/models/bit.py', 'import flax.linen as nn'),
        ('bigtransfer/models/bit.py', 'from bigtransfer.models import layers'),
        ('bigtransfer/state.py', 'from bigtransfer.optim import factory'),
        ('bigtransfer/predict.py', 'from input_pipeline import pipeline'),
        ('bigtransfer/state.py', NESTED),
        ('bigtransfer/train.py', LONG.replace('f()', '_loop()')),
        ('bigtransfer/state.py', 'table.get("key")\ngetattr(config, "key")'),
        ('tests/a_test.py', 'import flax\nimport tensorflow'),
    ],
)
def test_kept_rules_are_not_found(path, source):
  assert not problems(path, source)
