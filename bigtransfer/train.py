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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bigtransfer import checkpoint as checkpoint_lib
from bigtransfer import (
  coordination,
  entry,
  evaluation,
  messages,
  metrics,
  model_flops,
  prefetch,
  stopwatch,
  trees,
)
from bigtransfer import ledger as ledger_lib
from bigtransfer import program as program_lib
from bigtransfer import progress as progress_lib
from bigtransfer import trace as trace_lib
from bigtransfer.optim import trust_ratio
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
    began: float | None = None,
) -> Result:
  """Runs the phases from wherever the workdir stands.

  Args:
    phases: in order; steps count on from one to the next.
    workdir: an existing folder.
    group: the processes of the run, asked before every step for the event
      'stop', to save and return; None = this one alone.
    say: gets messages for the user.
    began: when the process did, by `time.monotonic`; None = now.

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
  watch = stopwatch.Stopwatch(began)
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
    ledger = ledger_lib.Ledger(workdir if group.primary else None, watch)
    run = _Run(phases, workdir, manager, writer, ledger, watch, group, say)
    if run.finished():
      return Result('finished', run.step, writer.evaluation)
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
      with watch.during('checkpoints'):
        manager.wait()
    finally:
      ledger.write('stop', step=run.step, examples=run.examples, reason=reason)
  return Result(reason, run.step, writer.evaluation)


class _Run:
  """The state of a run, on the host."""

  def __init__(
      self, phases, workdir, manager, writer, ledger, watch, group, say
  ):
    self._phases, self._workdir = phases, workdir
    self._manager, self._writer = manager, writer
    self._ledger, self._watch = ledger, watch
    self._group, self._say = group, say
    # Files that one process writes.
    self._ours = workdir if group.primary else None
    self._bad_images = metrics.BadImages(workdir, say, group.index)
    self.step = self._saved = manager.latest_step() or 0
    self.examples = 0
    self._events = set()  # What all processes are to do when they can.

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
        with self._watch.during('compilation'):
          step = program_lib.compile_step(phase)
      with self._watch.during('start'):
        state = entry.state(
            phase, state, self._manager, self.step, self._say
        )
      # At a phase's end only its evaluation may be left to do.
      if step or not self._evaluated_now():
        state, reason = self._loop(phase, state, step)
        if reason == 'stopped':
          return reason
    return 'done'

  def _loop(self, phase, state, step):
    """Trains to the phase's end; returns state and 'done' or 'stopped'.

    `step` will be the compiled step, None where none is left to do.
    """
    config, program, begin = phase.config, phase.program, phase.begin
    compiled, watch = None, self._watch
    progress = progress_lib.Progress(
        self._ours,
        self.step,
        total=self._phases[-1].end,
        work=model_flops.work(phase),
        watch=watch,
    )
    trace = trace_lib.Trace(
        self._ours, config.trace_steps or (), self._say
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
        phase, self._workdir, self._bad_images.note, self._stop_asked
    )
    save_every = config.checkpoint.minutes and 60 * config.checkpoint.minutes
    saved_at = time.monotonic()

    def due(every, since=begin):
      return every and (self.step - since) % every == 0 and self.step > begin

    with (
        contextlib.closing(progress),
        contextlib.closing(trace),
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
        last, stopping = self.step == phase.end, self._stop_asked()
        if (
            (last or due(config.eval_every))
            and self._writer.evaluated != self.step
            and not stopping
        ):
          recorder.flush(last=True)
          with watch.during('evaluation'):
            values = evaluate(state)
          stopping = values is None
          if not stopping:
            evaluation.check_best(values, config.checkpoint.best_metric)
            self._writer.write(self.step, phase.name, 'eval', values)
            self._say(messages.summary(self.step, values))
        if self.step != self._saved and (
            last
            or stopping
            or due(config.checkpoint.every)
            or due(config.checkpoint.keep_every, since=0)
            or (config.checkpoint.best_metric and self._evaluated_now())
            or 'save' in self._events
        ):
          recorder.flush()
          values = self._writer.evaluation if self._evaluated_now() else {}
          # Orbax copies the arrays to the host itself.
          with watch.during('checkpoints'), jax.transfer_guard('allow'):
            self._manager.save(self.step, state, values)
          self._ledger.write('save', step=self.step)
          self._saved, saved_at = self.step, time.monotonic()
          self._bad_images.note(source.bad)
        self._events.discard('save')
        if last or stopping:
          done = last and self._evaluated_now()
          return state, 'done' if done else 'stopped'
        with watch.during('data'):
          batch = next(batches)
        if compiled is None:
          with watch.during('compilation'):
            # Minutes, and the machine may be taken in 30 s; all is saved.
            if not self._group.await_all(f'step of phase {begin}', step):
              return state, 'stopped'
            compiled = step.result()
        trace.before(self.step + 1)
        state, values = compiled(state, batch)
        self.step += 1
        trace.after(self.step, values)
        self.examples += config.batch_size
        norms = None
        if due(config.norms_every):
          # Copies, because the next step donates its state.
          norms = jax.tree.map(jnp.copy, trust_ratio.norms(state.opt_state))
        recorder.add(self.step, values, norms)

  def _stop_asked(self) -> bool:
    """Called at the same points of the run by all processes."""
    self._events |= self._group.check()
    return 'stop' in self._events

  def _evaluated_now(self) -> bool:
    return self._writer.evaluated == self.step
