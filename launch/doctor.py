"""Looks over a machine before a job: one line for each check.

python -m launch.doctor --platform tpu --devices 8
    --source tfds --name cifar10 --data /data/tfds --workdir runs/a

Each line is `ok` or `FAIL`, the name of the check and what was seen. Needs the
standard library only; JAX and TensorFlow are asked in processes of their own
that --timeout bounds. Kills nothing. On a pod run it on all workers at once,
with --processes: they then also have to find each other.

Exit codes: 0 all is well, 1 a check failed, 2 wrong use.
"""

from __future__ import annotations  # old images have Python 3.8

import argparse
import email.utils
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from launch import probes, tpu_in_use, versions

PYTHON = '>=3.11,<3.14'  # as in setup.py, which asks for it before this can
# Tokens of Google Cloud are refused from some minutes on; file times that are
# compared across hosts go wrong before.
SKEW_SECONDS = 30.0
_CLOUD = re.compile(r'\w+://')


class Check(NamedTuple):
  """The answer to one question."""

  name: str
  ok: bool
  detail: str


def check_python(version: Sequence[int] = sys.version_info) -> Check:
  text = '.'.join(map(str, version[:3]))
  ok = versions.satisfies(text, PYTHON)
  wanted = '' if ok else f', needed is {PYTHON}'
  return Check('python', ok, f'{text}{wanted} ({sys.executable})')


def check_packages(platform: str | None) -> Check:
  extras = {platform} & {'tpu', 'gpu'}
  try:
    found, problems = versions.check(versions.project_requirements(), extras)
  except (OSError, ValueError) as e:
    return Check('packages', False, str(e))
  if problems:
    extra = f'[{",".join(extras)}]' if extras else ''
    fix = f'; install them with: pip install -e ".{extra}"'
    return Check('packages', False, '; '.join(problems) + fix)
  shown = ('jax', 'jaxlib', 'libtpu', 'flax', 'optax', 'orbax-checkpoint')
  text = ', '.join(f'{name} {found[name]}' for name in shown if name in found)
  return Check('packages', True, f'{text}; {len(found)} within their bounds')


def check_tpu(platform: str | None) -> Check:
  state = tpu_in_use.look()
  return Check('tpu', *tpu_in_use.judge(state, platform == 'tpu'))


def check_backend(args: argparse.Namespace) -> Check:
  asked = {
      'backend': args.platform,
      'devices': args.devices,
      'processes': args.processes,
  }
  try:
    found = probes.devices(
        args.timeout, args.processes or 1, args.coordinator, args.process_id
    )
  except probes.ProbeError as e:
    where = args.coordinator or 'the coordinator that JAX finds'
    hint = f'; run it on all {args.processes} workers at once, and open the'
    hint += f' port of {where} between them'
    return Check('backend', False, f'{e}{hint if asked["processes"] else ""}')
  seen = (
      f'{found["backend"]}, {found["devices"]} devices ({found["local"]} here,'
      f' {found["kind"]}), {found["processes"]} processes'
  )
  wrong = [f'{k} {v}' for k, v in asked.items() if v not in (None, found[k])]
  if wrong:
    seen += f'; asked for {", ".join(wrong)}'
    seen += f'; JAX_PLATFORMS={os.environ.get("JAX_PLATFORMS", "(not set)")}'
    seen += ''.join(f'; JAX: {line}' for line in found['stderr'][-1:])
  return Check('backend', not wrong, seen)


def check_data(args: argparse.Namespace) -> Check:
  try:
    found = probes.splits(args.timeout, args.source, args.data, args.name)
  except probes.ProbeError as e:
    return Check('data', False, f'{args.source}: {e}')
  counts = ', '.join(f'{k} {v}' for k, v in found['splits'].items())
  empty = [name for name, count in found['splits'].items() if not count]
  remark = f'; no examples in {", ".join(empty)}' if empty else ''
  detail = f'{args.source} {found["where"]}: {counts or "no splits"}{remark}'
  return Check('data', bool(counts) and not empty, detail)


def existing(folder: str) -> pathlib.Path:
  """Returns the folder, or the nearest above it that there is."""
  path = pathlib.Path(folder).expanduser().absolute()
  while not path.exists():
    path = path.parent
  return path


def check_workdir(workdir: str, seconds: float) -> tuple[Check, float | None]:
  """Writes a file there; returns also by how much its time is ahead of us.

  A folder that is not there yet is not made: the nearest above it is tried.
  """
  before = time.time()
  try:
    if _CLOUD.match(workdir):
      where, written = workdir, probes.bucket(seconds, workdir)
    else:
      where = existing(workdir)
      with tempfile.NamedTemporaryFile(dir=where, prefix='.doctor-') as file:
        file.write(b'doctor')
        file.flush()
        os.fsync(file.fileno())
        written = os.stat(file.name).st_mtime
  except (OSError, probes.ProbeError) as e:
    return Check('workdir', False, f'{workdir} is not writable: {e}'), None
  after = time.time()
  ahead = min(written - before, 0.0) or max(written - after, 0.0)
  # Where it lies tells that a mount is missing.
  remark = '' if str(where) == workdir else f' (tried in {where})'
  return Check('workdir', True, f'{workdir} is writable{remark}'), ahead


def check_clock(ahead: float | None, reference: str | None) -> Check:
  """Compares this machine's clock with all that tells a time of its own.

  That is the newest file of the code, before which it cannot be, the workdir's
  file system (another clock only if it is remote) and, with `reference`, the
  Date of a web server, which counts whole seconds.
  """
  code = max(p.stat().st_mtime for p in probes.ROOT.glob('launch/*.py'))
  now, skews = time.time(), {}
  if ahead is not None:
    skews['the workdir'] = ahead
  if reference is not None:
    request = urllib.request.Request(reference, method='HEAD')
    try:
      with urllib.request.urlopen(request, timeout=10) as answer:
        date = email.utils.parsedate_to_datetime(answer.headers['Date'])
    except (OSError, TypeError, ValueError) as e:
      return Check('clock', False, f'no Date from {reference}: {e}')
    skews[reference] = date.timestamp() - now
  text = time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(now))
  text += ''.join(f'; {k} is {v:+.1f} s off' for k, v in skews.items())
  wrong = [k for k, v in skews.items() if abs(v) > SKEW_SECONDS]
  if now < code - SKEW_SECONDS:
    wrong.append('the files of the code, which are newer')
  if wrong:
    text += f'; does not agree with {", ".join(wrong)}'
  return Check('clock', not wrong, text)


def check_disk(folders: Sequence[str], least_gb: float) -> Check:
  free = {}
  for folder in folders:
    path = existing(folder)
    free[str(path)] = shutil.disk_usage(path).free / 1e9
  text = ', '.join(f'{gb:.1f} GB free in {path}' for path, gb in free.items())
  ok = min(free.values()) >= least_gb
  return Check('disk', ok, text + ('' if ok else f'; {least_gb:g} GB needed'))


def checks(args: argparse.Namespace) -> Iterator[Check]:
  """Yields the answers, the quick ones first."""
  yield check_python()
  yield check_packages(args.platform)
  yield check_tpu(args.platform)
  workdir, ahead = args.workdir or '.', None
  if args.workdir is not None:
    check, ahead = check_workdir(workdir, args.timeout)
    yield check
  yield check_clock(ahead, args.reference)
  local = [] if _CLOUD.match(workdir) else [workdir]
  yield check_disk([*local, tempfile.gettempdir()], args.min_free_gb)
  if args.source is not None:
    yield check_data(args)
  yield check_backend(args)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      'python -m launch.doctor',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  add = parser.add_argument
  add('--platform', choices=('cpu', 'gpu', 'tpu'), help='that must be there')
  add('--devices', type=int, help='of all processes together')
  add('--processes', type=int, help='that must find each other')
  add('--coordinator', metavar='HOST:PORT', help='default: found by JAX')
  add('--process_id', type=int, help='of this one, with --coordinator')
  add('--source', choices=('embedded', 'folder', 'csv', 'tfds', 'tfrecord'),
      help='as config.data.source')
  add('--data', metavar='PATH', help='as config.data.path')
  add('--name', help='of the TFDS builder or embedded set')
  add('--workdir', help='of the job, local or gs://')
  add('--reference', metavar='URL', help='web server to compare the clock with')
  add('--min_free_gb', type=float, default=10.0, help='default 10')
  add('--timeout', type=float, default=120.0, metavar='SECONDS',
      help='for each question to JAX, data and buckets (default 120)')
  add('--json', action='store_true', help='print a JSON list instead')
  args = parser.parse_args(argv)
  for name in ('devices', 'processes', 'timeout'):
    value = getattr(args, name)
    if value is not None and not value > 0:
      parser.error(f'--{name}={value}: must be above 0')
  if args.source is None and (args.data or args.name):
    parser.error('--data and --name need --source: how is the data stored?')
  if (args.coordinator is None) != (args.process_id is None):
    parser.error('--coordinator and --process_id need each other')
  if args.coordinator is not None and args.processes is None:
    parser.error('--coordinator needs --processes')
  return args


def main(argv: Sequence[str] | None = None) -> int:
  args, failed, answers = parse_args(argv), [], []
  for check in checks(args):
    if args.json:
      answers.append(check._asdict())
    else:
      word = 'ok' if check.ok else 'FAIL'
      detail = ' '.join(check.detail.split())
      print(f'{word:<4}  {check.name:<8}  {detail}', flush=True)
    if not check.ok:
      failed.append(check.name)
  if args.json:
    print(json.dumps(answers, indent=1))
  if failed:
    print(f'error: failed: {", ".join(failed)}', file=sys.stderr)
  return 1 if failed else 0


if __name__ == '__main__':
  sys.exit(main())
