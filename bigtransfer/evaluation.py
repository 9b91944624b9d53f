"""Runs all evaluators of a config on a state."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from bigtransfer import evaluators, files, prefetch, saved
from bigtransfer.program import Phase

# Takes the (id, where) pairs of images that could not be read.
Note = Callable[[Sequence[tuple[int, str]]], None]
# Asked before each batch, with equal answers on all processes.
Stop = Callable[[], bool]


class _Stopped(Exception):
  """The evaluation is given up."""


def evaluation(
    phase: Phase, folder: str, note: Note, stop: Stop
) -> Callable[[Any], dict[str, float] | None]:
  """Returns state -> values of all evaluators, which compile once.

  None stands for an evaluation that was stopped: it may take longer than is
  left to a machine that is being taken, and can be made again.

  Args:
    phase: of the run; its data and its program.
    folder: where the evaluators' tables go.
    note: gets the bad images of every evaluation.
    stop: says whether to give up.
  """
  source = phase.data.evaluate(phase.config)

  def predict(params, model_state, batch):
    return phase.program.model.apply(
        params, model_state, batch, train=False, rng=None
    )[0]

  def batches():
    for batch in prefetch.Prefetcher(
        iter(source), phase.program.batch_sharding
    ):
      if stop():
        raise _Stopped
      yield batch

  running = [
      evaluators.load(name)(
          phase.config,
          predict=predict,
          batches=batches,
          data=phase.data,
      )
      for name in phase.config.evaluators
  ]

  def evaluate_all(state) -> dict[str, float]:
    values = {}
    # Evaluators put their own zeros and counters on the devices.
    with jax.transfer_guard('allow'):
      for evaluator in running:
        values |= evaluator.run(state.ema or state.params, state.model_state)
        tables = evaluator.tables() if jax.process_index() == 0 else {}
        for name, text in tables.items():
          files.write(os.path.join(folder, name), text.encode())
    note(source.bad)
    return values

  def evaluate(state) -> dict[str, float] | None:
    try:
      return evaluate_all(state)
    except _Stopped:
      return None

  return evaluate


def check_best(values: Mapping[str, float], name: str | None):
  """Raises EvaluationError if `best_metric` is not among the values."""
  if name is not None and name not in values:
    raise evaluators.EvaluationError(
        f'config.checkpoint.best_metric={name!r}: the evaluation gives'
        f' {", ".join(values)}'
    )


def evaluate_newest(phase: Phase, workdir: str, note: Note, stop: Stop):
  """Evaluates the newest checkpoint of a workdir; returns (step, values).

  The values are None if it was stopped.

  Tables go to `workdir`/eval_only. The optimizer's state is left alone.
  """
  folder = os.path.join(workdir, 'checkpoints')
  abstract = phase.program.abstract
  params, step = saved.restore_params(folder, abstract=abstract.params)
  model_state = saved.restore_part(
      folder, step, 'model_state', abstract.model_state
  )
  state = abstract._replace(params=params, model_state=model_state, ema={})
  tables = os.path.join(workdir, 'eval_only')
  if jax.process_index() == 0:
    files.make_folder(tables)
  return step, evaluation(phase, tables, note, stop)(state)
