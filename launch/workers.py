"""What is done on the workers of a TPU VM: send code, start a job, ask for it.

Everything runs through launch/bootstrap.sh on the worker. A command line gets
one layer of shell quoting there, by shlex: gcloud and ssh pass it on as it is.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launch.gcloud import Gcloud, GcloudError
from launch.tpu_node import Spec
from launch.worktree import Archive

HOME = '"$HOME"/bigtransfer'
BOOTSTRAP = f'{HOME}/code/launch/bootstrap.sh'
# Codes that bootstrap.sh itself ends with, beside those of the job.
BUSY = 16
_STATUS = re.compile(
    r'^bigtransfer-status host=(\S+) state=(\w+) code=(\d+|-)\s*$', re.MULTILINE
)
DONE, FAILED, WRONG_USE, STOPPED = 0, 1, 2, 75


class BusyError(RuntimeError):
  """Another job runs on the workers."""


class Status(NamedTuple):
  """A worker's job: 'none', 'running', 'exited' or 'lost' (no exit code)."""

  host: str
  state: str
  code: int | None = None


def parse(text: str) -> list[Status]:
  """Returns what the workers' lines in the output of ssh say."""
  return [
      Status(host, state, None if code == '-' else int(code))
      for host, state, code in _STATUS.findall(text)
  ]


def outcome(statuses: Sequence[Status]) -> int | None:
  """Returns the exit code of the job as a whole; None while it runs.

  Wrong use by any worker is wrong use; else a worker that has failed or that
  left no code is a failure; else 75 if any stopped early and saved; else 0.
  """
  if not statuses:
    return FAILED
  if any(s.state == 'running' for s in statuses):
    return None
  codes = [s.code if s.state == 'exited' else FAILED for s in statuses]
  if WRONG_USE in codes:
    return WRONG_USE
  failures = [code for code in codes if code not in (DONE, STOPPED)]
  return failures[0] if failures else max(codes)


class Workers:
  """The workers of one VM."""

  def __init__(
      self,
      cloud: Gcloud,
      spec: Spec,
      env: Sequence[str] = (),
      *,
      say: Callable[[str], None],
      once: bool = False,
  ):
    """`env` holds 'NAME=value' for every command on the workers.

    With `once` a network failure is raised at once, for a caller that then
    looks whether the VM is still there.
    """
    self._cloud, self._spec, self._env, self._say = cloud, spec, env, say
    self._call = cloud.call if once else cloud.call_again

  def ssh_argv(self, command: str, worker: str = 'all') -> list[str]:
    """The gcloud arguments that run a command line of the remote shell."""
    ip = ['--internal-ip'] if self._spec.internal_ip else []
    return self._spec.argv(
        'tpu-vm', 'ssh', *ip, f'--worker={worker}', f'--command={command}'
    )

  def line(self, *argv: str) -> str:
    """The command line that runs bootstrap.sh with `argv` on a worker."""
    env = f'env {shlex.join(self._env)} ' if self._env else ''
    return f'{env}bash {BOOTSTRAP} {shlex.join(argv)}'

  def sync(self, archive: Archive):
    """Puts a tree on all workers; the job that runs keeps the one it has."""
    spec, name = self._spec, archive.path.name
    ip = ['--internal-ip'] if spec.internal_ip else []
    self._call(
        *('compute', 'tpus', 'tpu-vm', 'scp', str(archive.path)),
        *(f'{spec.name}:{name}', *spec.where(), *ip, '--worker=all'),
    )
    tree, link = f'{HOME}/trees/{archive.id}', f'{HOME}/code'
    unpack = (
        f'set -e; mkdir -p {HOME}/trees; rm -rf {tree}.new;'
        f' if [ ! -d {tree} ]; then mkdir {tree}.new;'
        f' tar -xzf "$HOME"/{name} -C {tree}.new; mv -T {tree}.new {tree}; fi;'
        f' ln -sfn {tree} {link}.new; mv -T {link}.new {link};'
        f' rm -f "$HOME"/{name}'
    )
    self._call(*self.ssh_argv(unpack))
    self._say(
        f'{spec.name}: sent {archive.files} files,'
        f' {archive.bytes / 2**20:.1f} MiB, tree {archive.id}'
    )

  def start(self, arguments: Sequence[str], setup: str | None = None):
    """Starts the job on all workers, where the same one does not run yet.

    Raises:
      BusyError: another one does.
    """
    options = ['--setup', setup] if setup is not None else []
    line = self.line('start', *options, '--', *arguments)
    try:
      text = self._call(*self.ssh_argv(line))
    except GcloudError as e:
      if e.code == BUSY:
        raise BusyError(e.stderr) from e
      raise
    for reply in sorted(set(text.splitlines())):
      self._say(f'{self._spec.name}: {reply}')

  def status(self, worker: str = 'all') -> list[Status]:
    """Asks for the job's state; a worker without code has none."""
    line = (
        f'if [ -f {BOOTSTRAP} ]; then bash {BOOTSTRAP} status; else echo'
        ' bigtransfer-status "host=$(hostname)" state=none code=-; fi'
    )
    text = self._call(*self.ssh_argv(line, worker), timeout=180.0)
    return parse(text)

  def stop(self):
    """Asks the job to save and stop (SIGTERM); it does so by itself."""
    self._call(*self.ssh_argv(self.line('stop')), timeout=180.0)

  def tail(self, lines: int, worker: str = 'all') -> str:
    """Returns the last lines of the log."""
    line = self.line('logs', str(lines))
    return self._call(*self.ssh_argv(line, worker), timeout=180.0)

  def follow(self, lines: int, worker: str) -> int:
    """Shows the log and what comes; returns gcloud's exit code."""
    line = self.line('logs', str(lines), 'follow')
    return self._cloud.show(*self.ssh_argv(line, worker))

  def doctor(self, arguments: Sequence[str]) -> int:
    """Runs `python -m launch.doctor` on all workers at once."""
    line = self.line('doctor', '--', *arguments)
    return self._cloud.show(*self.ssh_argv(line))
