"""Runs all evaluators of a config on a state."""

import os
from collections.abc import Callable
from typing import Any

import jax

from bigtransfer import checkpoint, evaluators, prefetch
from bigtransfer.program import Phase


def evaluation(phase: Phase, workdir: str) -> Callable[[Any], dict[str, float]]:
  """Returns state -> values of all evaluators; they compile once."""

  def predict(params, model_state, batch):
    return phase.program.model.apply(
        params, model_state, batch, train=False, rng=None
    )[0]

  def batches():
    return prefetch.Prefetcher(
        iter(phase.data.evaluate(phase.config)), phase.program.batch_sharding
    )

  running = [
      evaluators.load(name)(
          phase.config,
          predict=predict,
          batches=batches,
          class_names=phase.data.class_names,
      )
      for name in phase.config.evaluators
  ]

  def evaluate(state) -> dict[str, float]:
    values = {}
    # Evaluators put their own zeros and counters on the devices.
    with jax.transfer_guard('allow'):
      for evaluator in running:
        values |= evaluator.run(state.ema or state.params, state.model_state)
        for name, text in evaluator.tables().items():
          with open(os.path.join(workdir, name), 'w') as f:
            f.write(text)
    return values

  return evaluate


def evaluate_newest(phase: Phase, workdir: str):
  """Evaluates the newest checkpoint of a workdir; returns (step, values)."""
  with checkpoint.CheckpointManager(
      os.path.join(workdir, 'checkpoints'), phase.config.checkpoint
  ) as manager:
    state = manager.restore(phase.program.abstract)
  return int(state.step), evaluation(phase, workdir)(state)
