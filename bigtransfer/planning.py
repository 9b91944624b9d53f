"""Compiles a phase for a slice that is not there, and what follows from it."""

import concurrent.futures
import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bigtransfer import config as config_lib
from bigtransfer import (
    hlo,
    hlo_cost,
    hlo_memory,
    model_flops,
    out_of_memory,
    plan_cache,
    plan_data,
    program,
    topologies,
    trees,
)
from bigtransfer import mesh as mesh_lib


class Job(NamedTuple):
  """A phase that is to be planned.

  Attributes:
    name: of the phase.
    config: of the phase, not resolved, with what the data would set.
    num_examples: of the training set, None where nobody knows.
  """

  name: str
  config: Any
  num_examples: int | None


class Built(NamedTuple):
  """A phase that can be compiled."""

  job: Job
  config: Any
  topology: topologies.Topology
  program: program.Program

  @property
  def parts(self) -> int:
    """Into how many parts the devices split a batch."""
    return self.program.parts


def jobs(config: Any, asked: plan_data.Asked) -> list[Job]:
  """Returns the phases of a config as `config.load` gives it.

  Raises ValueError for what only the data tells and nobody else does.
  """
  return [
      Job(name, given, plan_data.fill(given, asked))
      for name, given in config_lib.phases(config)
  ]


def build(job: Job, topology: topologies.Topology) -> Built:
  """Traces the real step of a phase for the devices of a slice.

  Raises ValueError for what does not fit the slice or cannot be.
  """
  devices = _devices(topology)
  mesh = mesh_lib.make(job.config.mesh, devices)
  hosts = len({d.process_index for d in devices})
  c = job.config
  mesh_lib.check_batch(c.batch_size, mesh, hosts, c.accum_steps)
  try:
    resolved = config_lib.resolve(c, job.num_examples)
  except ValueError as e:
    if job.num_examples is None:
      raise ValueError(f'{e}; give --num_examples') from e
    raise
  spec = plan_data.batch_spec(resolved)
  return Built(job, resolved, topology, program.build(resolved, spec, mesh))


@functools.cache
def _devices(topology):
  return topologies.devices(topology)


def plan(builts: Sequence[Built], cache: bool = True) -> list[dict[str, Any]]:
  """Compiles phases, two at a time, and returns a plan of each; see `derive`.

  A phase that does not fit has a plan too, with `fits` False.
  """
  folder = plan_cache.FOLDER if cache else None
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    running = [
        pool.submit(
            plan_cache.cached,
            folder,
            plan_cache.key(b.config, b.topology),
            functools.partial(_compile, b, b.program.step.lower(
                b.program.abstract, b.program.batch_spec)),
        )
        for b in builts
    ]
    measured = [r.result() for r in running]
  return [derive(b, m) for b, m in zip(builts, measured, strict=True)]


def _compile(built, lowered):
  """Returns what the compiler says, as plain values."""
  start = time.time()
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    sizes = out_of_memory.sizes(str(e))
    if sizes is None:
      raise
    return {'needed_bytes': sizes[0], 'available_bytes': sizes[1]}
  memory, text = compiled.memory_analysis(), compiled.as_text()
  cost = hlo_cost.cost(text)
  return {
      'compile_seconds': time.time() - start,
      'argument_bytes': memory.argument_size_in_bytes,
      'temporary_bytes': memory.temp_size_in_bytes,
      'peak_bytes': memory.peak_memory_in_bytes,
      'hbm_bytes': cost.bytes,
      'executed_flops': cost.flops,
      'collectives': [c._asdict() for c in hlo.collectives(text)],
      'layers': hlo_memory.by_layer(text),
  }


def derive(built: Built, measured: dict[str, Any]) -> dict[str, Any]:
  """Returns the plan of a phase, ready for JSON.

  Bytes and seconds are of one device and one step. The seconds of a step are
  the largest of three bounds, arithmetic at the peak, HBM at its rate and
  links at theirs, so a real step takes longer.
  """
  c, topology = built.config, built.topology
  chip, state = topology.chip, built.program.abstract
  devices = topology.num_devices
  image, _ = plan_data.batch_spec(c).get('image', ((), None))
  flops = model_flops.train_flops(c, image[1:]) * c.batch_size
  result = {
      'phase': built.job.name,
      'topology': topology.name,
      'chips': topology.num_chips,
      'devices': devices,
      'batch_size': c.batch_size,
      'accum_steps': c.accum_steps,
      'per_device': c.batch_size // built.parts // c.accum_steps,
      'remat': c.model.remat,
      'sharding': c.sharding.preset or 'as given',
      'dtype': c.model.dtype,
      'parameters': count(state.params),
      'usable_bytes': chip.usable,
      'state_bytes': held(state),
      'model_flops': flops,
      'steps': c.total_steps,
      **measured,
  }
  if 'needed_bytes' in measured:
    return result | {'fits': False}
  result['activation_bytes'] = (
      measured['peak_bytes'] - measured['argument_bytes']
  )
  seconds = {
      # With what remat repeats, which is no work of the model.
      'compute': measured['executed_flops'] / chip.flops,
      'hbm': measured['hbm_bytes'] / chip.bandwidth,
      'ici': sum(
          link_seconds(collective, topology)
          for collective in measured['collectives']
      ),
  }
  step = max(seconds.values())
  result |= {
      'fits': True,
      'collective_bytes': sum(
          x['bytes'] * x['times'] for x in measured['collectives']
      ),
      'seconds': seconds,
      'step_seconds': step,
      'bound': max(seconds, key=seconds.get),
      'mfu_bound': flops / devices / chip.flops / step,
      'examples_per_second': c.batch_size / step,
      'hours': step * c.total_steps / 3600,
      'chip_hours': step * c.total_steps / 3600 * topology.num_chips,
  }
  return result


def link_seconds(collective: dict[str, Any], topology) -> float:
  """Seconds of a collective in one step, over all links of a torus.

  An all-gather or a reduce-scatter of V bytes brings (n - 1) / n of them over
  the links of a chip, an all-reduce twice as much. The devices of a chip share
  its links and first work among themselves.
  """
  chip = topology.chip
  chips = min(
      max(1, collective['group_size'] // chip.devices), topology.num_chips
  )
  passes = 2 if collective['kind'] == 'all-reduce' else 1
  volume = passes * collective['bytes'] * (chips - 1) / chips
  return collective['times'] * volume / chip.chip_ici


def count(tree: Any) -> int:
  """Number of values in a tree of shapes."""
  return sum(int(np.prod(x.shape)) for _, x in trees.flatten(tree))


def held(tree: Any) -> int:
  """Bytes that one device holds of a tree of shapes with shardings."""
  return sum(
      int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize
      for _, x in trees.flatten(tree)
  )
