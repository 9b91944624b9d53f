"""Questions to JAX, TensorFlow and buckets, each in a process of its own.

There they cannot take the asking process with them: a TPU that hangs, a library
that is not installed or that ends its process are answers like any other.
"""

from __future__ import annotations  # old images have Python 3.8

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
# A process that waits for a driver does not even end when killed.
KILL_SECONDS = 5.0

_DEVICES = """
import json, sys
address, count, index, seconds = json.loads(sys.argv[1])
import jax
if count > 1:
  jax.distributed.initialize(
      address, count if address else None, index,
      initialization_timeout=seconds)
jax.block_until_ready(jax.numpy.ones(8) + 1)
print(json.dumps({
    'backend': jax.default_backend(), 'kind': jax.devices()[0].device_kind,
    'devices': jax.device_count(), 'local': jax.local_device_count(),
    'processes': jax.process_count()}))
"""

_BUCKET = """
import json, sys, uuid
from bigtransfer import files
files.check(sys.argv[1], '--workdir')
from etils import epath
file = epath.Path(sys.argv[1]) / f'.doctor-{uuid.uuid4().hex}'
file.write_text('doctor')
try:
  assert file.read_text() == 'doctor', f'{file} reads back as something else'
  print(json.dumps({'mtime': file.stat().mtime}))
finally:
  file.unlink()
"""


class ProbeError(Exception):
  """A probe failed; says in one line why."""


def devices(
    seconds: float,
    processes: int = 1,
    coordinator: str | None = None,
    process_id: int | None = None,
) -> dict[str, Any]:
  """Returns what JAX finds: backend, kind, devices, local, processes, stderr.

  With several `processes` they first find each other: this has to run on all
  workers at once, and finds out whether the coordinator can be reached.
  """
  place = [coordinator, processes, process_id, max(1, int(seconds))]
  # JAX says more than a killed probe, and takes some 6 s longer to give up.
  spare = 15 if processes > 1 else 0
  return _run(['-c', _DEVICES, json.dumps(place)], seconds + spare)


def splits(
    seconds: float, source: str, path: str | None, name: str | None
) -> dict[str, Any]:
  """Returns what input_pipeline.splits prints: where, splits."""
  args = ['-m', 'input_pipeline.splits', '--source', source]
  args += ['--path', path] if path is not None else []
  args += ['--name', name] if name is not None else []
  return _run(args, seconds)


def bucket(seconds: float, folder: str) -> float:
  """Writes, reads and removes a file; returns the time the bucket gave it."""
  return _run(['-c', _BUCKET, folder], seconds)['mtime']


def _run(args: Sequence[str], seconds: float) -> dict[str, Any]:
  """Runs Python and returns the JSON object of its last line, and `stderr`.

  Raises:
    ProbeError: it failed, or gave no answer within `seconds`.
  """
  path = os.pathsep.join(filter(None, [str(ROOT), os.getenv('PYTHONPATH')]))
  env = {**os.environ, 'PYTHONPATH': path, 'TF_CPP_MIN_LOG_LEVEL': '2'}
  # Into files: a pipe could be held open by what a killed probe leaves behind.
  with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
    code = _wait([sys.executable, *args], env, out, err, seconds)
    lines, errors = (_lines(file) for file in (out, err))
  if code is None:
    said = f', its last line: {errors[-1]}' if errors else ''
    raise ProbeError(f'no answer in {seconds:g} s{said}')
  if code:
    raise ProbeError(_cause(errors) or f'ended with exit code {code}')
  return {**json.loads(lines[-1]), 'stderr': errors}


def _wait(command, env: Mapping[str, str], out, err, seconds) -> int | None:
  process = subprocess.Popen(
      command,
      env=env,
      stdin=subprocess.DEVNULL,
      stdout=out,
      stderr=err,
      start_new_session=True,
  )
  try:
    return process.wait(seconds)
  except subprocess.TimeoutExpired:
    return None
  finally:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)
      try:
        process.wait(KILL_SECONDS)
      except subprocess.TimeoutExpired:
        print(f'process {process.pid} cannot be killed', file=sys.stderr)


def _lines(file) -> list[str]:
  file.seek(0)
  text = file.read().decode(errors='replace')
  return [line.strip() for line in text.splitlines() if line.strip()]


def _cause(errors: Sequence[str]) -> str | None:
  """Returns the line that says why: JAX adds some more after it."""
  for line in reversed(errors):
    if fatal := re.match(r'F\d{4} .*?\] (.*)', line):  # a stack follows
      return fatal[1]
    name, _, rest = line.partition(': ')
    if name == 'error':
      return rest
    if name.endswith(('Error', 'Exception', 'Exit')):
      return line
  return errors[-1] if errors else None
