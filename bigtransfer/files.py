"""The files of a workdir: in a folder, or in a bucket of Google Cloud Storage.

A bucket has objects, which are put whole, and neither folders nor appending.
To put one is atomic: a reader and a kill meet the old one or the new one.
"""

import contextlib
import functools
import importlib.util
import io
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

if importlib.util.find_spec('gcsfs'):
  # Orbax looks at files through etils, which would import TensorFlow for gs://
  # wherever that is installed; gcsfs does without.
  os.environ['EPATH_USE_TF'] = 'false'
  # For buckets in one zone gcsfs would ask for the kind of each bucket, with
  # rights of its own; whoever has them may set it.
  os.environ.setdefault('GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT', 'false')

# Without what gcsfs takes for a pattern when it deletes.
_ADDRESS = re.compile(r'gs://([\w.-]+)(/[^/*?\[\]#]+)+/?')
# Seconds that a bucket may take to answer at the start of a job.
PATIENCE = 20.0
# Seconds after which appended lines are put without being asked for.
INTERVAL = 60.0


def in_bucket(path: str) -> bool:
  """Whether a path is one of a bucket."""
  return path.startswith('gs://')


def check(path: str, source: str):
  """Checks that files can be kept at a path; a local one always passes.

  Args:
    path: of a folder or a file, which need not exist.
    source: who gave it, '--workdir'.

  Raises:
    ValueError: neither a local path nor gs://BUCKET/FOLDER, or gcsfs is
      missing.
    FileNotFoundError: there is no such bucket.
    PermissionError: there are no credentials, or they do not open it.
    ConnectionError: the bucket does not answer within PATIENCE.
  """
  if '://' not in path:
    return
  if not _ADDRESS.fullmatch(path):
    raise ValueError(
        f'{source}={path}; accepted: a folder of this machine, or'
        ' gs://BUCKET/FOLDER without * ? [ ] # and empty names in it'
    )
  if not importlib.util.find_spec('gcsfs'):
    raise ValueError(
        f'{source}={path} needs the package gcsfs:'
        " pip install 'bigtransfer[gcs]'"
    )
  answer = []
  bucket = _ADDRESS.fullmatch(path)[1]
  # The libraries below wait for minutes, each in its own way.
  asking = threading.Thread(
      target=lambda: answer.append(_bucket_problem(bucket)), daemon=True
  )
  asking.start()
  asking.join(PATIENCE)
  if not answer:
    raise ConnectionError(
        f'{source}={path}: Google Cloud Storage has not answered within'
        f' {PATIENCE:g} s'
    )
  if answer[0]:
    kind, problem = answer[0]
    raise kind(f'{source}={path}: {problem}')
  _bucket_files()  # Before Orbax has etils make its own.


def _bucket_problem(bucket: str) -> tuple[type[Exception], str] | None:
  from google.api_core import exceptions as answers
  from google.auth import exceptions as auth
  from google.cloud import storage

  try:
    # As Orbax asks before it deletes.
    storage.Client().get_bucket(bucket)
  except (auth.DefaultCredentialsError, auth.RefreshError) as e:
    return PermissionError, (
        'no credentials for Google Cloud: gcloud auth application-default'
        f' login (a VM needs a service account with access): {e}'
    )
  except answers.NotFound:
    return FileNotFoundError, f'there is no bucket {bucket}'
  except (answers.Forbidden, answers.Unauthorized) as e:
    return PermissionError, (
        'the bucket is closed to these credentials, which need the roles'
        f' storage.objectUser and storage.legacyBucketReader: {e.message}'
    )
  except Exception as e:
    if 'Project was not passed' in str(e):
      return ValueError, f'{e} Set GOOGLE_CLOUD_PROJECT.'
    return ConnectionError, f'Google Cloud Storage cannot be asked: {e}'
  return None


@functools.cache
def _bucket_files() -> Any:
  import fsspec

  # Kept listings would hide what other processes and TensorStore have put
  # there, from Orbax too.
  fsspec.config.conf.setdefault('gcs', {})['use_listings_cache'] = False
  return fsspec.filesystem('gcs')


@contextlib.contextmanager
def _explained(path: str) -> Iterator[Any]:
  """Yields the bucket's files; whatever they raise becomes an OSError."""
  try:
    yield _bucket_files()
  except FileNotFoundError as e:
    raise FileNotFoundError(f'{path} does not exist') from e
  except Exception as e:
    raise OSError(f'{path}: {e}') from e


def absolute(path: str) -> str:
  """Returns a path as Orbax wants it; of a bucket, once that is prepared."""
  if not in_bucket(path):
    return os.path.abspath(path)
  _bucket_files()  # Before Orbax has etils make its own.
  return path


def exists(path: str) -> bool:
  if not in_bucket(path):
    return os.path.exists(path)
  with _explained(path) as there:
    return there.exists(path)


def is_folder(path: str) -> bool:
  """Whether it is a folder; in a bucket, whether any object lies below."""
  if not in_bucket(path):
    return os.path.isdir(path)
  with _explained(path) as there:
    return there.isdir(path)


def names(folder: str) -> list[str]:
  """Returns what lies in a folder, in any order; [] where there is none."""
  if not is_folder(folder):
    return []
  if not in_bucket(folder):
    return os.listdir(folder)
  with _explained(folder) as there:
    found = there.ls(folder, detail=False)
  return [os.path.basename(name.rstrip('/')) for name in found]


def make_folder(path: str):
  """Makes a folder and those above; in a bucket they need not be made."""
  if not in_bucket(path):
    os.makedirs(path, exist_ok=True)


def read(path: str) -> bytes:
  """Returns what a file holds.

  Raises:
    OSError: it is not there or cannot be read.
  """
  if not in_bucket(path):
    with open(path, 'rb') as f:
      return f.read()
  with _explained(path) as there:
    return there.cat_file(path)


def write(path: str, content: bytes):
  """Replaces a file in one move: a kill leaves the old or the new one."""
  if in_bucket(path):
    with _explained(path) as there:
      there.pipe_file(path, content)
    return
  with open(path + '.new', 'wb') as f:
    f.write(content)
    f.flush()
    os.fsync(f.fileno())
  os.replace(path + '.new', path)


def append(path: str, text: str):
  """Adds to a text file, or starts it; for a few lines now and then."""
  if in_bucket(path):
    write(path, (read(path) if exists(path) else b'') + text.encode())
    return
  with open(path, 'a', encoding='utf-8') as f:
    f.write(text)


def open_to_append(path: str) -> Any:
  """Opens a binary file to read, truncate and append to; see `sync`."""
  return _Object(path) if in_bucket(path) else open(path, 'a+b')


def sync(file: Any):
  """Returns when all of what `open_to_append` gave is on disk or put."""
  file.flush()
  if not isinstance(file, _Object):
    os.fsync(file.fileno())


class _Object(io.BytesIO):
  """An object that is put whole, again and again, while it grows.

  Each `flush` puts it, and else a write does once in INTERVAL, or so rarely
  that it takes 1 % of the time: 200 MB, as of a million steps, take seconds.
  """

  def __init__(self, path: str):
    super().__init__(read(path) if exists(path) else b'')
    self._path, self._changed = path, False
    self._due = time.monotonic() + INTERVAL

  def write(self, data: bytes) -> int:
    self._changed = True
    written = super().write(data)
    if time.monotonic() > self._due:
      self.flush()
    return written

  def truncate(self, size: int) -> int:
    self._changed |= size < len(self.getbuffer())
    return super().truncate(size)

  def flush(self):
    if not self._changed:
      return
    begin = time.monotonic()
    write(self._path, self.getvalue())
    end = time.monotonic()
    self._changed, self._due = False, end + max(INTERVAL, 100 * (end - begin))


@contextlib.contextmanager
def here(path: str) -> Iterator[str]:
  """Yields the path of a file or folder on this machine.

  For libraries that read nothing else: `path` itself, or a copy for the while,
  of a folder without those in it.
  """
  if not in_bucket(path):
    yield path
    return
  with tempfile.TemporaryDirectory() as folder:
    copy = os.path.join(folder, os.path.basename(path.rstrip('/')))
    with _explained(path) as there:
      if not there.isdir(path):
        there.get_file(path, copy)
      else:
        os.mkdir(copy)
        for entry in there.ls(path, detail=True):
          if entry['type'] == 'file':
            name = os.path.basename(entry['name'])
            there.get_file(entry['name'], os.path.join(copy, name))
    yield copy
