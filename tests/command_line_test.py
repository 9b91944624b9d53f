"""Overrides are told from flags, and errors are one line."""

import pytest

from bigtransfer import command_line


def test_overrides_are_told_from_flags():
  assert command_line.split([
      '--config=a.py', '--config.a.b=1=2', '--config.print_plan', '--workdir',
      'w',
  ]) == (
      [('a.b', '1=2'), ('print_plan', 'true')],
      ['--config=a.py', '--workdir', 'w'],
  )


@pytest.mark.parametrize('error', [ValueError('no x'), KeyError('no x')])
def test_an_error_is_one_plain_line(error, capsys):
  assert command_line.say_error(error) == 'no x'
  assert capsys.readouterr().err == 'error: no x\n'
