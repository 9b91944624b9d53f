"""Kinds of config fields: what each accepts, and how its text is read.

A `Section` (section.py) is a `ConfigDict` whose keys are declared once, each
with a default, a kind and its meaning. Every assignment is checked against the
kind at once, in a recipe, in a notebook and from the command line alike, so a
wrong value is refused where it is written and never deep in a run.
"""

import ast
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Kind(NamedTuple):
  """What a field accepts.

  Attributes:
    accepts: in words, for error messages.
    check: returns the value in its final type, or raises TypeError/ValueError.
    parse: the same, from the text of a command line argument.
  """

  accepts: str
  check: Callable[[Any], Any]
  parse: Callable[[str], Any]


def _expect(condition: bool, error=TypeError):
  if not condition:
    raise error


def integer(at_least: int | None = None) -> Kind:
  def check(value):
    _expect(isinstance(value, int) and not isinstance(value, bool))
    _expect(at_least is None or value >= at_least, ValueError)
    return value

  bound = '' if at_least is None else f' of at least {at_least}'
  return Kind(f'int{bound}', check, lambda text: check(int(text)))


def number(
    at_least: float | None = None, below: float | None = None
) -> Kind:
  """A finite float; an int is converted."""

  def check(value):
    _expect(isinstance(value, int | float) and not isinstance(value, bool))
    _expect(math.isfinite(value), ValueError)
    _expect(at_least is None or value >= at_least, ValueError)
    _expect(below is None or value < below, ValueError)
    return float(value)

  bound = '' if at_least is None else f' of at least {at_least:g}'
  bound += '' if below is None else f' and below {below:g}'
  return Kind(f'float{bound}', check, lambda text: check(float(text)))


def string() -> Kind:
  def check(value):
    _expect(isinstance(value, str))
    return value

  return Kind('str', check, check)


def boolean() -> Kind:
  def check(value):
    _expect(isinstance(value, bool))
    return value

  def parse(text):
    _expect(text.lower() in ('true', 'false'), ValueError)
    return text.lower() == 'true'

  return Kind('true or false', check, parse)


def choice(*names: str) -> Kind:
  def check(value):
    _expect(isinstance(value, str))
    _expect(value in names, ValueError)
    return value

  return Kind('one of ' + ', '.join(map(repr, names)), check, check)


_DURATION = re.compile(r'(\d+(\.\d+)?) *(%|steps?|epochs?|examples?)')


def duration() -> Kind:
  """Steps as an int, or text such as '2 epochs'; see `accepts` below."""

  def check(value):
    if isinstance(value, str):
      _expect(_DURATION.fullmatch(value) is not None, ValueError)
      return value
    return integer(at_least=0).check(value)

  def parse(text):
    return int(text) if text.isdigit() else check(text)

  accepts = "steps as an int, or '300 steps', '2 epochs', '50000 examples', "
  return Kind(accepts + "'10%'", check, parse)


def optional(kind: Kind) -> Kind:
  """None is allowed; on the command line it is written `None`."""

  def check(value):
    return None if value is None else kind.check(value)

  def parse(text):
    return None if text == 'None' else kind.parse(text)

  return Kind(f'{kind.accepts}, or None', check, parse)


def tuple_of(*kinds: Kind, repeated: bool = False) -> Kind:
  """A tuple with one kind per element, or any number of one kind."""
  many = f'any number of: {kinds[0].accepts}' if repeated else ''
  each = many or ', '.join(kind.accepts for kind in kinds)

  def check(value):
    _expect(isinstance(value, tuple | list))
    _expect(repeated or len(value) == len(kinds), ValueError)
    chosen = kinds * len(value) if repeated else kinds
    return tuple(k.check(v) for k, v in zip(chosen, value, strict=True))

  def parse(text):
    if text[:1] in '([':
      return check(ast.literal_eval(text))
    _expect(',' in text, ValueError)
    parts = [part.strip() for part in text.split(',') if part.strip()]
    _expect(repeated or len(parts) == len(kinds), ValueError)
    chosen = kinds * len(parts) if repeated else kinds
    return tuple(k.parse(v) for k, v in zip(chosen, parts, strict=True))

  return Kind(f"tuple ('a,b', 'a,' or '(a, b)') of {each}", check, parse)


def rules(value: Kind) -> Kind:
  """An ordered tuple of (regex, value) pairs, first full match wins."""

  def pattern(text):
    _expect(isinstance(text, str))
    try:
      re.compile(text)
    except re.error as e:
      raise ValueError from e
    return text

  pair = tuple_of(Kind('regex', pattern, pattern), value)
  kind = tuple_of(pair, repeated=True)
  accepts = f'tuple of (regex, value), value: {value.accepts}'
  return kind._replace(accepts=accepts)


def placement(*names: str) -> Kind:
  """Where a parameter lies: a name, or a mesh axis or None per dimension."""
  names = names or ('replicate', 'fsdp')

  def check(value):
    if isinstance(value, str):
      _expect(value in names, ValueError)
      return value
    _expect(isinstance(value, tuple | list))
    _expect(all(axis is None or isinstance(axis, str) for axis in value))
    return tuple(value)

  listed = ', '.join(map(repr, names))
  accepts = f'{listed} or a tuple of mesh axes and None'
  return Kind(accepts, check, ast.literal_eval)


def overrides() -> Kind:
  """A tuple of dicts from dotted key to value."""

  def tuples(value):
    if isinstance(value, tuple | list):
      return tuple(map(tuples, value))
    return value

  def check(value):
    _expect(isinstance(value, tuple | list))
    _expect(all(isinstance(phase, dict) for phase in value))
    _expect(all(isinstance(key, str) for phase in value for key in phase))
    return tuple(
        {key: tuples(v) for key, v in phase.items()} for phase in value
    )

  accepts = "tuple of dicts such as ({'name': 'long', 'total_steps': 100},)"
  return Kind(accepts, check, lambda text: check(ast.literal_eval(text)))
