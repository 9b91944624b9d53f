"""What the commands that take a config have in common."""

import re
import sys
from collections.abc import Sequence

_OVERRIDE = re.compile(r'--config\.([\w.]+)(?:=(.*))?', re.DOTALL)


def split(argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
  """Returns the (key, text) of each --config.KEY=TEXT, and the other arguments.

  Without a text it is 'true', for switches.
  """
  overrides, rest = [], []
  for arg in argv:
    match = _OVERRIDE.fullmatch(arg)
    if match:
      overrides.append((match[1], 'true' if match[2] is None else match[2]))
    else:
      rest.append(arg)
  return overrides, rest


def say_error(error: BaseException) -> str:
  """Prints the error as the last line of stderr; returns its text."""
  # str() of a KeyError would quote it.
  text = error.args[0] if isinstance(error, KeyError) else str(error)
  print(f'error: {text}', file=sys.stderr, flush=True)
  return str(text)
