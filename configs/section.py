"""Sections of a config: declared keys, each with a kind, checked when set."""

import difflib
from typing import Any

import ml_collections
from ml_collections import config_dict

from configs.fields import Kind


class Section(ml_collections.ConfigDict):
  """A ConfigDict with declared keys; nested sections know their path."""

  def __init__(self, path: str = ''):
    super().__init__(type_safe=False)
    for name, value in (
        ('_path', path),
        ('_kinds', {}),
        ('_meanings', {}),
        ('_given', set()),
        ('overridden', set()),
    ):
      object.__setattr__(self, name, value)

  def declare(self, key: str, default: Any, kind: Kind, meaning: str):
    """Adds a field; the default is checked like any other value."""
    if key in self._kinds:
      raise KeyError(f'{self._full(key)} is declared twice')
    self._kinds[key] = kind
    self._meanings[key] = ' '.join(meaning.split())
    self.fill(key, default)

  def section(self, key: str, meaning: str) -> 'Section':
    """Adds and returns a nested section."""
    self._meanings[key] = meaning
    super().__setitem__(key, Section(self._full(key)))
    return self[key]

  def override(self, path: str, text: str):
    """Sets `a.b.c` from command line text, parsed by the field's kind.

    `overridden` keeps the paths: they hold in all phases.
    """
    self.overridden.add(path)
    head, _, rest = path.partition('.')
    if rest and isinstance(self[head], Section):
      self[head].override(rest, text)
    elif rest or head not in self._kinds:
      self._unknown(path)
    else:
      self._set(head, text, self._kinds[head].parse)

  def fill(self, path: str, value: Any):
    """Sets `a.b.c` unless a recipe, phase or override has given it."""
    head, _, rest = path.partition('.')
    if rest:
      self[head].fill(rest, value)
    elif head not in self._given:
      self[head] = value
      self._given.discard(head)

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
    self._given.add(key)

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
