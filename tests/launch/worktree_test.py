"""What of a working tree is sent, and what stays."""

import os
import subprocess
import tarfile

import pytest

from launch import worktree


@pytest.fixture
def root(tmp_path):
  root = tmp_path / 'tree'
  for name, text in {
      'launch/bootstrap.sh': 'echo',
      'a b/ü.py': 'x = 1',
      'gone.py': '',
      '.gitignore': '*.log\nruns/\n',
  }.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  (root / 'launch/bootstrap.sh').chmod(0o755)
  os.symlink('a b/ü.py', root / 'link.py')
  subprocess.run(['git', 'init', '-q', root], check=True)
  subprocess.run(['git', '-C', root, 'add', '.'], check=True)
  (root / 'gone.py').unlink()
  (root / 'new.py').write_text('not yet added')
  (root / 'a.log').write_text('ignored')
  return root


def test_the_tree_as_it_is_on_disk_goes_in(root, tmp_path):
  said = []
  archive = worktree.pack(root, tmp_path / 'out', said.append)
  with tarfile.open(archive.path) as tar:
    names = tar.getnames()
    assert tar.extractfile('a b/ü.py').read() == b'x = 1'
    assert tar.getmember('launch/bootstrap.sh').mode & 0o100
    assert tar.getmember('link.py').linkname == 'a b/ü.py'
  assert names == sorted([
      '.gitignore', 'a b/ü.py', 'launch/bootstrap.sh', 'link.py', 'new.py'
  ])
  assert archive.files == 5
  assert archive.path.stat().st_mode & 0o777 == 0o600
  assert archive.id in archive.path.name
  assert not said


def test_equal_trees_have_equal_archives(root, tmp_path):
  first = worktree.pack(root, tmp_path / 'a', print)
  os.utime(root / 'new.py', (1, 1))
  again = worktree.pack(root, tmp_path / 'b', print)
  assert first.id == again.id
  assert first.path.read_bytes() == again.path.read_bytes()
  (root / 'new.py').write_text('changed')
  assert worktree.pack(root, tmp_path / 'a', print).id != first.id


def test_secrets_stay_and_are_named(root, tmp_path):
  secrets = ['.env', 'conf/.env.production', 'key.pem', 'id_ed25519',
             'my-credentials.json', 'k/SERVICE_ACCOUNT.json', '.ssh/config']
  for name in [*secrets, '.env.example']:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text('s3cret')
  said = []
  archive = worktree.pack(root, tmp_path / 'out', said.append)
  with tarfile.open(archive.path) as tar:
    names = tar.getnames()
  assert '.env.example' in names
  assert not set(secrets) & set(names)
  assert sorted(line.rpartition(' ')[2] for line in said) == sorted(secrets)


def test_no_repository(tmp_path):
  with pytest.raises(worktree.TreeError, match='must be a git repository'):
    worktree.files(tmp_path)


def test_this_project_sends_what_a_worker_needs():
  names = worktree.files(worktree.pathlib.Path(__file__).parents[2])
  kept = [name for name in names if not worktree.is_secret(name)]
  assert names == kept
  assert {'setup.py', 'bigtransfer/main.py', 'launch/bootstrap.sh',
          'configs/quickstart.py', 'launch/requirements-tpu.txt'} <= set(kept)
