"""Reads the text of a compiled program: what it sends between devices.

`compiled.as_text()` is the program of one device. Loops stay loops in it, so
what is inside of one counts as often as it runs. A TPU writes a collective that
overlaps with other work as several fusions of one channel, and a
reduce-scatter as a fused all-reduce and slice; both count as what they are.
What goes from slice to slice of several is no collective but a send to the
host, and is not among them.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

KINDS = (
    'all-reduce',
    'all-gather',
    'reduce-scatter',
    'all-to-all',
    'collective-permute',
)
SIZES = {
    'pred': 1, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'bf16': 2, 'f16': 2,
    's32': 4, 'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8, 'c64': 8,
    'c128': 16,
}
_ARRAY = re.compile(r'(\w+)\[([\d,]*)\]')
_HEAD = re.compile(r'(ENTRY )?%?([\w.\-]+) \(.*\{$')
_LINE = re.compile(r'\s+(ROOT )?%?([\w.\-]+) = ')
_OPCODE = re.compile(r' ?([\w\-]+)\(')
_NAME = re.compile(r'%([\w.\-]+)')
_COMMENT = re.compile(r'/\*.*?\*/')
_CALLERS = ('async-start', 'call', 'conditional', 'fusion')
_CALLED = re.compile(
    r'(?:calls|to_apply|branch_computations|true_computation'
    r'|false_computation)=(?:\{([^}]*)\}|%?([\w.\-]+))'
)


class Collective(NamedTuple):
  """One collective operation of a program, of one type of numbers.

  Attributes:
    kind: one of `KINDS`.
    dtype: as XLA writes it: 'f32', 'bf16'.
    bytes: of the whole value on one device, each time it runs: what goes into
      a reduction or an exchange, and what comes out of an all-gather. The
      shard that a reduce-scatter leaves is smaller by `group_size`.
    group_size: devices that take part together; 2 for a permutation.
    times: how often it runs, the product of the loops around it. Each branch
      of a conditional counts as taken.
    computation: where it stands: the body of the innermost loop, the branch or
      the entry.
  """

  kind: str
  dtype: str
  bytes: int
  group_size: int
  times: int
  computation: str


class Instruction(NamedTuple):
  """One line: `operands` are names, of a parameter or a constant its text."""

  shape: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str
  root: bool


def collectives(text: str) -> tuple[Collective, ...]:
  """Returns the collectives of a program (`compiled.as_text()`), in its order.

  Groups of one device are left out, as they move nothing.

  Raises:
    ValueError: a loop whose number of runs or a group whose size the text does
      not tell.
  """
  computations, entry = parse(text)
  counts = re.findall(r'(?:num_partitions|replica_count)=(\d+)',
                      text.partition('\n')[0])
  walk = _Walk(computations, math.prod(map(int, counts)))
  found = walk.computation(entry, entry, 1, set())
  return tuple(c for c in found if c.group_size > 1)


def parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
  """Returns {computation: {name: instruction}} and the name of the entry."""
  computations, entry, body = {}, '', None
  for line in text.splitlines():
    head = _HEAD.match(line)
    if head:
      body = computations[head[2]] = {}
      entry = head[2] if head[1] else entry
    elif line.startswith('}'):
      body = None
    elif body is not None:
      match = _LINE.match(line)
      if match:
        body[match[2]] = _instruction(line[match.end():], bool(match[1]))
  return computations, entry


def trips(condition: Mapping[str, Instruction], attributes: str) -> int:
  """Returns how often a loop runs.

  The CPU compiler writes it down; the TPU's does not, and then it is the one
  constant that the condition compares with.

  Raises ValueError for a loop that does not count up to a constant.
  """
  known = re.search(r'known_trip_count[^0-9]*(\d+)', attributes)
  if known:
    return int(known[1])
  bounds = [
      int(i.operands[0])
      for i in condition.values()
      if i.opcode == 'constant' and re.fullmatch(r'\d+', i.operands[0])
  ]
  if len(bounds) != 1:
    raise ValueError(f'a loop with the bounds {bounds}: expected one constant')
  return bounds[0]


class _Walk:
  """Follows the calls of a program from its entry."""

  def __init__(self, computations, devices):
    self._all = computations
    self._devices = devices

  def computation(self, name, place, times, seen) -> Iterator[Collective]:
    """Yields what `name` does, which is `place` itself or fused into it.

    `seen` has the channels of `place` that are under way in fusions.
    """
    body = self._all[name]
    for i in body.values():
      if i.opcode == 'while':
        inner = re.search(r'body=%?([\w.\-]+)', i.attributes)[1]
        condition = re.search(r'condition=%?([\w.\-]+)', i.attributes)[1]
        within = list(self.computation(inner, inner, times, set()))
        # Sampling by rejection ends when the data says so, and sends nothing.
        count = trips(self._all[condition], i.attributes) if within else 0
        for collective in within:
          yield collective._replace(times=count * collective.times)
      elif i.opcode in _CALLERS:
        for group, one in _CALLED.findall(i.attributes):
          for inner in _NAME.findall(group) or [one]:
            fused = i.opcode in ('fusion', 'async-start')
            yield from self.computation(
                inner, place if fused else inner, times,
                seen if fused else set()
            )
      elif i.opcode.removesuffix('-start') in KINDS:
        if not _is_under_way(i, seen):
          yield from self._collective(name, body, i, place, times)

  def _collective(self, name, body, instruction, place, times):
    kind = instruction.opcode.removesuffix('-start')
    group = self._group_size(kind, instruction.attributes)
    sizes = {}
    for operand in instruction.operands:
      for dtype, dims in _ARRAY.findall(body[operand].shape):
        count = math.prod(int(d) for d in dims.split(',') if d)
        sizes[dtype] = sizes.get(dtype, 0) + count * SIZES[dtype]
    if name.startswith('all-reduce-scatter'):
      kind = 'reduce-scatter'
    gathered = group if kind == 'all-gather' else 1
    for dtype, size in sizes.items():
      yield Collective(kind, dtype, gathered * size, group, times, place)

  def _group_size(self, kind, attributes):
    if kind == 'collective-permute':
      return 2
    text = attributes.partition('replica_groups=')[2]
    if text.startswith('{}'):
      return self._devices
    listed = re.match(r'\{\{([\d,]*)\}', text)
    if listed:
      return listed[1].count(',') + 1
    iota = re.match(r'\[\d+,(\d+)\]<=', text)
    if iota:
      return int(iota[1])
    mesh = re.match(r'mesh\[(.*?)\].*? ?\{(.*?)\}', text)
    if not mesh:
      raise ValueError(f'a collective with unknown groups: {text[:80]!r}')
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
    # A part of an axis is written 'axis':(stride)size.
    named = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh[2])
    return math.prod(int(part or sizes[axis]) for axis, part in named)


def _is_under_way(instruction, seen):
  """Says whether it goes on with what an earlier fusion has started."""
  if 'async_collective_fusion_config' not in instruction.attributes:
    return False
  channel = re.search(r'channel_id=(\d+)', instruction.attributes)[1]
  known = channel in seen
  seen.add(channel)
  return known


def _instruction(text, root):
  end = _closing(text, 0) if text.startswith('(') else text.index(' ')
  opcode = _OPCODE.match(text, end)
  close = _closing(text, opcode.end() - 1)
  inside = text[opcode.end() : close - 1]
  if opcode[1] in ('parameter', 'constant'):
    operands = (inside,)
  else:
    operands = tuple(_NAME.findall(inside))
  shape = _COMMENT.sub('', text[:end])
  return Instruction(shape, opcode[1], operands, text[close:], root)


def _closing(text, start):
  """Returns the position after the parenthesis that closes that at `start`."""
  depth = 0
  for match in re.compile(r'[()]').finditer(text, start):
    depth += 1 if match[0] == '(' else -1
    if not depth:
      return match.end()
  raise ValueError(f'unbalanced parentheses: {text[:80]!r}')
