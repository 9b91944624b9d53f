"""Writes requirements-tpu.txt, what a worker of a TPU VM installs.

python -m launch.requirements            from setup.py and what is installed
python -m launch.requirements --check    only say whether it is in step

The packages, extras and markers are those of setup.py. The versions are pinned
to what is installed here, so that a VM made again after a preemption goes on
with the versions that it started with.
"""

import argparse
import contextlib
import importlib.metadata
import pathlib
import re
import runpy
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from unittest import mock

from launch import versions

ROOT = pathlib.Path(__file__).absolute().parents[1]
FILE = pathlib.Path(__file__).with_name('requirements-tpu.txt')
EXTRAS = ('tpu',)
HEADER = """\
# Made by `python -m launch.requirements` from setup.py; not edited by hand.
"""
_LINE = re.compile(r'([\w.-]+)(\[[\w,-]+\])?([^;]*)(;.*)?')
# One package of two names; only one of them can be installed.
_SAME = {'tensorflow': 'tensorflow-cpu', 'tensorflow-cpu': 'tensorflow'}


def setup_arguments(root: pathlib.Path = ROOT) -> dict:
  """Returns what setup.py hands to setuptools.setup, without setuptools."""
  found = {}
  stub = types.ModuleType('setuptools')
  stub.setup = found.update
  stub.find_packages = lambda **kwargs: []
  with mock.patch.dict(sys.modules, {'setuptools': stub}):
    with contextlib.chdir(root):
      runpy.run_path('setup.py')
  return found


def needed(root: pathlib.Path = ROOT) -> list[str]:
  """Returns the requirements of setup.py and of EXTRAS, with their bounds."""
  found = setup_arguments(root)
  extras = found['extras_require']
  lines = [*found['install_requires'], *(x for e in EXTRAS for x in extras[e])]
  # jax stands there with its bound, and again with its extra.
  merged = {}
  for line in lines:
    name, extra, specifier, marker = _LINE.fullmatch(line).groups('')
    old_extra, old_specifier = merged.get((name, marker), ('', ''))
    merged[name, marker] = extra or old_extra, specifier or old_specifier
  return sorted(
      f'{name}{extra}{specifier}{marker}'
      for (name, marker), (extra, specifier) in merged.items()
  )


def pin(
    lines: Iterable[str],
    version: Callable[[str], str] = importlib.metadata.version,
) -> str:
  """Returns the file for requirements, each at the version installed here.

  Raises:
    importlib.metadata.PackageNotFoundError: one is not installed.
  """
  pinned = []
  for line in lines:
    name, extra, _, marker = _LINE.fullmatch(line).groups('')
    try:
      found = version(name)
    except importlib.metadata.PackageNotFoundError:
      if name not in _SAME:
        raise
      found = version(_SAME[name])
    pinned.append(f'{name}{extra}=={found}{marker}')
  return HEADER + '\n'.join(pinned) + '\n'


def problems(text: str, lines: Sequence[str]) -> list[str]:
  """Returns where the text of the file is not in step with requirements."""
  def parts(line):
    name, extra, specifier, marker = _LINE.fullmatch(line).groups('')
    return (name, extra, marker), specifier.strip()

  have = dict(parts(x) for x in text.splitlines() if not x.startswith('#'))
  want = dict(parts(x) for x in lines)
  found = [f'{"".join(k)} is missing' for k in want if k not in have]
  found += [f'{"".join(k)} is not in setup.py' for k in have if k not in want]
  for key in want.keys() & have.keys():
    pinned = have[key].removeprefix('==')
    if not versions.satisfies(pinned, want[key]):
      found.append(f'{key[0]} {pinned} is not {want[key]}, as in setup.py')
  return found


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      'python -m launch.requirements',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--check', action='store_true')
  args = parser.parse_args(argv)
  lines = needed()
  if not args.check:
    try:
      FILE.write_text(pin(lines), encoding='utf-8')
    except importlib.metadata.PackageNotFoundError as e:
      print(f'error: {e.name} is not installed here; pip install -e'
            f' ".[{",".join(EXTRAS)}]"', file=sys.stderr)
      return 1
  found = problems(FILE.read_text(encoding='utf-8'), lines)
  for problem in found:
    print(f'error: {FILE.name}: {problem}', file=sys.stderr)
  return 1 if found else 0


if __name__ == '__main__':
  sys.exit(main())
