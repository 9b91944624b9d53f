"""Version bounds, and what of them the installed packages break."""

import importlib.metadata
import pathlib

import pytest

from launch import versions

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize(
    ('version', 'specifiers', 'expected'),
    [
        ('0.10.2', '>=0.10.2', True),
        ('0.9.10', '>=0.10', False),
        ('0.10.2.dev3+g1', '<=0.10.2,>=0.10.1', True),
        ('2.0', '==2', True),
        ('0.0.42.1', '==0.0.42.*', True),
        ('0.0.43', '==0.0.42.*', False),
        ('2', '==2.0.*', True),
        ('3.14.0', '>=3.11,<3.14', False),
        ('3.13.9', '>=3.11, <3.14', True),
        ('1.5', '!=1.5', False),
        ('1.5', '', True),
    ],
)
def test_satisfies(version, specifiers, expected):
  assert versions.satisfies(version, specifiers) is expected


@pytest.mark.parametrize(
    ('marker', 'expected'),
    [
        (None, True),
        ('extra == "tpu"', True),
        ("extra == 'gpu'", False),
        ('platform_system == "Nowhere" and extra == "tpu"', False),
        ('platform_system == "Nowhere" or extra == "tpu"', True),
        ('python_version >= "3.9" and python_version < "4"', True),
        # As setuptools puts an extra to a marker.
        ('(sys_platform == "x" or python_version < "4") and extra == "tpu"',
         True),
        ('(sys_platform == "x" or python_version < "4") and extra == "a"',
         False),
        ('extra == "a" or (extra == "tpu" and (extra == "b"))', False),
    ],
)
def test_applies(marker, expected):
  assert versions.applies(marker, 'tpu') is expected


def test_what_is_not_understood_is_an_error():
  with pytest.raises(ValueError, match='marker .* is not understood'):
    versions.applies('(extra == "a"', 'a')
  with pytest.raises(ValueError, match="specifier '~=1' is not understood"):
    versions.satisfies('1', '~=1')
  with pytest.raises(ValueError, match='not a version'):
    versions.satisfies('new', '>=1')


INSTALLED = {'jax': '0.10.2', 'jaxlib': '0.10.1', 'flax': '0.12.8'}
OF_JAX = ['jaxlib<=0.10.2,>=0.10.2', 'libtpu==0.0.42.*; extra == "tpu"']


def check(*requirements, extras=()):
  def version(name):
    if name not in INSTALLED:
      raise importlib.metadata.PackageNotFoundError(name)
    return INSTALLED[name]

  requires = {'jax': OF_JAX}.get
  return versions.check(requirements, set(extras), version, requires)


def test_all_is_found():
  assert check('flax>=0.12.8', 'torch; extra == "parity"') == (
      {'flax': '0.12.8'},
      [],
  )


def test_every_problem_is_named():
  found, problems = check(
      'jax>=0.10.2',
      'flax>=0.13',
      'optax>=0.2.8',
      'jax[tpu]; extra == "tpu"',
      extras=['tpu'],
  )
  assert found == INSTALLED
  assert problems == [
      'jaxlib 0.10.1 is not <=0.10.2,>=0.10.2 (for jax)',
      'flax 0.12.8 is not >=0.13',
      'optax>=0.2.8 is not installed',
      'libtpu==0.0.42.* is not installed (for jax)',
  ]


def test_the_requirements_of_the_project_are_understood():
  _, problems = versions.check(versions.project_requirements(), set())
  assert not problems


def test_where_the_project_is_not_installed_its_list_counts(
    tmp_path, monkeypatch
):
  monkeypatch.setattr(versions, 'PROJECT', 'no-such-project')
  monkeypatch.setattr(versions, 'REQUIREMENTS', tmp_path / 'a.txt')
  with pytest.raises(FileNotFoundError, match='no-such-project is not inst'):
    versions.project_requirements()
  text = '# of setup.py\n--find-links x\njax>=1  # the newest\n\nflax\n'
  (tmp_path / 'a.txt').write_text(text)
  assert versions.project_requirements() == ['jax>=1', 'flax']
