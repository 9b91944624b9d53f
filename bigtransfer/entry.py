"""The state that a phase starts with."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bigtransfer import checkpoint, export, program
from bigtransfer import state as state_lib
from bigtransfer.optim import factory


def state(
    phase: program.Phase,
    before: state_lib.TrainState | None,
    manager: checkpoint.CheckpointManager,
    step: int,
    say: Callable[[str], None],
) -> state_lib.TrainState:
  """The phase before, else the run's checkpoint, `init_from`, or scratch.

  Args:
    phase: that is to run.
    before: the state in which this process has left the phase before.
    manager: of the run's checkpoints.
    step: of the newest of these, 0 without one.
    say: gets messages for the user.

  Raises:
    MismatchError, FileNotFoundError: what is there does not fit the config.
  """
  built, config = phase.program, phase.config
  if before is not None:
    return _next(phase, before)
  if step:
    say(f'going on from step {step} of {manager.directory}')
    if not config.reset_optimizer:
      return manager.restore(built.abstract, step)
    old = manager.restore(built.abstract, step, reset_optimizer=built.tx)
    updates = old.step - old.skipped - phase.begin
    return old._replace(opt_state=factory.at_update(old.opt_state, updates))
  new = built.init()
  if config.init_from is None:
    return new
  params = export.initial_params(
      config.init_from,
      built.abstract.params,
      model=config.model,
      fresh=new.params,
  )
  say(f'starting from the parameters of {config.init_from}')
  return program.fresh_state(built, new._replace(params=params, ema={}))


def _next(phase, before) -> state_lib.TrainState:
  """What a phase starts with after another."""
  if phase.config.moments == 'reset':
    return program.fresh_state(phase.program, before)
  # Skipped steps are counted by phase, as the schedule's clock is.
  before = before._replace(
      opt_state=factory.at_update(before.opt_state, 0),
      skipped=jnp.zeros_like(before.skipped),
  )
  wanted = phase.program.abstract
  return jax.device_put(before, jax.tree.map(lambda x: x.sharding, wanted))
