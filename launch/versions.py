"""Installed packages against the bounds that setup.py sets.

The bounds are read from the metadata of the installed project, or where it is
not installed from requirements-tpu.txt, which is made of setup.py. Only what
those two hold is understood: `name[extras]<specifiers>; marker`.
"""

from __future__ import annotations  # old images have Python 3.8

import importlib.metadata
import pathlib
import platform
import re
import sys
from collections.abc import Callable, Iterable, Set

PROJECT = 'bigtransfer'
REQUIREMENTS = pathlib.Path(__file__).with_name('requirements-tpu.txt')
# Its own bounds tell which jaxlib, libtpu and CUDA plugin belong to it.
NESTED = {'jax'}
_REQUIREMENT = re.compile(
    r'([\w.-]+)\s*(?:\[([\w,\s-]+)\])?\s*([^;]*?)\s*(?:;\s*(.+))?'
)
_SPECIFIER = re.compile(r'(>=|<=|==|!=|<|>)\s*([\w.+!]+?)(\.\*)?')
_CONDITION = re.compile(r'(\w+)\s*(==|!=|>=|<=|<|>)\s*["\']([\w.-]*)["\']')

_INNERMOST = re.compile(r'\(([^()]*)\)')


def release(version: str) -> tuple[int, ...]:
  """Returns (1, 2) for '1.2.0.dev3'; zeros at the end do not count."""
  match = re.match(r'\d+(\.\d+)*', version)
  if match is None:
    raise ValueError(f'not a version: {version!r}')
  numbers = [int(part) for part in match[0].split('.')]
  while numbers and not numbers[-1]:
    numbers.pop()
  return tuple(numbers)


def _compare(a, operator: str, b) -> bool:
  return {
      '>=': a >= b, '<=': a <= b, '==': a == b,
      '!=': a != b, '<': a < b, '>': a > b,
  }[operator]


def satisfies(version: str, specifiers: str) -> bool:
  """Returns whether '0.10.2' satisfies '>=0.10,<2' or '==0.10.*'.

  Raises:
    ValueError: for a specifier that is not understood.
  """
  for specifier in filter(None, specifiers.replace(' ', '').split(',')):
    match = _SPECIFIER.fullmatch(specifier)
    if match is None:
      raise ValueError(f'version specifier {specifier!r} is not understood')
    operator, wanted, any_after = match.groups()
    have, want = release(version), release(wanted)
    if any_after:
      have, want = (n + (0,) * 9 for n in (have, want))
      have, want = (n[: wanted.count('.') + 1] for n in (have, want))
    if not _compare(have, operator, want):
      return False
  return True


def applies(marker: str | None, extra: str) -> bool:
  """Returns whether a marker holds here, with `extra`.

  Raises:
    ValueError: for a marker that is not understood.
  """
  if marker is None:
    return True
  here = {
      'extra': extra,
      'platform_machine': platform.machine(),
      'platform_system': platform.system(),
      'python_version': '{}.{}'.format(*sys.version_info),
      'sys_platform': sys.platform,
  }

  def holds(condition):
    if condition.strip() in ('True', 'False'):
      return condition.strip() == 'True'
    match = _CONDITION.fullmatch(condition.strip())
    if match is None or match[1] not in here:
      raise ValueError(f'marker {marker!r} is not understood')
    name, operator, wanted = match.groups()
    have = here[name]
    if name == 'python_version':
      have, wanted = release(have), release(wanted)
    return _compare(have, operator, wanted)

  def whole(text):
    return any(
        all(map(holds, part.split(' and '))) for part in text.split(' or ')
    )

  rest = marker
  while _INNERMOST.search(rest):
    rest = _INNERMOST.sub(lambda match: str(whole(match[1])), rest)
  return whole(rest)


def check(
    requirements: Iterable[str],
    extras: Set[str],
    version: Callable[[str], str] = importlib.metadata.version,
    requires: Callable[[str], list[str] | None] = importlib.metadata.requires,
) -> tuple[dict[str, str], list[str]]:
  """Returns {package: version} of what is installed, and what is wrong.

  Args:
    requirements: lines as in setup.py.
    extras: those of the project that are needed, e.g. {'tpu'}.
    version: of an installed package, by name.
    requires: what an installed package requires itself, by name.
  """
  found, problems = {}, []
  for requirement in requirements:
    match = _REQUIREMENT.fullmatch(requirement.strip())
    if match is None:
      raise ValueError(f'requirement {requirement!r} is not understood')
    name, inner, specifiers, marker = match.groups()
    if not any(applies(marker, extra) for extra in ('', *extras)):
      continue
    try:
      found[name] = version(name)
    except importlib.metadata.PackageNotFoundError:
      problems.append(f'{name}{specifiers} is not installed')
      continue
    if not satisfies(found[name], specifiers):
      problems.append(f'{name} {found[name]} is not {specifiers}')
    if name in NESTED:
      wanted = {part.strip() for part in (inner or '').split(',')} - {''}
      more = check(requires(name) or (), wanted, version, requires)
      found.update(more[0])
      problems += [f'{p} (for {name})' for p in more[1]]
  return found, list(dict.fromkeys(problems))


def project_requirements() -> list[str]:
  """Returns the requirements of the project.

  Raises:
    FileNotFoundError: neither is the project installed nor is there a file.
  """
  try:
    return importlib.metadata.requires(PROJECT) or []
  except importlib.metadata.PackageNotFoundError:
    if not REQUIREMENTS.exists():
      raise FileNotFoundError(
          f'{PROJECT} is not installed for {sys.executable}, and there is no'
          f' {REQUIREMENTS}'
      ) from None
  lines = REQUIREMENTS.read_text(encoding='utf-8').splitlines()
  lines = [line.partition('#')[0].strip() for line in lines]
  return [line for line in lines if line and not line.startswith('-')]
