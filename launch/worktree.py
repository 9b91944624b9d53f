"""The working tree as an archive, without what must not leave the machine.

What git tracks and what it does not ignore goes in, uncommitted changes too;
files that look like keys or tokens stay here, and are named.
"""

import fnmatch
import gzip
import hashlib
import io
import os
import pathlib
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

SECRETS = (
    '.env', '.env.*', '.netrc', '.git-credentials', '.pypirc', '.htpasswd',
    '*.pem', '*.key', '*.p12', '*.pfx', '*.jks', '*.kdbx', 'id_rsa*', 'id_dsa*',
    'id_ecdsa*', 'id_ed25519*', '*credentials*.json', '*service_account*.json',
    '*service-account*.json', '*secret*.json', '*secret*.y*ml', '*.tfstate',
    'kaggle.json',
)
NOT_SECRETS = ('.env.example', '.env.sample', '.env.template', '*.pub')


class TreeError(RuntimeError):
  """The working tree cannot be read."""


class Archive(NamedTuple):
  """A packed tree; equal trees have equal ids and equal bytes."""

  path: pathlib.Path
  id: str
  files: int
  bytes: int


def is_secret(path: str) -> bool:
  """Returns whether a path names what should be kept secret."""
  parts = path.lower().split('/')
  if any(part in ('.ssh', '.aws', '.gnupg', '.gcloud') for part in parts):
    return True
  name = parts[-1]
  if any(fnmatch.fnmatchcase(name, pattern) for pattern in NOT_SECRETS):
    return False
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in SECRETS)


def files(root: pathlib.Path) -> list[str]:
  """Returns the paths in the tree that git knows or would add, from the root.

  Raises:
    TreeError: `root` is not the work tree of a git repository.
  """
  argv = ['git', '-C', str(root), 'ls-files', '-z', '--cached', '--others',
          '--exclude-standard']
  try:
    done = subprocess.run(argv, capture_output=True, check=True)
  except FileNotFoundError:
    raise TreeError('git is not on PATH: it tells what to send') from None
  except subprocess.CalledProcessError as e:
    text = e.stderr.decode(errors='replace').strip()
    raise TreeError(
        f'{root} must be a git repository, which tells what to send: {text}'
    ) from e
  names = {os.fsdecode(name) for name in done.stdout.split(b'\0') if name}
  # Deleted in the tree and still in the index.
  return sorted(name for name in names if os.path.lexists(root / name))


def pack(
    root: pathlib.Path, folder: pathlib.Path, say: Callable[[str], None]
) -> Archive:
  """Writes the tree to `folder`/bigtransfer-ID.tar.gz, for this user only."""
  names = []
  for name in files(root):
    if is_secret(name):
      say(f'not sent, looks like a secret: {name}')
    else:
      names.append(name)
  if 'launch/bootstrap.sh' not in names:
    raise TreeError(f'{root} has no launch/bootstrap.sh')
  data = _tar(root, names)
  key = hashlib.sha256(data).hexdigest()[:16]
  packed = gzip.compress(data, compresslevel=6, mtime=0)
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f'bigtransfer-{key}.tar.gz'
  new = path.with_name(f'{path.name}.{os.getpid()}')
  with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            'wb') as f:
    f.write(packed)
  new.replace(path)
  return Archive(path, key, len(names), len(packed))


def _tar(root: pathlib.Path, names: Sequence[str]) -> bytes:
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode='w', format=tarfile.PAX_FORMAT) as tar:
    for name in names:
      info = tar.gettarinfo(root / name, arcname=name)
      if not (info.isfile() or info.issym()):
        continue  # a submodule, a socket
      info.mtime, info.uid, info.gid = 0, 0, 0
      info.uname = info.gname = ''
      if info.isfile():
        with open(root / name, 'rb') as f:
          tar.addfile(info, f)
      else:
        tar.addfile(info)
  return buffer.getvalue()
