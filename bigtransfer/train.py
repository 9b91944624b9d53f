"""The one training loop: phases of restore, step, log, save and evaluate.

Order inside the loop is law: evaluate the state as it stands, save it, pull
the next batch, step, log the step before. So a checkpoint of step k holds the
state after k updates, everything up to k is in the metrics file before it is
committed, and batch k is the first thing a resumed run reads.
"""

import bisect
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bigtransfer import checkpoint as checkpoint_lib
from bigtransfer import (
  coordination,
  evaluation,
  export,
  metrics,
  prefetch,
  trees,
)
from bigtransfer import ledger as ledger_lib
from bigtransfer import program as program_lib
from bigtransfer import state as state_lib
from bigtransfer.optim import factory, trust_ratio
from bigtransfer.program import Phase


class Result(NamedTuple):
  """How a run ended: 'done', 'stopped' (asked to) or 'finished' (before)."""

  reason: str
  step: int
  evaluation: dict[str, float]


def train(
    phases: Sequence[Phase],
    workdir: str,
    *,
    group: coordination.Group | None = None,
    say: Callable[[str], None] = print,
) -> Result:
  """Runs the phases from wherever the workdir stands.

  Args:
    phases: in order; steps count on from one to the next.
    workdir: an existing folder.
    group: the processes of the run, asked before every step for the event
      'stop', to save and return; None = this one alone.
    say: gets messages for the user.

  Returns:
    Why it ended, at which step, and the last evaluation.

  Raises:
    NonFiniteError: see `config.nonfinite`.
    RuntimeError: a checkpoint could not be written.
    MismatchError, FileNotFoundError: the workdir's checkpoint or `init_from`
      do not fit the config.
  """
  config = phases[0].config
  group = group or coordination.Group(None, 0, 1, None)
  with (
      checkpoint_lib.CheckpointManager(
          os.path.join(workdir, 'checkpoints'), config.checkpoint
      ) as manager,
      metrics.MetricWriter(
          workdir,
          manager.latest_step() or 0,
          tensorboard=config.tensorboard,
          group=group,
      ) as writer,
  ):
    run = _Run(phases, workdir, manager, writer, group, say)
    if run.finished():
      return Result('finished', run.step, writer.evaluation)
    ledger = ledger_lib.Ledger(workdir if group.primary else None)
    ledger.write(
        'start',
        step=run.step,
        devices=jax.device_count(),
        device_kind=jax.devices()[0].device_kind,
        processes=jax.process_count(),
    )
    reason = 'failed'
    try:
      reason = run.all_phases()
      manager.wait()
    finally:
      ledger.write('stop', step=run.step, examples=run.examples, reason=reason)
  return Result(reason, run.step, writer.evaluation)


class _Run:
  """The state of a run, on the host."""

  def __init__(self, phases, workdir, manager, writer, group, say):
    self._phases, self._workdir = phases, workdir
    self._manager, self._writer = manager, writer
    self._group, self._say = group, say
    self._bad_images = metrics.BadImages(workdir, say, group.index)
    self.step = self._saved = manager.latest_step() or 0
    self.examples = 0

  def finished(self) -> bool:
    end = self._phases[-1].end
    return self.step == end and self._writer.evaluated == end

  def all_phases(self) -> str:
    """Returns why it ended: 'done' or 'stopped'."""
    # A checkpoint at a phase's end was made by that phase.
    ends = [phase.end for phase in self._phases]
    state = None
    for phase in self._phases[bisect.bisect_left(ends, self.step) :]:
      step = None
      if self.step < phase.end:
        step = program_lib.compile_step(phase.program)
      state = self._enter(phase, state)
      # At a phase's end only its evaluation may be left to do.
      if step or not self._evaluated_now():
        state, reason = self._loop(phase, state, step)
        if reason == 'stopped':
          return reason
    return 'done'

  def _enter(self, phase, state) -> state_lib.TrainState:
    """The phase before, the workdir's checkpoint, `init_from`, or scratch."""
    program, config = phase.program, phase.config
    if state is not None:
      return self._next(phase, state)
    if self.step:
      self._say(f'going on from step {self.step} of {self._workdir}')
      if not config.reset_optimizer:
        return self._manager.restore(program.abstract, self.step)
      state = self._manager.restore(
          program.abstract, self.step, reset_optimizer=program.tx
      )
      updates = state.step - state.skipped - phase.begin
      return state._replace(
          opt_state=factory.at_update(state.opt_state, updates)
      )
    state = program.init()
    if config.init_from is None:
      return state
    params = export.initial_params(
        config.init_from,
        program.abstract.params,
        model=config.model,
        fresh=state.params,
    )
    self._say(f'starting from the parameters of {config.init_from}')
    state = state._replace(params=params, ema={})
    return program_lib.fresh_state(program, state)

  def _next(self, phase, state) -> state_lib.TrainState:
    """What a phase starts with after another."""
    if phase.config.moments == 'reset':
      return program_lib.fresh_state(phase.program, state)
    # Skipped steps are counted by phase, as the schedule's clock is.
    state = state._replace(
        opt_state=factory.at_update(state.opt_state, 0),
        skipped=jnp.zeros_like(state.skipped),
    )
    wanted = phase.program.abstract
    return jax.device_put(state, jax.tree.map(lambda x: x.sharding, wanted))

  def _loop(self, phase, state, step):
    """Trains to the phase's end; returns state and 'done' or 'stopped'.

    `step` is the compiled step, None where none is left to do.
    """
    config, program, begin = phase.config, phase.program, phase.begin
    progress = metrics.Progress(
        self._workdir if self._group.primary else None,
        self.step,
        total=self._phases[-1].end,
        batch_size=config.batch_size,
        devices=jax.device_count(),
    )
    recorder = metrics.Recorder(
        self._writer,
        progress,
        phase.name,
        log_every=config.log_every,
        nonfinite=config.nonfinite,
        names=program.metric_names,
        leaves=[path for path, _ in trees.flatten(program.abstract.params)],
    )
    evaluate = evaluation.evaluation(
        phase, self._workdir, self._bad_images.note
    )
    save_every = config.checkpoint.minutes and 60 * config.checkpoint.minutes
    saved_at = time.monotonic()

    def due(every, since=begin):
      return every and (self.step - since) % every == 0 and self.step > begin

    with (
        contextlib.closing(progress),
        contextlib.closing(
            phase.data.train(config, self.step - begin)
        ) as source,
        jax.transfer_guard('disallow'),
    ):
      batches = prefetch.Prefetcher(source, program.batch_sharding)
      while True:
        if save_every and time.monotonic() - saved_at > save_every:
          # By the clock of one process, agreed with the others.
          saved_at = time.monotonic()
          if self._group.primary:
            self._group.ask('save')
        events = self._group.check()
        last, stopping = self.step == phase.end, 'stop' in events
        if (
            (last or due(config.eval_every))
            and self._writer.evaluated != self.step
            and not stopping
        ):
          recorder.flush(last=True)
          with progress.pause():
            values = evaluate(state)
          evaluation.check_best(values, config.checkpoint.best_metric)
          self._writer.write(self.step, phase.name, 'eval', values)
          self._say(summary(self.step, values))
        if self.step != self._saved and (
            last
            or stopping
            or due(config.checkpoint.every)
            or due(config.checkpoint.keep_every, since=0)
            or (config.checkpoint.best_metric and self._evaluated_now())
            or 'save' in events
        ):
          recorder.flush()
          values = self._writer.evaluation if self._evaluated_now() else {}
          # Orbax copies the arrays to the host itself.
          with progress.pause(), jax.transfer_guard('allow'):
            self._manager.save(self.step, state, values)
          self._saved, saved_at = self.step, time.monotonic()
          self._bad_images.note(source.bad)
        if last or stopping:
          done = last and self._evaluated_now()
          return state, 'done' if done else 'stopped'
        batch = next(batches)
        state, values = step(state, batch)
        self.step += 1
        self.examples += config.batch_size
        norms = None
        if due(config.norms_every):
          # Copies, because the next step donates its state.
          norms = jax.tree.map(jnp.copy, trust_ratio.norms(state.opt_state))
        recorder.add(self.step, values, norms)

  def _evaluated_now(self) -> bool:
    return self._writer.evaluated == self.step


def summary(step: int, values: Mapping[str, float]) -> str:
  """Says in one line what an evaluation gave; counts are whole numbers."""
  parts = '  '.join(
      f'{name} {int(value) if value.is_integer() else format(value, ".4g")}'
      for name, value in values.items()
  )
  return f'evaluation at step {step:,}: {parts}'
