"""Typed and documented config fields on top of ml_collections.

A `Section` is a `ConfigDict` whose keys are declared once, each with a default,
a kind and its meaning. Every assignment is checked against the kind at once,
in a recipe, in a notebook and from the command line alike, so a wrong value is
refused where it is written and never deep in a run.
"""

import ast
import difflib
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_collections
from ml_collections import config_dict


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


def placement() -> Kind:
  """Where a parameter lies: 'replicate', 'fsdp' or an axis per dimension."""

  def check(value):
    if isinstance(value, str):
      _expect(value in ('replicate', 'fsdp'), ValueError)
      return value
    _expect(isinstance(value, tuple | list))
    _expect(all(axis is None or isinstance(axis, str) for axis in value))
    return tuple(value)

  accepts = "'replicate', 'fsdp' or a tuple of mesh axes and None"
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


class Section(ml_collections.ConfigDict):
  """A ConfigDict with declared keys; nested sections know their path."""

  def __init__(self, path: str = ''):
    super().__init__(type_safe=False)
    for name, value in (('_path', path), ('_kinds', {}), ('_meanings', {})):
      object.__setattr__(self, name, value)

  def declare(self, key: str, default: Any, kind: Kind, meaning: str):
    """Adds a field; the default is checked like any other value."""
    if key in self._kinds:
      raise KeyError(f'{self._full(key)} is declared twice')
    self._kinds[key] = kind
    self._meanings[key] = ' '.join(meaning.split())
    self[key] = default

  def section(self, key: str, meaning: str) -> 'Section':
    """Adds and returns a nested section."""
    self._meanings[key] = meaning
    super().__setitem__(key, Section(self._full(key)))
    return self[key]

  def override(self, path: str, text: str):
    """Sets `a.b.c` from command line text, parsed by the field's kind."""
    head, _, rest = path.partition('.')
    if rest and isinstance(self[head], Section):
      self[head].override(rest, text)
    elif rest or head not in self._kinds:
      self._unknown(path)
    else:
      self._set(head, text, self._kinds[head].parse)

  def describe(self) -> str:
    """One line per field: path, default or value, meaning."""
    lines = []
    for key, meaning in self._meanings.items():
      if isinstance(self[key], Section):
        lines += ['', f'# {meaning}', self[key].describe()]
      else:
        lines.append(f'{self._full(key)} = {self[key]!r}\n    {meaning}')
    return '\n'.join(lines)

  def __getitem__(self, key):
    if key not in self._fields:
      self._unknown(key)
    return super().__getitem__(key)

  def __setitem__(self, key, value):
    if key not in self._kinds:
      self._unknown(key)
    self._set(key, value, self._kinds[key].check)

  def _set(self, key, value, convert):
    if not isinstance(value, config_dict.FieldReference):
      value = self._convert(key, value, convert)
    super().__setitem__(key, value)

  def _convert(self, key, value, convert):
    kind = self._kinds[key]
    try:
      return convert(value)
    except (TypeError, ValueError, SyntaxError) as e:
      error = TypeError if isinstance(e, TypeError) else ValueError
      raise error(
          f'config.{self._full(key)} must be {kind.accepts}, got'
          f' {type(value).__name__} {value!r}'
      ) from None

  def __setstate__(self, state):
    # ConfigDict's own would set the fields again, before their kinds exist.
    for name, value in state.items():
      object.__setattr__(self, name, value)

  def check(self):
    """Checks every value once more; field references are computed here."""
    for key, kind in self._kinds.items():
      self._convert(key, self[key], kind.check)
    for key in self:
      if isinstance(self[key], Section):
        self[key].check()

  def _full(self, key: str) -> str:
    return f'{self._path}.{key}' if self._path else key

  def _unknown(self, key: str):
    if key in self._fields:
      fields = ', '.join(f'{self._full(key)}.{k}' for k in self[key])
      raise KeyError(f'{self._full(key)} is a section; set one of {fields}')
    near = difflib.get_close_matches(key, self._fields, 1, 0.6)
    hint = f'; did you mean {self._full(near[0])}?' if near else ''
    where = f'config.{self._path}' if self._path else 'config'
    raise KeyError(
        f'there is no {self._full(key)}{hint} ({where} has'
        f' {", ".join(self._fields)})'
    )
