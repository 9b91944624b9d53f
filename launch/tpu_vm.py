"""Runs jobs on a Cloud TPU VM, of one host or of hundreds.

python -m launch.tpu_vm VERB --name N --zone Z [options] [-- ARGUMENTS]

  up         bring the VM to READY from any state, never making two of one name
  sync       send the working tree (what git tracks or does not ignore)
  run        start `bigtransfer.main ARGUMENTS` on all workers and return
  logs       show the end of the log; --follow goes on
  status     the VM, and the job on each worker
  stop       let the job save and stop; `run` goes on from there
  doctor     check all workers with `launch.doctor ARGUMENTS`
  supervise  up, sync, run, and again after a preemption, until exit code 0
  down       delete the VM

Every verb may be repeated. --dry_run prints the commands, ready to paste, and
runs none. gcloud must be installed and logged in; nothing else is needed here.

Exit codes: 0 done, 1 failed, 2 wrong use; `supervise` ends as its job did: 0,
2, or 75 if it was stopped by --max_chip_hours and has saved.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import os
import pathlib
import sys
from collections.abc import Callable, Sequence

from launch import (
    accelerators,
    gcloud,
    supervisor,
    tpu_node,
    tpu_vm_args,
    workers,
    worktree,
)

DONE, FAILED, WRONG_USE = 0, 1, 2
ROOT = pathlib.Path(__file__).absolute().parents[1]


def say(text: str):
  """Tells what goes on; stdout is for what was asked for."""
  print(text, file=sys.stderr, flush=True)


def cache() -> pathlib.Path:
  """Returns the folder of archives and locks."""
  base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  return pathlib.Path(base).expanduser() / 'bigtransfer' / 'tpu_vm'


@contextlib.contextmanager
def alone(spec: tpu_node.Spec):
  """Keeps a second launcher on this machine from making or deleting the VM."""
  path = cache() / f'{spec.project or "default"}.{spec.zone}.{spec.name}.lock'
  path.parent.mkdir(parents=True, exist_ok=True)
  with open(path, 'a+', encoding='utf-8') as f:
    try:
      fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      f.seek(0)
      raise workers.BusyError(
          f'process {f.read().strip()} on this machine is at work on'
          f' {spec.name}; end it first (lock: {path})'
      ) from None
    f.truncate(0)
    f.write(str(os.getpid()))
    f.flush()
    yield


def dry_answers(
    verb: str, spec: tpu_node.Spec
) -> Callable[[Sequence[str]], str]:
  """Answers for a dry run: there is no VM until one is made."""
  there = verb == 'down'

  def answer(argv):
    nonlocal there
    kind, action = argv[2], argv[3]
    if action == 'create':
      there = True
    elif action == 'delete':
      there = False
    elif action == 'describe' and not there:
      path = 'nodes' if kind == 'tpu-vm' else 'queuedResources'
      raise gcloud.GcloudError(
          argv, 1, f"NOT_FOUND: Resource '-/{path}/{spec.name}' was not found"
      )
    elif action == 'describe':
      return 'READY' if kind == 'tpu-vm' else 'ACTIVE'
    elif action == 'ssh':
      return 'bigtransfer-status host=dry-run state=exited code=0'
    return ''

  return answer


class Launcher:
  """The verbs; each returns an exit code."""

  def __init__(self, args: argparse.Namespace, rest: Sequence[str]):
    names = [field.name for field in dataclasses.fields(tpu_node.Spec)]
    self.spec = tpu_node.Spec(**{name: getattr(args, name) for name in names})
    self.args, self.rest = args, list(rest)
    self.timing = {'poll_seconds': args.poll_seconds, 'say': say}
    if args.dry_run:
      self.timing['sleep'] = lambda seconds: None
    self.retries = gcloud.Retries(args.max_retries, args.poll_seconds, say)
    self.cloud = gcloud.Gcloud(
        self.retries,
        dry_run=args.dry_run,
        answer=dry_answers(args.verb, self.spec),
    )
    self.workers = workers.Workers(self.cloud, self.spec, args.env, say=say)

  def up(self) -> int:
    tpu_node.up(
        self.cloud, self.spec, max_wait_hours=self.args.max_wait_hours,
        **self.timing,
    )
    return DONE

  def down(self) -> int:
    tpu_node.down(self.cloud, self.spec, **self.timing)
    return DONE

  @contextlib.contextmanager
  def _archive(self):
    archive = worktree.pack(ROOT, cache(), say)
    yield archive
    if not self.args.dry_run:  # its commands need the file
      archive.path.unlink(missing_ok=True)

  def sync(self) -> int:
    with self._archive() as archive:
      self.workers.sync(archive)
    return DONE

  def run(self) -> int:
    self.workers.start(self.rest, self.args.setup)
    return DONE

  def stop(self) -> int:
    self.workers.stop()
    return DONE

  def logs(self) -> int:
    lines, worker = self.args.lines, self.args.worker
    if self.args.follow:
      return DONE if self.workers.follow(lines, worker) == 0 else FAILED
    text = self.workers.tail(lines, worker)
    if not self.args.dry_run:
      print(text, end='')
    return DONE

  def status(self) -> int:
    node = tpu_node.look(self.cloud, self.spec)
    if not self.args.dry_run:
      print(f'{self.spec.name}: {node}')
    if node.state != tpu_node.READY and not self.args.dry_run:
      return DONE
    found = self.workers.status()
    for host, state, code in () if self.args.dry_run else found:
      print(f'{host}: {state}' + ('' if code is None else f', code {code}'))
    return DONE

  def doctor(self) -> int:
    return DONE if self.workers.doctor(self.rest) == 0 else FAILED

  def supervise(self) -> int:
    meter = supervisor.Meter(
        accelerators.chips(self.spec.accelerator_type), self.args.max_chip_hours
    )
    once = workers.Workers(
        self.cloud, self.spec, self.args.env, say=say, once=True
    )
    job = supervisor.Supervisor(
        self.cloud, self.spec, once, meter,
        max_wait_hours=self.args.max_wait_hours, **self.timing,
    )
    try:
      with self._archive() as archive:
        code = job.run(archive, self.rest, self.args.setup)
    except KeyboardInterrupt:
      say('the job goes on by itself; the same command watches it again')
      raise
    except (gcloud.GaveUp, gcloud.GcloudError, tpu_node.StateError):
      self._delete_if_asked()
      raise
    self._delete_if_asked()
    return code

  def _delete_if_asked(self):
    if self.args.delete_when_done:
      self.down()
    else:
      say(f'{self.spec.name} may still cost; delete it with the verb down')

  def do(self) -> int:
    verb = getattr(self, self.args.verb)
    if self.args.verb not in ('up', 'supervise', 'down') or self.args.dry_run:
      return verb()
    with alone(self.spec):
      return verb()


def main(argv: Sequence[str] | None = None) -> int:
  argv = sys.argv[1:] if argv is None else argv
  args, rest = tpu_vm_args.parse(__doc__, argv)
  try:
    return Launcher(args, rest).do()
  except KeyboardInterrupt:
    print('error: interrupted', file=sys.stderr)
    return 130
  except workers.BusyError as e:
    print(f'error: {e}', file=sys.stderr)
    return WRONG_USE
  except (
      gcloud.GaveUp,
      gcloud.GcloudError,
      gcloud.MissingError,
      tpu_node.StateError,
      worktree.TreeError,
      OSError,
  ) as e:
    print(f'error: {e}', file=sys.stderr)
    return FAILED


if __name__ == '__main__':
  sys.exit(main())
