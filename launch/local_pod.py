"""Runs a program as a pod on this machine: N processes of M CPU devices each.

python -m launch.local_pod --processes 4 --devices 2 --
    --config configs/quickstart.py --workdir runs/a

Everything after `--` goes to each process, which runs the code of a TPU pod
with gloo collectives. Each line of output starts with the number of its
process. SIGTERM, SIGINT and SIGHUP go on to every process; what they do then
is up to them, and a second signal goes on too.

When a process fails (ends with a code other than 0 and 75, or by a signal), the
others get SIGTERM and, --grace seconds later, SIGKILL. What a process left
behind in its process group is killed when the process ends. If the launcher
itself is killed, the kernel kills the processes with it.

Exit codes: that of the first process that failed, 128 + the signal if by a
signal; else 75 if any process stopped early and saved, as the same command then
goes on, and does nothing where all is done; else 0. 2 is wrong use.
"""

import argparse
import ctypes
import os
import random
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

DONE, FAILED, WRONG_USE, STOPPED = 0, 1, 2, 75
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
OWNED = '--config.distributed.'
KEYS = ('initialize', 'coordinator_address', 'num_processes', 'process_id')
# Linux gives ports from 32768 on to whoever asks for any, and the processes
# take seconds to start: by then such a port could be someone else's.
PORTS = range(20000, 32768)
# All that can still hold the output open when the processes have ended is what
# left their process groups.
DRAIN_SECONDS = 1.0
PR_SET_PDEATHSIG = 1


class Pod:
  """The processes of a pod and what they print, in one thread.

  Signals are passed on by their handler, so that a launcher passes them on also
  while it waits for the reader of its output.

  Attributes:
    codes: exit codes of the processes that have ended with 0 or 75.
    failure: (exit code, what happened) of the first failure, or None.
  """

  def __init__(self, grace: float):
    self.codes: set[int] = set()
    self.failure: tuple[int, str] | None = None
    self._grace = grace
    self._live: dict[int, subprocess.Popen] = {}
    self._received: list[int] = []
    self._kill_at: float | None = None
    self._outputs = {1: 1, 2: 2}
    self._selector = selectors.DefaultSelector()
    self._wake, self._wake_end = socket.socketpair()

  def __enter__(self):
    for end in (self._wake, self._wake_end):
      end.setblocking(False)
    self._selector.register(self._wake, selectors.EVENT_READ)
    signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in FORWARDED:
      # What nohup has the launcher ignore, its processes ignore as well.
      if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, self._forward)
    return self

  def __exit__(self, *error):
    self._kill()

  def start(self, index: int, command: Sequence[str], env: Mapping[str, str]):
    """Starts a process in a session of its own, away from the terminal."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        preexec_fn=_dies_with_parent(),
    )
    self._live[index] = process
    for number in self._received:  # while the processes were being started
      os.kill(process.pid, number)
    for pipe, output in ((process.stdout, 1), (process.stderr, 2)):
      data = (b'[%d] ' % index, output, bytearray())
      self._selector.register(pipe, selectors.EVENT_READ, data)

  def wait(self):
    """Passes output on until all processes have ended."""
    while self._live:
      left = None
      if self._kill_at is not None:
        left = max(0.0, self._kill_at - time.monotonic())
      self._pump(left)
      self._reap()
      if self._kill_at is not None and time.monotonic() >= self._kill_at:
        self._kill()
        self._kill_at = None
    until = time.monotonic() + DRAIN_SECONDS
    while self._pipes() and time.monotonic() < until:
      self._pump(until - time.monotonic())
    for key in self._pipes():
      self._end_of_output(key)

  def _forward(self, number, frame):
    self._received.append(number)
    for process in self._live.values():
      os.kill(process.pid, number)

  def _kill(self):
    for process in self._live.values():
      os.killpg(process.pid, signal.SIGKILL)

  def _reap(self):
    for index, process in list(self._live.items()):
      options = os.WEXITED | os.WNOHANG | os.WNOWAIT
      if os.waitid(os.P_PID, process.pid, options) is None:
        continue
      # Before its number is free again: nobody else may be hit.
      os.killpg(process.pid, signal.SIGKILL)
      del self._live[index]
      code = process.wait()
      if code in (DONE, STOPPED):
        self.codes.add(code)
      elif code > 0:
        self._fail(code, f'process {index} ended with exit code {code}')
      else:
        what = f'by signal {-code} ({signal.strsignal(-code)})'
        self._fail(128 - code, f'process {index} was ended {what}')

  def _fail(self, code: int, what: str):
    """Notes the first failure; asks those that live to stop, for a while."""
    if self.failure:
      return
    self.failure = code, what
    self._kill_at = time.monotonic() + self._grace
    for process in self._live.values():
      os.kill(process.pid, signal.SIGTERM)
    self.write(2, f'local_pod: {what}; stopping all\n'.encode())

  def _pipes(self):
    keys = self._selector.get_map().values()
    return [key for key in keys if key.data is not None]

  def _pump(self, seconds: float | None):
    """Passes on what there is to read, waiting at most `seconds` for it."""
    for key, _ in self._selector.select(seconds):
      if key.data is None:
        self._wake.recv(4096)
        continue
      prefix, output, rest = key.data
      chunk = os.read(key.fd, 1 << 16)
      if not chunk:
        self._end_of_output(key)
        continue
      rest += chunk
      end = rest.rfind(b'\n', len(rest) - len(chunk)) + 1
      if end:
        lines = bytes(rest[: end - 1]).split(b'\n')
        del rest[:end]
        self.write(output, b''.join(prefix + x + b'\n' for x in lines))

  def _end_of_output(self, key):
    prefix, output, rest = key.data
    if rest:
      self.write(output, prefix + bytes(rest) + b'\n')
    self._selector.unregister(key.fileobj)
    key.fileobj.close()

  def write(self, output: int, data: bytes):
    """Writes to stdout (1) or stderr (2), all of it and at once."""
    while data:
      fd = self._outputs[output]
      try:
        data = data[os.write(fd, data) :]
      except BlockingIOError:  # a pipe or terminal that does not block
        select.select([], [fd], [])
      except OSError as e:
        # The reader has gone, as `| head` does: so does the pod.
        self._outputs[output] = os.open(os.devnull, os.O_WRONLY)
        self._fail(FAILED, f'output cannot be written: {e.strerror}')


def _dies_with_parent() -> Callable[[], None]:
  """Returns what a new process calls so that it does not outlive this one."""
  libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

  def call():
    failed = libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if failed or os.getppid() != parent:
      os._exit(127)

  return call


def free_port() -> int:
  """Returns a port that nobody uses; raises OSError if there is none."""
  for port in random.sample(PORTS, 100):
    with socket.socket() as probe:
      try:
        probe.bind(('', port))
      except OSError:
        continue
      return port
  raise OSError(f'no free port in 100 tries of {PORTS[0]}..{PORTS[-1]}')


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
  """Runs the pod and returns its exit code."""
  port = args.port or free_port()
  env = {
      **os.environ,
      'JAX_PLATFORMS': 'cpu',
      'JAX_NUM_CPU_DEVICES': str(args.devices),
      'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo',
      'PYTHONUNBUFFERED': '1',
  }
  with Pod(args.grace) as pod:
    for index in range(args.processes):
      pod.start(index, [
          *(sys.executable, '-m', args.module, *rest),
          f'{OWNED}initialize=true',
          f'{OWNED}coordinator_address=localhost:{port}',
          f'{OWNED}num_processes={args.processes}',
          f'{OWNED}process_id={index}',
      ], env)
    pod.wait()
    if pod.failure is None:
      return max(pod.codes)
    code, what = pod.failure
    pod.write(2, f'error: {what} (of {args.processes})\n'.encode())
    return code


def parse_args(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  """Returns the launcher's options and the arguments of the processes."""
  own, rest = list(argv), None
  if '--' in own:
    at = own.index('--')
    own, rest = own[:at], own[at + 1 :]
  parser = argparse.ArgumentParser(
      'python -m launch.local_pod',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
      usage='%(prog)s --processes N --devices M [options] -- ARGUMENTS',
  )
  parser.add_argument('--processes', type=int, required=True)
  parser.add_argument('--devices', type=int, required=True,
                      help='CPU devices of each process')
  parser.add_argument('--grace', type=float, default=15.0,
                      metavar='SECONDS', help='between SIGTERM and SIGKILL'
                      ' once a process has failed (default 15)')
  parser.add_argument('--port', type=int,
                      help='of the coordinator (default: a free one)')
  parser.add_argument('--module', default='bigtransfer.main',
                      help='what to run (default %(default)s)')
  args = parser.parse_args(own)
  for name, least in (('processes', 1), ('devices', 1), ('grace', 0)):
    value = getattr(args, name)
    if not value >= least:
      parser.error(f'--{name}={value}: must be at least {least}')
  if rest is None:
    parser.error('`--` is missing: the arguments of the processes follow it')
  for arg in rest:
    if arg.partition('=')[0] in [OWNED + key for key in KEYS]:
      parser.error(f'{arg}: the launcher sets it itself')
  return args, rest


def main(argv: Sequence[str] | None = None) -> int:
  args, rest = parse_args(sys.argv[1:] if argv is None else argv)
  if sys.platform != 'linux':
    print(f'error: local_pod needs Linux, this is {sys.platform}: elsewhere'
          ' its processes could outlive it', file=sys.stderr)
    return WRONG_USE
  try:
    return run(args, rest)
  except OSError as e:
    print(f'error: the pod cannot start: {e}', file=sys.stderr)
    return FAILED


if __name__ == '__main__':
  sys.exit(main())
