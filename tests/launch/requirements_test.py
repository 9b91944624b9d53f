"""requirements-tpu.txt is what setup.py asks for, pinned."""

import pytest
from packaging import requirements as packaging_requirements

from launch import requirements, versions

TEXT = requirements.FILE.read_text(encoding='utf-8')
LINES = [line for line in TEXT.splitlines() if not line.startswith('#')]


def test_the_file_is_in_step_with_setup_py():
  assert not requirements.problems(TEXT, requirements.needed())
  assert requirements.main(['--check']) == 0


def test_pip_reads_the_file_the_same_way():
  parsed = [packaging_requirements.Requirement(line) for line in LINES]
  asked = requirements.setup_arguments()
  wanted = [
      packaging_requirements.Requirement(line)
      for line in (*asked['install_requires'], *asked['extras_require']['tpu'])
  ]
  assert {p.name for p in parsed} == {w.name for w in wanted}
  for line in parsed:
    (pin,) = line.specifier
    assert pin.operator == '=='
    for other in wanted:
      if other.name == line.name:
        assert other.specifier.contains(pin.version), line
        assert other.extras <= line.extras
  assert next(p for p in parsed if p.name == 'jax').extras == {'tpu'}


def test_doctor_understands_the_file():
  # It reads the file where the project is not installed.
  pinned = {x.partition('=')[0].partition('[')[0]: x.partition('==')[2]
            .partition(';')[0] for x in LINES}
  found, problems = versions.check(
      LINES, {'tpu'}, version=pinned.__getitem__, requires=lambda name: []
  )
  assert not problems
  assert found['jax'] == pinned['jax']


@pytest.mark.parametrize(('text', 'problem'), [
    ('a==1.0\n', "b; x == 'y' is missing"),
    ("a==1.0\nb==2.0; x == 'y'\nc==1\n", 'c is not in setup.py'),
    ("a==0.9\nb==2.0; x == 'y'\n", 'a 0.9 is not >=1, as in setup.py'),
])
def test_a_file_out_of_step_is_found(text, problem):
  assert requirements.problems(text, ['a>=1', "b>=2; x == 'y'"]) == [problem]


def test_pins_are_what_is_installed():
  def version(name):
    if name == 'tensorflow':
      raise requirements.importlib.metadata.PackageNotFoundError(name)
    return {'jax': '0.10.2', 'tensorflow-cpu': '2.21.0'}[name]

  text = requirements.pin(['jax[tpu]>=0.9', "tensorflow>=2; a != 'b'"], version)
  assert text.splitlines()[1:] == [
      'jax[tpu]==0.10.2', "tensorflow==2.21.0; a != 'b'"
  ]
