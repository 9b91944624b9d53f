"""Checkpoints: Orbax behind one small interface.

A checkpoint of step k is the folder `<directory>/k` with one Orbax item per
part of the state (`params`, `opt_state`, `ema`, ...), so that parts restore
alone. It restores onto any mesh. Saving is asynchronous: the loop only orders
a copy of the state in the host's memory, and a thread does the rest.
"""

import concurrent.futures
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from bigtransfer import files, retention, saved, trees
from bigtransfer.state import TrainState, host_copy

# Of a save that fails, SaveError tells; asyncio would tell again, write by
# write and after the program's last word.
logging.getLogger('asyncio').setLevel(logging.CRITICAL)

PARTS = ('params', 'model_state', 'opt_state', 'ema', 'progress')


class SaveError(RuntimeError):
  """A checkpoint could not be written; the ones before are intact."""


class CheckpointManager:
  """Saves, keeps and restores train states in one folder."""

  def __init__(self, directory: str, config: Any):
    """Opens or makes the folder; left-overs of broken saves are removed.

    Args:
      directory: made absolute; may be a bucket address.
      config: the `checkpoint` section, durations in steps.

    Raises:
      ValueError: `keep` below 1.
    """
    if config.keep is not None and config.keep < 1:
      raise ValueError(
          f'checkpoint.keep={config.keep}; accepted: 1 or more, or None = all'
      )
    directory = files.absolute(directory)
    files.make_folder(directory)
    self.directory = directory
    self._config = config
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._saving = None
    # Unnamed, they would wait for each other by collectives, which must not
    # come from another thread than the steps'.
    several = ocp.options.MultiprocessingOptions(
        primary_host=0, active_processes=set(range(jax.process_count()))
    )
    self._manager = ocp.CheckpointManager(
        directory,
        item_handlers={
            part: ocp.StandardCheckpointHandler(multiprocessing_options=several)
            for part in PARTS
        },
        options=ocp.CheckpointManagerOptions(
            create=False,
            multiprocessing_options=several,
            # Only makes Orbax store the metrics; retention ranks them.
            best_fn=lambda metrics: 0.0,
            preservation_policy=retention.Policy(config),
            cleanup_tmp_directories=True,
        ),
    )

  def save(
      self,
      step: int,
      state: TrainState,
      metrics: Mapping[str, float] | None = None,
  ):
    """Starts saving; waits only for a save that is still under way.

    Args:
      step: name of the checkpoint, equal to `state.step`.
      state: its arrays may be donated as soon as this returns.
      metrics: evaluation of this very state, for `best_step`.

    Raises:
      SaveError: the save before failed; the checkpoints from before it are
        intact.
    """
    self.wait()
    parts = {k: v for k, v in _parts(state).items() if jax.tree.leaves(v)}
    self._saving = self._thread.submit(
        self._write, step, host_copy(parts), dict(metrics or {})
    )

  def _write(self, step, parts, metrics):
    with _explained(f'saving checkpoint {step} in {self.directory}'):
      if step in self._manager.all_steps() and step not in self.steps():
        self._manager.delete(step)  # Half-written: it can never be restored.
      self._manager.save(
          step, args=_items('Save', parts), metrics=metrics, force=True
      )
      self._manager.wait_until_finished()
      self._manager.check_for_errors()

  def restore(
      self,
      abstract: TrainState,
      step: int | None = None,
      *,
      reset_optimizer: Any = None,
  ) -> TrainState:
    """Restores a state with the structure, types and shardings asked for.

    Args:
      abstract: `jax.ShapeDtypeStruct`s with shardings.
      step: which checkpoint; None = the newest complete one.
      reset_optimizer: an optax transformation; if `opt_state` is of another
        one, it is made anew with it.

    Raises:
      FileNotFoundError: there is no such checkpoint.
      MismatchError: it was made with another model or optimizer.
    """
    step = self.latest_step() if step is None else step
    if step is None or step not in self.steps():
      raise FileNotFoundError(
          f'{self.directory} has no checkpoint {"" if step is None else step}'
          f' (it has {self.steps()})'
      )
    wanted = {k: v for k, v in _parts(abstract).items() if jax.tree.leaves(v)}
    found = self._manager.item_metadata(step)
    reset = False
    for part, tree in list(wanted.items()):
      there = found[part] if part in found else None
      problem = trees.mismatch(there.tree, tree) if there else 'is missing'
      if problem and part == 'opt_state' and reset_optimizer is not None:
        del wanted[part]
        reset = True
      elif problem:
        raise saved.MismatchError(
            _other_run(self.directory, step, part, problem)
        )
    restored = self._manager.restore(step, args=_items('Restore', wanted))
    progress = restored['progress']
    state = TrainState(
        step=progress['step'],
        params=restored['params'],
        model_state=restored.get('model_state', abstract.model_state),
        opt_state=restored.get('opt_state', abstract.opt_state),
        ema=restored.get('ema', abstract.ema),
        skipped=progress['skipped'],
    )
    if reset:
      shardings = jax.tree.map(lambda x: x.sharding, abstract.opt_state)
      init = jax.jit(reset_optimizer.init, out_shardings=shardings)
      state = state._replace(opt_state=init(state.params))
    return state

  def wait(self):
    """Returns when all saves are on disk; raises SaveError if one failed."""
    saving, self._saving = self._saving, None
    if saving:
      saving.result()

  def steps(self) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    return saved.complete_steps(self.directory)

  def latest_step(self) -> int | None:
    return max(self.steps(), default=None)

  def best_step(self) -> int | None:
    """The best by `best_metric`; None without one or without a finite value."""
    values = {
        step: metrics[self._config.best_metric]
        for step in self.steps()
        if (metrics := self._manager.metrics(step))
        and self._config.best_metric in metrics
    }
    return retention.best(values, self._config.best_mode)

  def close(self):
    try:
      self.wait()
    finally:
      self._thread.shutdown()
      # Where a save failed, Orbax says so once more.
      with _explained(f'saving a checkpoint in {self.directory}'):
        self._manager.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()


def _items(action: str, parts: dict[str, Any]) -> ocp.args.Composite:
  make = getattr(ocp.args, f'Standard{action}')
  return ocp.args.Composite(**{k: make(v) for k, v in parts.items()})


def _parts(state: TrainState) -> dict[str, Any]:
  """Splits a state into Orbax items; the scalars share one."""
  return {
      'params': state.params,
      'model_state': state.model_state,
      'opt_state': state.opt_state,
      'ema': state.ema,
      'progress': {'step': state.step, 'skipped': state.skipped},
  }


def _other_run(directory, step, part, problem) -> str:
  hint = {
      'opt_state': (
          'the optimizer was another one; --config.reset_optimizer=true keeps'
          ' parameters and step and starts its state anew'
      ),
      'ema': 'ema_decay was off then and on now, or the other way round',
  }.get(part, 'the model was another one')
  return f'checkpoint {step} in {directory}: {part} {problem}: {hint}'


@contextlib.contextmanager
def _explained(action: str):
  """Turns what Orbax raises from its threads into one plain error."""
  try:
    yield
  except Exception as e:
    raise SaveError(
        f'{action} failed: {e}; the checkpoints from before are intact'
    ) from e
