"""Trains, resumes or evaluates what a config describes.

python -m bigtransfer.main --config configs/quickstart.py --workdir runs/a
    --config.batch_size=256 --config.optimizer.learning_rate=0.1

Exit codes: 0 done, 1 failed, 2 wrong use, 75 stopped early and saved.
"""

import argparse
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

# TensorFlow's and XLA's chatter would bury the messages of the run.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import jax  # noqa: E402
from absl import logging  # noqa: E402

from bigtransfer import (
  checkpoint,  # noqa: E402
  trees,  # noqa: E402
)
from bigtransfer import config as config_lib  # noqa: E402
from bigtransfer import mesh as mesh_lib  # noqa: E402
from bigtransfer import workdir as workdir_lib  # noqa: E402

STOPPED = 75
OVERRIDE = re.compile(r'--config\.([\w.]+)(?:=(.*))?', re.DOTALL)


def parse_args(argv: Sequence[str]) -> tuple[Any, list[tuple[str, str]]]:
  """Returns the flags and the (key, text) overrides."""
  overrides, rest = [], []
  for arg in argv:
    match = OVERRIDE.fullmatch(arg)
    if match:
      overrides.append((match[1], 'true' if match[2] is None else match[2]))
    else:
      rest.append(arg)
  parser = argparse.ArgumentParser(
      'python -m bigtransfer.main',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  parser.add_argument('--config', required=True, metavar='FILE.py[:ARGS]',
                      help='recipe; --config.KEY=VALUE overrides a key, None'
                      ' is written None')
  parser.add_argument('--workdir', help='folder of the run; the same command'
                      ' again goes on where it stopped')
  parser.add_argument('--help_config', action='store_true',
                      help='list all keys of the config and stop')
  return parser.parse_args(rest), overrides


def main(argv: Sequence[str] | None = None) -> int:
  args, overrides = parse_args(sys.argv[1:] if argv is None else argv)
  logging.set_verbosity(logging.ERROR)
  try:
    config = config_lib.load(args.config, overrides)
    if args.help_config:
      print(config.describe())
      return 0
    _check_workdir(args.workdir, config)
    phases = config_lib.phases(config)
  except (ValueError, TypeError, KeyError, AttributeError, OSError) as e:
    return _fail(e, 2)
  try:
    phases = prepare(config, phases)
    if config.print_plan:
      from bigtransfer import messages

      print(messages.plan(phases))
      return 0
    if config.eval_only:
      return evaluate(phases[-1], args.workdir)
    steps = checkpoint.complete_steps(os.path.join(args.workdir, 'checkpoints'))
    remarks = workdir_lib.open_for(
        args.workdir, config, phases, max(steps, default=0)
    )
  except (ValueError, FileNotFoundError, NotADirectoryError) as e:
    return _fail(e, 2)
  except OSError as e:
    return _fail(e, 1)
  for phase in phases:
    print(f'phase {phase.name}\n{config_lib.to_text(phase.config)}')
  for remark in remarks:
    print(f'note: {remark}')
  return run(phases, args.workdir)


def _check_workdir(path: str | None, config):
  if path is None and not config.print_plan:
    raise ValueError('--workdir is missing: where should the run be kept?')
  if path is not None and '://' in path:
    raise ValueError(f'--workdir={path}: it must be a folder of this machine')


def prepare(config, phases):
  """Starts the devices, opens the data and builds every phase.

  Raises:
    ValueError, OSError: what was asked for is not there or does not fit.
  """
  _start_devices(config)
  from bigtransfer import evaluators, program
  from input_pipeline import kinds

  if config.tensorboard and not importlib.util.find_spec('tensorboardX'):
    raise ValueError(
        'config.tensorboard=True needs the package tensorboardX: pip install'
        " 'bigtransfer[tensorboard]'"
    )
  mesh = mesh_lib.make(config.mesh)
  index, count = jax.process_index(), jax.process_count()
  result, begin = [], 0
  for name, given in phases:
    mesh_lib.check_batch(given.batch_size, mesh, count, given.accum_steps)
    data = kinds.open_data(given, index, count)
    workdir_lib.check_vocabulary(given.init_from, data)
    for key, value in data.model_fields().items():
      if given.model[key] is None:
        given.model[key] = value
      elif given.model[key] < value:
        raise ValueError(
            f'config.model.{key}={given.model[key]} is less than the {value}'
            ' of the data'
        )
    given.eval_batch_size = mesh_lib.padded_batch(
        given.eval_batch_size or given.batch_size, mesh, count
    )
    resolved = config_lib.resolve(given, data.num_examples)
    for evaluator in resolved.evaluators:
      evaluators.load(evaluator)
    built = program.build(resolved, data.spec, mesh)
    result.append(program.Phase(name, resolved, data, begin, built))
    _check_chain(result[-2:])
    begin = result[-1].end
  return result


def _check_chain(phases):
  """Refuses a phase that cannot go on where the one before ends."""
  if len(phases) < 2:
    return
  before, after = phases
  parts = ['params']
  if after.config.moments == 'keep':
    parts.append('opt_state')
  for part in parts:
    problem = trees.mismatch(*(
        getattr(phase.program.abstract, part) for phase in phases
    ))
    if problem:
      raise ValueError(
          f'phase {before.name}, before {after.name}, {problem} ({part})'
      )
  words = [phase.data.identity().get('vocab_sha256') for phase in phases]
  if words[0] != words[1]:
    raise ValueError(
        f'phase {after.name} has another vocabulary (sha256 {words[1]}) than'
        f' phase {before.name} ({words[0]})'
    )


def _start_devices(config):
  if config.compilation_cache is not None:
    cache = os.path.expanduser(config.compilation_cache)
    jax.config.update('jax_compilation_cache_dir', cache)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
  if config.distributed.initialize:
    jax.distributed.initialize(
        config.distributed.coordinator_address,
        config.distributed.num_processes,
        config.distributed.process_id,
    )
  try:
    found = jax.default_backend()
  except RuntimeError as e:
    raise ValueError(f'JAX cannot start: {e}') from e
  if jax.process_count() > 1:
    raise ValueError(
        f'{jax.process_count()} processes: training runs in one process, on'
        ' all of its devices'
    )
  if config.platform not in (None, found):
    raise ValueError(
        f'config.platform={config.platform!r}, but JAX found {found!r}'
        f' ({jax.device_count()} devices)'
    )


def evaluate(phase, workdir: str) -> int:
  """Evaluates the newest checkpoint of a workdir, which stays as it is."""
  from bigtransfer import evaluation, evaluators, metrics, train
  from input_pipeline import reader

  bad_images = metrics.BadImages(workdir, print)
  try:
    if checkpoint.complete_steps(os.path.join(workdir, 'checkpoints')):
      workdir_lib.check_classes(workdir, phase.data.class_names)
    step, values = evaluation.evaluate_newest(phase, workdir, bad_images.note)
  except (checkpoint.MismatchError, evaluators.EvaluationError) as e:
    return _fail(e, 2)
  except reader.BadExample as e:
    return _fail(e, 1)
  print(train.summary(step, values))
  return 0


def run(phases, workdir: str) -> int:
  """Trains, reports, and returns the exit code."""
  from bigtransfer import evaluators, messages, metrics, report, train
  from input_pipeline import reader

  asked = []

  def ask(number, frame):
    print('saving, then stopping; once more stops at once', file=sys.stderr)
    asked.append(number)
    signal.signal(number, signal.SIG_DFL)

  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, ask)
  try:
    result = train.train(phases, workdir, stop=lambda: bool(asked))
  except (
      checkpoint.MismatchError,
      evaluators.EvaluationError,
      FileNotFoundError,
  ) as e:
    return _fail(e, 2)
  except (
      checkpoint.SaveError,
      metrics.NonFiniteError,
      reader.BadExample,
      OSError,
  ) as e:
    return _fail(e, 1)
  if result.reason == 'stopped':
    print(f'stopped and saved at step {result.step}; the same command goes on')
    return STOPPED
  plots = os.path.join(workdir, 'plots')
  if result.reason == 'finished' and os.listdir(plots):
    print(f'already finished at step {result.step}; nothing to do')
    return 0
  pictures = report.draw([workdir], plots)
  print(messages.closing(result, workdir, phases[-1].config, pictures))
  return 0


def _fail(error: BaseException, code: int) -> int:
  text = error.args[0] if isinstance(error, KeyError) else str(error)
  print(f'error: {text}', file=sys.stderr)
  return code


if __name__ == '__main__':
  sys.exit(main())
