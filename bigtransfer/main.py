"""Trains, resumes or evaluates what a config describes.

python -m bigtransfer.main --config configs/quickstart.py --workdir runs/a
    --config.batch_size=256 --config.optimizer.learning_rate=0.1

Exit codes: 0 done, 1 failed, 2 wrong use, 75 stopped early and saved.
"""

import argparse
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

from bigtransfer import checkpoint  # noqa: E402
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
    if args.workdir is None and not config.print_plan:
      raise ValueError('--workdir is missing: where should the run be kept?')
    phases = config_lib.phases(config)
  except (ValueError, TypeError, KeyError, AttributeError, OSError) as e:
    return _fail(e, 2)
  # From here on, so that a preempted start ends as a preempted run does.
  asked = []
  signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
  try:
    phases = prepare(config, phases)
    if config.print_plan:
      print(plan(phases))
      return 0
    steps = checkpoint.complete_steps(os.path.join(args.workdir, 'checkpoints'))
    remarks = workdir_lib.open_for(
        args.workdir, config, phases, max(steps, default=0)
    )
  except (ValueError, OSError) as e:
    return _fail(e, 2)
  for remark in remarks:
    print(f'note: {remark}')
  return run(phases, args.workdir, asked)


def prepare(config, phases):
  """Starts the devices, opens the data and builds every phase.

  Raises:
    ValueError, OSError: what was asked for is not there or does not fit.
  """
  _start_devices(config)
  from bigtransfer import evaluators, program
  from input_pipeline import pipeline

  mesh = mesh_lib.make(config.mesh)
  index, count = jax.process_index(), jax.process_count()
  result, begin = [], 0
  for name, given in phases:
    mesh_lib.check_batch(given.batch_size, mesh, count, given.accum_steps)
    data = pipeline.Data(given, index, count)
    if given.model.num_classes is None:
      given.model.num_classes = data.num_classes
    given.eval_batch_size = mesh_lib.padded_batch(
        given.eval_batch_size or given.batch_size, mesh, count
    )
    resolved = config_lib.resolve(given, data.num_examples)
    for evaluator in resolved.evaluators:
      evaluators.load(evaluator)
    built = program.build(resolved, data.spec, mesh, begin)
    result.append(program.Phase(name, resolved, data, begin, built))
    begin = result[-1].end
  return result


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
  if config.platform not in (None, found):
    raise ValueError(
        f'config.platform={config.platform!r}, but JAX found {found!r}'
        f' ({jax.device_count()} devices)'
    )


def plan(phases) -> str:
  """Describes each phase: resolved config, length, learning rate."""
  from bigtransfer.optim import schedules

  lines = []
  for phase in phases:
    c = phase.config
    rate = schedules.make(c, c.total_steps)
    epochs = c.total_steps * c.batch_size / phase.data.num_examples
    lines += [
        str(c),
        f'phase {phase.name}: {c.total_steps:,} steps of {c.batch_size:,}'
        f' examples = {epochs:.2f} epochs of {phase.data.num_examples:,}',
        'learning rate at step (of the update that follows it):',
    ]
    marks = {0, c.schedule.warmup, c.total_steps // 2, c.total_steps - 1}
    for b in c.schedule.boundaries:
      marks |= {b, b + 1}
    lines += [f'  {k:>9,}  {float(rate(k)):.6g}' for k in sorted(marks)]
  return '\n'.join(lines)


def run(phases, workdir: str, asked: list[int]) -> int:
  """Trains or evaluates, reports, and returns the exit code.

  Args:
    phases: from `prepare`.
    workdir: from `workdir.open_for`.
    asked: signals received so far; one is enough to save and stop.
  """
  from bigtransfer import evaluation, metrics, report, train
  from input_pipeline import pipeline

  signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
  config = phases[-1].config
  try:
    if config.eval_only:
      print(train.summary(*evaluation.evaluate_newest(phases[-1], workdir)))
      return 0
    result = train.train(phases, workdir, stop=lambda: bool(asked))
  except (checkpoint.MismatchError, FileNotFoundError) as e:
    return _fail(e, 2)
  except (
      checkpoint.SaveError,
      metrics.NonFiniteError,
      pipeline.BadImage,
      OSError,
  ) as e:
    return _fail(e, 1)
  if result.reason == 'stopped':
    print(f'stopped and saved at step {result.step}; the same command goes on')
    return STOPPED
  if result.reason == 'finished':
    print(f'already finished at step {result.step}; nothing to do')
    return 0
  plots = report.draw([workdir], os.path.join(workdir, 'plots'))
  print(_closing(result, workdir, config, plots))
  return 0


def _closing(result, workdir, config, plots) -> str:
  accuracy = result.evaluation.get('accuracy')
  lines = [f'done: {result.step:,} steps']
  if accuracy is not None:
    lines.append(f'{config.data.eval_split} accuracy: {accuracy:.4f}')
  lines += [
      f'checkpoint: {os.path.join(workdir, "checkpoints", str(result.step))}',
      *(f'plot: {path}' for path in plots),
      'next, try',
      f'  python -m bigtransfer.predict --workdir {workdir}',
      f'  python -m bigtransfer.report {workdir}',
  ]
  return '\n'.join(lines)


def _fail(error: BaseException, code: int) -> int:
  text = error.args[0] if isinstance(error, KeyError) else str(error)
  print(f'error: {text}', file=sys.stderr)
  return code


if __name__ == '__main__':
  sys.exit(main())
