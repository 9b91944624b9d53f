"""Which layers hold the memory of a compiled program where it needs most.

A TPU's compiler tells the peak and not what it consists of. The text of the
program is in the order in which it runs, so what is alive at each line can be
followed, and each value names the layer that it came from.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from bigtransfer import hlo, hlo_cost

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_ALIASES = ('bitcast', 'opt-barrier', 'reshape')
# Wrappers of JAX around the names of modules, and what loops add to them.
_WRAPPER = re.compile(r'\w*\(.*\)|while|body|cond|closed_call|layers|checkpoint'
                      r'|shard_map|rematted_computation|branch_\d+_fun')


class _Value(NamedTuple):
  """The buffers behind a name, by element where it is a tuple."""

  elements: tuple[frozenset, ...]

  @property
  def all(self):
    return frozenset().union(*self.elements)


def by_layer(text: str) -> dict[str, int]:
  """Returns {layer: bytes} of the temporaries alive at the peak.

  What is not inside of a layer is under 'step'. Arguments and results are left
  out: they are the state. The compiler packs and shares buffers, so that the
  sum differs from its own by some per cent.
  """
  computations, entry = hlo.parse(text)
  _, held = _Simulation(computations).peak(entry)
  return dict(Counter(held).most_common())


def layer(op_name: str) -> str:
  """Returns 'block1/unit01' or 'encoder/query' of an operation's name.

  'jit(step)/transpose(jvp(_Network))/encoder/while/body/closed_call/layers/
  query/dot_general' is one; the last part is the operation itself, and an
  einsum names one more.
  """
  *parts, _ = op_name.split('/')
  parts = [p for p in parts if not (_WRAPPER.fullmatch(p) or '->' in p)]
  return '/'.join(parts[:2]) or 'step'


class _Simulation:
  """Follows what is alive, in loops and branches too."""

  def __init__(self, computations):
    self._all = computations
    self.peak = functools.cache(self._peak)

  def _peak(self, name):
    """Returns (bytes, {layer: bytes}) of a computation at its worst line."""
    body = self._all[name]
    values, sizes, born, last = {}, {}, {}, {}
    for line, (key, i) in enumerate(body.items()):
      for operand in i.operands if i.opcode != 'parameter' else ():
        for buffer in values[operand].all if operand in values else ():
          last[buffer] = line
      values[key], new = self._value(key, i, values)
      sizes |= new
      born |= dict.fromkeys(new, line)
      if i.root:
        # Results lie where the arguments were, or where a loop carries them.
        for buffer in values[key].all:
          sizes.pop(buffer, None)
    return self._worst(body, sizes, born, last)

  def _worst(self, body, sizes, born, last):
    """Sweeps over the lines for the one at which most is alive."""
    come, go = Counter(), Counter()
    for buffer, size in sizes.items():
      come[born[buffer]] += size
      go[last.get(buffer, born[buffer])] += size
    alive, best = 0, (-1, 0, {})
    for line, i in enumerate(body.values()):
      inner, inside = max(
          map(self.peak, _called(i)), key=lambda p: p[0], default=(0, {})
      )
      alive += come[line]
      if alive + inner > best[0]:
        best = (alive + inner, line, inside)
      alive -= go[line]
    total, line, inside = best
    held = Counter(inside)
    for buffer, size in sizes.items():
      if born[buffer] <= line <= last.get(buffer, born[buffer]):
        name = _OP_NAME.search(body[buffer[0]].attributes)
        held[layer(name[1]) if name else 'step'] += size
    return total, dict(held)

  def _value(self, key, i, values):
    """Returns the _Value of an instruction and the sizes of its new buffers."""
    known = [values[o] for o in i.operands if o in values]
    if i.opcode == 'tuple':
      return _Value(tuple(v.all for v in known)), {}
    if i.opcode == 'get-tuple-element':
      index = int(re.search(r'index=(\d+)', i.attributes)[1])
      source = known[0].elements if known else ()
      one = source[index] if index < len(source) else frozenset()
      return _Value((one,)), {}
    if i.opcode in ('parameter', 'constant', 'iota', 'conditional'):
      return _Value((frozenset(),)), {}
    if i.opcode == 'while' or i.opcode in _ALIASES or i.opcode[-5:] == '-done':
      return known[0] if known else _Value((frozenset(),)), {}
    if self._in_place(i):
      return _Value((frozenset().union(*(v.all for v in known)),)), {}
    sizes = [hlo_cost.hbm_bytes(shape) for shape in _elements(i.shape)]
    new = {(key, n): size for n, size in enumerate(sizes) if size}
    return _Value(tuple(frozenset([(key, n)]) for n in range(len(sizes)))), new

  def _in_place(self, i):
    """Says whether an instruction writes into one of its operands."""
    if i.opcode == 'fusion':
      called = re.search(r'calls=%?([\w.\-]+)', i.attributes)[1]
      inner = self._all[called]
      i = next(x for x in inner.values() if x.root)
      while i.opcode == 'bitcast':
        i = inner[i.operands[0]]
    return i.opcode == 'dynamic-update-slice'


def _elements(shape) -> Iterator[str]:
  """Yields the arrays of a flat shape."""
  for match in re.finditer(r'\w+\[[\d,]*\](\{[^{}]*\})?', shape):
    yield match[0]


def _called(i) -> list[str]:
  if i.opcode == 'while':
    return [re.search(r'body=%?([\w.\-]+)', i.attributes)[1]]
  if i.opcode == 'conditional':
    group = re.search(r'branch_computations=\{([^}]*)\}', i.attributes)
    if group:
      return re.findall(r'%([\w.\-]+)', group[1])
    return re.findall(r'(?:true|false)_computation=%?([\w.\-]+)', i.attributes)
  if i.opcode == 'call':
    return [re.search(r'to_apply=%?([\w.\-]+)', i.attributes)[1]]
  return []
