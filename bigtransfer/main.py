"""Trains, resumes or evaluates what a config describes.

python -m bigtransfer.main --config configs/quickstart.py --workdir runs/a
    --config.batch_size=256 --config.optimizer.learning_rate=0.1

Exit codes: 0 done, 1 failed, 2 wrong use, 75 stopped early and saved.
"""

import argparse
import importlib.util
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

BEGAN = time.monotonic()  # Imports take seconds, see goodput.py.
# TensorFlow's and XLA's chatter would bury the messages of the run.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import jax  # noqa: E402
from absl import logging  # noqa: E402

from bigtransfer import (  # noqa: E402
  checkpoint,
  command_line,
  coordination,
  distributed,
  files,
  saved,
  trace,
)
from bigtransfer import config as config_lib  # noqa: E402
from bigtransfer import mesh as mesh_lib  # noqa: E402
from bigtransfer import workdir as workdir_lib  # noqa: E402

STOPPED = 75


def parse_args(argv: Sequence[str]) -> tuple[Any, list[tuple[str, str]]]:
  """Returns the flags and the (key, text) overrides."""
  overrides, rest = command_line.split(argv)
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


def main(
    argv: Sequence[str] | None = None, began: float | None = None
) -> int:
  """Returns the exit code; `began` is as `train.train` takes it."""
  args, overrides = parse_args(sys.argv[1:] if argv is None else argv)
  logging.set_verbosity(logging.ERROR)
  try:
    config = config_lib.load(args.config, overrides)
    if args.help_config:
      print(config.describe())
      return 0
    phases = config_lib.phases(config)
    workdir_lib.check_paths(args.workdir, config, phases)
  except ConnectionError as e:
    return _fail(e, 1)
  except (ValueError, TypeError, KeyError, AttributeError, OSError) as e:
    return _fail(e, 2)
  try:
    group = distributed.start(config.distributed)
  except coordination.GroupError as e:
    return _fail(e, 2)
  try:
    code = _job(args, config, phases, group, began)
  except BaseException as e:
    if group.count > 1:
      # The others must not wait for this process.
      traceback.print_exc()
      group.fail(repr(e), 1)
    raise
  group.close()
  if code == STOPPED:
    coordination.leave(code)  # A step may still compile, which cannot stop.
  return code


def _job(args, config, phases, group, began) -> int:
  """Returns the exit code."""
  distributed.listen(group)
  try:
    phases = prepare(config, phases)
    if config.print_plan:
      from bigtransfer import messages

      if group.primary:
        print(messages.plan(phases))
      return 0
    step = _agree(phases, args.workdir, group)
    if config.eval_only:
      return evaluate(phases[-1], args.workdir, group)
    remarks = []
    if group.primary:
      remarks = workdir_lib.open_for(args.workdir, config, phases, step)
    group.broadcast('the workdir is open')
  except (
      ValueError,
      FileNotFoundError,
      NotADirectoryError,
      coordination.GroupError,
  ) as e:
    return _fail(e, 2, group)
  except OSError as e:
    return _fail(e, 1, group)
  if group.primary:
    for phase in phases:
      print(f'phase {phase.name}\n{config_lib.to_text(phase.config)}')
    for remark in remarks:
      print(f'note: {remark}')
  return run(phases, args.workdir, group, began)


def _agree(phases, workdir, group) -> int:
  """Returns the newest checkpoint's step; all processes must see the same."""
  for phase in phases:
    text = group.broadcast(
        f'config of {phase.name}', config_lib.to_json(phase.config)
    )
    lines = config_lib.differences(
        config_lib.from_json(text), phase.config, ignore=('distributed',)
    )
    if lines:
      raise coordination.GroupError(
          f'process {group.index} has another config than process 0'
          f' ({"; ".join(lines)}): start the same command on every worker'
      )
  steps = saved.complete_steps(os.path.join(workdir, 'checkpoints'))
  step = max(steps, default=0)
  theirs = group.broadcast('newest checkpoint', step)
  if theirs != step:
    raise coordination.GroupError(
        f'the newest checkpoint in --workdir={workdir} is {step} for process'
        f' {group.index} and {theirs} for process 0: it must be on a file'
        ' system that all processes share'
    )
  return step


def prepare(config, phases):
  """Starts the devices, opens the data and builds every phase.

  Raises:
    ValueError, OSError: what was asked for is not there or does not fit.
  """
  distributed.start_devices(config)
  from bigtransfer import evaluators, program
  from input_pipeline import kinds

  if config.tensorboard and not importlib.util.find_spec('tensorboardX'):
    raise ValueError(
        'config.tensorboard=True needs the package tensorboardX: pip install'
        " 'bigtransfer[tensorboard]'"
    )
  trace.check(config.trace_steps)
  sizes = phases[0][1].mesh
  mesh = mesh_lib.make(sizes)
  index, count = mesh_lib.share(mesh, jax.process_index())
  result, begin = [], 0
  for name, given in phases:
    if given.mesh != sizes:
      raise ValueError(
          f'config.mesh of phase {name!r} is {given.mesh.to_dict()}, that of'
          f' the first {sizes.to_dict()}: all phases share one mesh'
      )
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
    program.check_chain(result[-2:])
    begin = result[-1].end
  return result


def evaluate(phase, workdir: str, group) -> int:
  """Evaluates the newest checkpoint of a workdir, which stays as it is."""
  from bigtransfer import evaluation, evaluators, messages, metrics
  from input_pipeline import reader

  bad_images = metrics.BadImages(workdir, print, group.index)
  try:
    if saved.complete_steps(os.path.join(workdir, 'checkpoints')):
      workdir_lib.check_classes(workdir, phase.data.class_names)
    step, values = evaluation.evaluate_newest(
        phase, workdir, bad_images.note, lambda: 'stop' in group.check()
    )
  except (saved.MismatchError, evaluators.EvaluationError) as e:
    return _fail(e, 2, group)
  except reader.BadExample as e:
    return _fail(e, 1, group)
  if values is None:
    return STOPPED
  if group.primary:
    print(messages.summary(step, values))
  return 0


def run(phases, workdir: str, group, began: float | None = None) -> int:
  """Trains, reports, and returns the exit code."""
  from bigtransfer import (
    evaluators,
    messages,
    metrics,
    out_of_memory,
    report,
    train,
  )
  from input_pipeline import reader

  say = print if group.primary else lambda text: None
  try:
    result = train.train(
        phases, workdir, group=group, say=say, began=began
    )
  except (
      saved.MismatchError,
      evaluators.EvaluationError,
      out_of_memory.OutOfMemoryError,
      FileNotFoundError,
  ) as e:
    return _fail(e, 2, group)
  except (
      checkpoint.SaveError,
      metrics.NonFiniteError,
      reader.BadExample,
      OSError,
  ) as e:
    return _fail(e, 1, group)
  except jax.errors.JaxRuntimeError as e:
    if known := out_of_memory.error(str(e)):
      return _fail(known, 2, group)
    if group.count == 1:
      raise
    # The error of one that has failed comes meanwhile.
    lost = f'{group.missing()}: {str(e).splitlines()[0]}'
    return _fail(RuntimeError(lost), 1, group)
  if result.reason == 'stopped':
    how = 'stopped and saved' if result.step else 'stopped'
    say(f'{how} at step {result.step}; the same command goes on')
    return STOPPED
  plots = os.path.join(workdir, 'plots')
  if result.reason == 'finished' and files.names(plots):
    say(f'already finished at step {result.step}; nothing to do')
    return 0
  if not group.primary:
    return 0
  pictures = report.draw([workdir], plots)
  print(messages.closing(result, workdir, phases[-1].config, pictures))
  return 0


def _fail(error: BaseException, code: int, group=None) -> int:
  """Says what is wrong and returns `code`; one of several processes ends."""
  text = command_line.say_error(error)
  if group is not None:
    group.fail(text, code)
  return code


if __name__ == '__main__':
  sys.exit(main(began=BEGAN))
