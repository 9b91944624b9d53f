"""Loads a recipe, applies overrides, splits it into phases, resolves values.

Resolving replaces every duration by steps and scales the learning rate, so
that the code below reads plain numbers.
"""

import copy
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import ml_collections

from bigtransfer import durations, sharding
from bigtransfer.optim import lamb, schedules

# Durations by config path. `total_steps` comes first: percents refer to it.
DURATIONS = (
    'total_steps',
    'log_every',
    'norms_every',
    'eval_every',
    'schedule.warmup',
    'schedule.boundaries',
    'schedule.timescale',
    'checkpoint.every',
    'checkpoint.keep_every',
)
# What a run that goes on may change: none of it alters a finished step.
FREE = (
    'accum_steps',
    'checkpoint',
    'compilation_cache',
    'data.bad_images',
    'data.cache',
    'data.path',
    'data.prefetch',
    'data.threads',
    'distributed',
    'eval_batch_size',
    'eval_every',
    'eval_only',
    'evaluators',
    'init_from',
    'log_every',
    'mesh',
    'model.remat',
    'nonfinite',
    'norms_every',
    'platform',
    'print_plan',
    'reset_optimizer',
    'sharding',
    'target',
    'tensorboard',
    'total_steps',
    'trace_steps',
)


def load(spec: str, overrides: Sequence[tuple[str, str]] = ()):
  """Returns the config of 'file.py' or 'file.py:arguments', overridden.

  Args:
    spec: path of a recipe with `get_config(arg)`, and its argument.
    overrides: (dotted key, text) pairs, applied in order.

  Raises:
    FileNotFoundError: no such recipe.
    ValueError, TypeError, KeyError: from the recipe or an override.
  """
  path, _, arg = spec.partition(':')
  if not os.path.isfile(path) or not path.endswith('.py'):
    raise FileNotFoundError(f'there is no config file {path!r} (a .py file)')
  module = _import_file(path)
  if not hasattr(module, 'get_config'):
    raise ValueError(f'{path} defines no get_config(arg)')
  config = module.get_config(arg)
  for key, text in overrides:
    config.override(key, text)
  config.check()
  return config


def _import_file(path: str):
  # Recipes import their neighbours as `configs.x`: the folder above the
  # recipe's must be importable wherever the command is run from.
  parent = os.path.dirname(os.path.dirname(os.path.abspath(path)))
  if parent not in sys.path:
    sys.path.insert(0, parent)
  name = 'recipe_' + os.path.splitext(os.path.basename(path))[0]
  module_spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  return module


def phases(config) -> list[tuple[str, Any]]:
  """Returns (name, config) per phase; each is a copy with its overrides.

  What the command line says holds in every phase.
  """
  result = []
  for overrides in config.phases or ({'name': 'train'},):
    phase = copy.deepcopy(config)
    overrides = dict(overrides)
    name = overrides.pop('name', None)
    if not name or name in [n for n, _ in result]:
      raise ValueError(
          f'config.phases: every phase needs a name of its own, got {name!r}'
      )
    for key, value in overrides.items():
      if key not in config.overridden:
        _set(phase, key, value)
    _fill_preset(phase)
    fill_layout(phase)
    phase.check()
    result.append((name, phase))
  return result


def _fill_preset(config):
  """Sets what the preset of the optimizer says and nobody has given."""
  name = config.optimizer.preset
  if name is None:
    return
  if config.optimizer.name != 'lamb':
    raise ValueError(
        f'config.optimizer.preset={name!r} is for lamb, and'
        f' config.optimizer.name={config.optimizer.name!r}'
    )
  for key, value in lamb.preset(name).items():
    config.optimizer.fill(key, value)


def fill_layout(config):
  """The same for the layout, and the mesh that it is for."""
  name = config.sharding.preset
  if name is None:
    return
  for key, value in sharding.preset(name, config.model.name).items():
    config.fill(key, value)
  if name == 'fsdp':
    config.fill('mesh.fsdp', -1)
    if config.mesh.fsdp == -1:
      config.fill('mesh.data', 1)
  axis = {'fsdp': 'fsdp', 'tensor': 'model'}.get(name)
  if axis and config.mesh[axis] == 1:
    raise ValueError(
        f'config.sharding.preset={name!r} splits over the {axis} axis, and'
        f' config.mesh.{axis}=1; accepted: 2 or more, or -1'
    )


def resolve(config, num_examples: int | None) -> ml_collections.ConfigDict:
  """Returns a plain locked copy with steps and the final learning rate.

  Args:
    config: as `load` or `phases` return it.
    num_examples: size of the training set, for epochs; None where unknown.

  Raises:
    ValueError: an epoch count without a training set, or a batch rule that
      does not exist.
  """
  resolved = ml_collections.ConfigDict(config.to_dict())
  _scale_warmup(resolved)
  for path in DURATIONS:
    value = _get(resolved, path)
    known = dict(
        batch_size=config.batch_size,
        num_examples=num_examples,
        total_steps=None if path == 'total_steps' else resolved.total_steps,
        what=path,
    )
    if isinstance(value, tuple):
      value = tuple(durations.steps(v, **known) for v in value)
    elif value is not None:
      value = durations.steps(value, **known)
    with resolved.ignore_type():
      _set(resolved, path, value)
  optimizer = resolved.optimizer
  optimizer.learning_rate = float(
      schedules.batch_rule(
          optimizer.batch_rule,
          optimizer.learning_rate,
          optimizer.base_batch_size,
          config.batch_size,
      )
  )
  return resolved.lock()


def _scale_warmup(config):
  """Makes the share that the warm-up takes follow the batch."""
  optimizer, warmup = config.optimizer, config.schedule.warmup
  if optimizer.batch_rule != 'lamb_epoch_warmup':
    return
  if not str(warmup).endswith('%'):
    raise ValueError(
        f'config.schedule.warmup={warmup!r}: with'
        " config.optimizer.batch_rule='lamb_epoch_warmup' it must be a"
        " percentage, which follows the batch, such as '0.3125%'"
    )
  share = schedules.batch_rule_warmup(
      optimizer.batch_rule,
      float(warmup.rstrip('% ')) / 100,
      optimizer.base_batch_size,
      config.batch_size,
  )
  with config.ignore_type():
    config.schedule.warmup = f'{100 * share:.12g}%'


def _get(config, path: str):
  for part in path.split('.'):
    config = config[part]
  return config


def _set(config, path: str, value):
  *parents, last = path.split('.')
  section = _get(config, '.'.join(parents)) if parents else config
  section[last] = value


def to_json(config) -> str:
  """Writes a config as JSON; tuples become lists, other sequences fail."""

  def plain(value, path):
    if isinstance(value, ml_collections.ConfigDict | dict):
      return {k: plain(value[k], f'{path}.{k}') for k in value}
    if isinstance(value, tuple):
      return [plain(v, f'{path}[{i}]') for i, v in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
      return value
    raise TypeError(
        f'{path} is a {type(value).__name__} ({value!r}); a config holds'
        ' None, bool, int, float, str, tuple and dict'
    )

  return json.dumps(plain(config, 'config'), indent=2)


def from_json(text: str) -> ml_collections.ConfigDict:
  """Reads what `to_json` wrote; sequences are tuples again."""

  def tuples(value):
    if isinstance(value, dict):
      return {k: tuples(v) for k, v in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value

  return ml_collections.ConfigDict(tuples(json.loads(text))).lock()


def to_text(config) -> str:
  """One line per section, for people."""

  def flat(section, path):
    values = {k: section[k] for k in section}
    plain = {k: v for k, v in values.items() if not _is_section(v)}
    lines = [f'{path}: ' + ' '.join(f'{k}={v!r}' for k, v in plain.items())]
    for key, value in values.items():
      if _is_section(value):
        lines += flat(value, f'{path}.{key}')
    return lines

  return '\n'.join(flat(config, 'config'))


def _is_section(value) -> bool:
  return isinstance(value, ml_collections.ConfigDict)


def differences(old, new, *, ignore: Sequence[str] = FREE) -> list[str]:
  """Lists 'a.b: old -> new' for every key that differs outside `ignore`."""
  lines = []

  def compare(a, b, path):
    if path in ignore:
      return
    if isinstance(a, ml_collections.ConfigDict):
      for key in sorted({*a, *b}):
        compare(
            a[key] if key in a else None,
            b[key] if key in b else None,
            f'{path}.{key}' if path else key,
        )
    elif a != b:
      lines.append(f'{path}: {a!r} -> {b!r}')

  compare(old, new, '')
  return lines
