"""The folder of a run: its config, its classes, and whether it fits.

`config.json` holds the config as given, and per phase the resolved one and what
tells its training set from others. `classes.json` has the
name of each label.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

from bigtransfer import config as config_lib
from bigtransfer import files
from bigtransfer.optim import schedules


def check_paths(
    path: str | None, config: Any, phases: Sequence[tuple[str, Any]]
):
  """Checks where a run is kept and started from, before data is read.

  Args:
    path: of the workdir, None where none was given.
    config: the config before it was resolved.
    phases: pairs of a name and a config with `init_from`.

  Raises:
    ValueError, OSError: as `files.check`.
  """
  if path is None and not config.print_plan:
    raise ValueError('--workdir is missing: where should the run be kept?')
  if path is not None:
    files.check(path, '--workdir')
  for source in {given.init_from for _, given in phases} - {None}:
    files.check(source, 'config.init_from')


def open_for(
    path: str,
    given: Any,
    phases: Sequence[Any],
    step: int = 0,
) -> list[str]:
  """Makes the folder, or checks that it holds this very experiment.

  Args:
    path: of the folder.
    given: the config before it was resolved.
    phases: with `name`, resolved `config` and `data`, whose `identity` and
      `class_names` belong to the experiment.
    step: of the newest checkpoint in the folder, 0 without one.

  Returns:
    Changes to remark on: a different `total_steps`, which moves the schedule.

  Raises:
    ValueError: the folder is of another experiment; lists the differences.
    OSError: it cannot be made or written.
  """
  files.make_folder(os.path.join(path, 'plots'))
  record = {
      'given': json.loads(config_lib.to_json(given)),
      'phases': [
          {
              'name': phase.name,
              'data': phase.data.identity(),
              'config': json.loads(config_lib.to_json(phase.config)),
          }
          for phase in phases
      ],
  }
  class_names = phases[-1].data.class_names
  remarks = []
  # Without a checkpoint nothing is lost by starting anew.
  if step and files.exists(os.path.join(path, 'config.json')):
    remarks = _compare(path, record, class_names, step)
  end = sum(phase.config.total_steps for phase in phases)
  if step > end:
    raise ValueError(
        f'{path} has checkpoint {step}, but config.total_steps ends the run at'
        f' {end}'
    )
  _write(path, 'config.json', record)
  _write(path, 'classes.json', class_names and list(class_names))
  return remarks


def _compare(path, record, class_names, step) -> list[str]:
  old = _read(path, 'config.json')
  free = config_lib.FREE
  if record['given']['reset_optimizer']:
    free = (*free, 'optimizer')
  lines = config_lib.differences(
      *(
          config_lib.from_json(json.dumps(_less(given['given'], free)))
          for given in (old, record)
      ),
      ignore=free,
  )
  remarks, begin = [], 0
  for before, now in zip(old['phases'], record['phases'], strict=False):
    was = {'name': before['name']} | before['data']
    for key, value in ({'name': now['name']} | now['data']).items():
      if was.get(key) != value:
        lines.append(f'{key}: {was.get(key)!r} -> {value!r}')
    totals = [p['config']['total_steps'] for p in (before, now)]
    if totals[0] != totals[1]:
      rates = [_rate(p['config'], step - begin) for p in (before, now)]
      remarks.append(
          f'phase {now["name"]}: total_steps was {totals[0]} and is'
          f' {totals[1]}: the learning rate of the next step was'
          f' {rates[0]:.4g} and is {rates[1]:.4g}'
      )
    begin += totals[1]
  old_names = _read(path, 'classes.json')
  if old_names != (class_names and list(class_names)):
    lines.append(f'class names: {old_names!r} -> {class_names!r}')
  if lines:
    raise ValueError(
        f'{path} is the workdir of another experiment ('
        + '; '.join(lines)
        + '); use another --workdir, or remove this one'
    )
  return remarks


def _less(given, free):
  """Returns a config without what its phases may change."""
  phases = [
      {key: v for key, v in phase.items() if key not in free}
      for phase in given['phases']
  ]
  return given | {'phases': phases}


def check_vocabulary(source: str | None, data: Any):
  """Raises ValueError if a run's tokens mean other words than the data's.

  Args:
    source: where parameters come from; only a workdir says of which words.
    data: has `identity()`.
  """
  ours = data.identity().get('vocab_sha256')
  if not (source and ours):
    return
  if not files.exists(os.path.join(source, 'config.json')):
    return
  theirs = _read(source, 'config.json').get('phases', [{}])[-1].get('data', {})
  if theirs.get('vocab_sha256', ours) != ours:
    raise ValueError(
        f'config.init_from={source!r} was trained with another vocabulary'
        f' (sha256 {theirs["vocab_sha256"][:12]}) than that of the data'
        f' ({ours[:12]}): config.data.vocab must name the same'
    )


def check_classes(path: str, class_names: Sequence[str] | None):
  """Raises ValueError if the run's labels mean other classes."""
  old = _read(path, 'classes.json')
  if old != (class_names and list(class_names)):
    raise ValueError(f'{path} has the classes {old}, the data {class_names}')


def _rate(config, step) -> float:
  config = config_lib.from_json(json.dumps(config))
  return float(schedules.make(config, config.total_steps)(max(step, 0)))


def load(path: str) -> dict[str, Any]:
  """Reads the config of the last phase and the class names of a workdir.

  Returns:
    A dict with `config` (resolved), `class_names`, `phase`, and `image_shape`
    (h, w, c) if it was trained on arrays, None if on encoded images.

  Raises:
    FileNotFoundError: it is not a workdir.
  """
  if not files.exists(os.path.join(path, 'config.json')):
    raise FileNotFoundError(f'{path!r} is not a workdir: it has no config.json')
  phase = _read(path, 'config.json')['phases'][-1]
  return {
      'config': config_lib.from_json(json.dumps(phase['config'])),
      'class_names': _read(path, 'classes.json'),
      'phase': phase['name'],
      'image_shape': phase['data'].get('image_shape'),
  }


def _read(path, name):
  return json.loads(files.read(os.path.join(path, name)))


def _write(path, name, value):
  text = json.dumps(value, indent=2) + '\n'
  files.write(os.path.join(path, name), text.encode())
