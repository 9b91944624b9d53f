"""How a process starts: joins the others, minds signals, takes its devices."""

import importlib.util
import os
import signal
import sys
import threading
from typing import Any

import jax

from bigtransfer import coordination, host_memory


def needed(section: Any, environ=os.environ) -> bool:
  """Whether to call `jax.distributed.initialize`.

  `section.initialize` None leaves it to what else is given and to the
  environment: Slurm with several tasks, an indexed job of Kubernetes, or a TPU,
  whose hosts find each other through the metadata server.
  """
  if section.initialize is not None:
    return section.initialize
  on_tpu = (
      environ.get('JAX_PLATFORMS') != 'cpu'
      and importlib.util.find_spec('libtpu') is not None
      and _sees_tpu()
  )
  return (
      section.num_processes is not None
      or section.coordinator_address is not None
      or ('SLURM_PROCID' in environ and environ.get('SLURM_NTASKS', '1') != '1')
      or {'KUBERNETES_SERVICE_HOST', 'JOB_COMPLETION_INDEX'} <= set(environ)
      or on_tpu
  )


def _sees_tpu():
  return os.path.exists('/dev/accel0') or os.path.exists('/dev/vfio/0')


def hush_libtpu():
  """Keeps libtpu quiet on a machine without a TPU, where the planner needs it.

  JAX looks for TPUs wherever it is installed, and it complains in five lines
  that it is not in a cloud. To be called before JAX's first devices.
  """
  if not _sees_tpu():
    os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5litepod-8')
    os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')


def start(section: Any) -> coordination.Group:
  """Returns the group of processes that this one belongs to.

  `section` is `config.distributed`. Says on stderr whom it waits for, and who
  it is.

  Raises:
    coordination.GroupError: the numbers given make no sense. A process that
      waits longer than `section.timeout` seconds for the others ends with 1.
  """
  if not needed(section):
    return coordination.Group(None, 0, 1, section.hang_seconds)
  # It would take SIGTERM for itself; see Group.check for what stands for it.
  jax.config.update('jax_enable_preemption_service', False)
  index, count = section.process_id, section.num_processes
  if index is not None and count is not None and index >= count:
    raise coordination.GroupError(
        f'config.distributed.process_id={index} with num_processes={count};'
        f' accepted: 0 to {count - 1}'
    )
  place = section.coordinator_address or 'the address that JAX finds'
  count = count or 'as many as JAX finds'
  _note(f'waiting for {count} processes at {place}')
  who = 'this' if index is None else f'process {index}'
  # JAX would abort by itself, with a stack trace and no plain sentence.
  timer = threading.Timer(section.timeout, coordination.end, (
      f'{who} has waited {section.timeout} s for {count} processes at {place}'
      ' (config.distributed.timeout); start the same command on every worker,'
      ' and let the port through the firewall',
      1,
  ))
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
        section.coordinator_address,
        section.num_processes,
        section.process_id,
        initialization_timeout=section.timeout + 60,
        # Ours come first and say who is silent: this one ends a process, with
        # a stack trace, after anything from half of it on.
        heartbeat_timeout_seconds=2 * section.heartbeat_timeout + 60,
    )
  except (RuntimeError, ValueError, TypeError) as e:
    raise coordination.GroupError(f'config.distributed: {e}') from e
  finally:
    timer.cancel()
  # JAX has no public way to its key-value store, which Orbax uses like this.
  from jax._src import distributed

  state = distributed.global_state
  index, count = state.process_id, state.num_processes
  _note(f'process {index} of {count}, coordinator {state.coordinator_address}')
  store = coordination.Store(state.client)
  return coordination.Group(
      store, index, count, section.hang_seconds, section.heartbeat_timeout
  )


def listen(group):
  """Makes SIGTERM and SIGINT ask all processes to save and stop."""

  def ask(number, frame):
    _note('saving, then stopping; once more stops at once')
    group.ask('stop')
    signal.signal(number, signal.SIG_DFL)

  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, ask)


def start_devices(config: Any):
  """Sets the compilation cache and asks JAX for its devices.

  Raises ValueError if they are not of `config.platform`.
  """
  if config.compilation_cache is not None:
    cache = os.path.expanduser(config.compilation_cache)
    jax.config.update('jax_compilation_cache_dir', cache)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
  hush_libtpu()
  try:
    found = jax.default_backend()
  except RuntimeError as e:
    raise ValueError(f'JAX cannot start: {e}') from e
  if config.platform not in (None, found):
    raise ValueError(
        f'config.platform={config.platform!r}, but JAX found {found!r}'
        f' ({jax.device_count()} devices)'
    )
  if found == 'cpu':
    host_memory.keep_freed()


def _note(text):
  print(text, file=sys.stderr, flush=True)
