"""What one phase runs, built from its config without allocating anything.

Shapes first, then shardings, then one jitted start straight into them.
"""

import concurrent.futures
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bigtransfer import mesh as mesh_lib
from bigtransfer import (
  models,
  out_of_memory,
  reduction,
  sharding,
  tasks,
  trees,
)
from bigtransfer import state as state_lib
from bigtransfer.optim import factory, schedules
from bigtransfer.train_step import make_train_step


class Program(NamedTuple):
  """What one phase runs, built from its config without allocating.

  `step` returns the metrics as one vector in the order of `metric_names`: a
  step of a tiny model is short enough to notice eight arrays instead of one.
  """

  model: Any
  tx: Any
  step: Callable[[Any, Any], tuple[Any, jax.Array]]
  metric_names: tuple[str, ...]
  abstract: state_lib.TrainState
  init: Callable[[], state_lib.TrainState]
  batch_sharding: Any
  batch_spec: dict[str, jax.ShapeDtypeStruct]

  @property
  def parts(self) -> int:
    """Into how many parts the devices split a batch."""
    shape = self.batch_sharding.mesh.shape
    return math.prod(shape[axis] for axis in mesh_lib.BATCH_AXES)


class Phase(NamedTuple):
  """One phase of a run.

  Attributes:
    name: of the phase.
    config: resolved.
    data: has `spec` ({name: (global shape, dtype)}), `train(config, step)`,
      an iterator of this process's rows from that step of the phase on,
      `evaluate(config)`, `class_names`, `identity()`, what tells its training
      set from others, and `model_fields()`, what the model must have of it.
    begin: the step of the run at which the phase starts.
    program: what it runs.
  """

  name: str
  config: Any
  data: Any
  begin: int
  program: Program

  @property
  def end(self) -> int:
    return self.begin + self.config.total_steps


def build(config: Any, spec: Any, mesh: jax.sharding.Mesh) -> Program:
  """Builds model, optimizer and step.

  Args:
    config: resolved.
    spec: {name: (global shape, dtype)} of a batch.
    mesh: of all devices.

  Raises:
    ValueError: the config describes something that cannot be.
  """
  model = models.load(config.model.name).build(config.model)
  task = tasks.build(config.task, config, model)
  batch_sharding = sharding.batch_sharding(mesh)
  batch_spec = {
      k: jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding)
      for k, (shape, dtype) in spec.items()
      if k != 'id'  # It stays on the host, see prefetch.py.
  }
  tx, init = state_lib.initializer(
      model,
      functools.partial(factory.make, config),
      batch_spec,
      seed=config.seed,
      with_ema=config.ema_decay is not None,
  )
  shapes = jax.eval_shape(init)
  shardings = sharding.tree_shardings(shapes, mesh, config.sharding)
  _check_norms(config)
  schedule = schedules.make(config, config.total_steps)
  step = make_train_step(
      task,
      tx,
      mesh=mesh,
      accum_steps=config.accum_steps,
      nonfinite=config.nonfinite,
      ema_decay=config.ema_decay,
      seed=config.seed,
      learning_rate=lambda state: schedule(factory.clock(state)),
      state_shardings=shardings,
      layout=_layout(shapes.params, shardings.params, mesh, config.sharding),
  )
  abstract = jax.tree.map(
      lambda x, s: x.update(sharding=s), shapes, shardings
  )
  packed_step, names = _pack(step, abstract, batch_spec)
  return Program(
      model=model,
      tx=tx,
      step=packed_step,
      metric_names=names,
      abstract=abstract,
      init=jax.jit(
          init, out_shardings=shardings, compiler_options=_quick_compile()
      ),
      batch_sharding=batch_sharding,
      batch_spec=batch_spec,
  )


def check_chain(phases: Sequence[Phase]):
  """Raises ValueError if a phase cannot go on where the one before ends."""
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


def _layout(shapes, shardings, mesh, config):
  grads = sharding.gradient_shardings(shapes, mesh, config)
  return reduction.Layout(mesh, shardings, grads, config.reduce_dtype)


def _check_norms(config):
  if config.norms_every and config.optimizer.name not in ('lamb', 'lars'):
    raise ValueError(
        f'config.norms_every={config.norms_every}: only lamb and lars keep'
        f' norms, and config.optimizer.name={config.optimizer.name!r}'
    )


def compile_step(phase: Phase) -> concurrent.futures.Future:
  """Starts to compile the step of a phase, which will be the result.

  It compiles on a thread, while the state is made or read. The result raises
  out_of_memory.OutOfMemoryError where the devices have no room for the step.
  """
  program = phase.program
  lowered = program.step.lower(program.abstract, program.batch_spec)
  pool = concurrent.futures.ThreadPoolExecutor(1)
  compiled = pool.submit(_compile, lowered, phase)
  pool.shutdown(wait=False)
  return compiled


def _compile(lowered, phase):
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    known = out_of_memory.error(str(e), phase)
    if known:
      raise known from e
    raise


def _quick_compile() -> dict[str, int] | None:
  """For what runs once: R50x1's init takes 4.5 s at level 1, at 2 or 0 more.

  (3.6 s to compile and 1.2 to run at 0, 4.3 and 0.2 at 1, 6.5 and 0.2 at 2.)
  """
  if jax.default_backend() != 'cpu':
    return None
  return {'xla_backend_optimization_level': 1}


def _pack(step, abstract, batch_spec):
  """Returns the step with its metrics as one vector, and their names."""
  # Traced with its final layout, so that the first step need not do it again.
  names = tuple(sorted(jax.eval_shape(step, abstract, batch_spec)[1]))

  def packed_step(state, batch):
    state, values = step(state, batch)
    return state, jnp.stack([values[name] for name in names])

  return jax.jit(packed_step, donate_argnums=0), names


def fresh_state(
    program: Program, state: state_lib.TrainState
) -> state_lib.TrainState:
  """A state with the same parameters and step, and a new optimizer state.

  A moving average goes on; where there is none, it starts as a copy.
  """

  def start(state):
    new = state_lib.create(
        state.params,
        program.tx,
        model_state=state.model_state,
        with_ema=bool(program.abstract.ema),
    )
    ema = state.ema if state.ema and new.ema else new.ema
    return new._replace(step=state.step, ema=ema)

  shardings = jax.tree.map(lambda x: x.sharding, program.abstract)
  return jax.jit(start, out_shardings=shardings)(
      state._replace(opt_state=())
  )
