"""What a compiled program does, loops counted as often as they run.

XLA's own `cost_analysis` counts the body of a loop once, and a scan over the
layers or over micro-batches is a loop. Here the text of the program is walked:
bytes that go to and from HBM, and operations of products and convolutions.
"""

import functools
import math
import re
from typing import NamedTuple

from bigtransfer import hlo

_ARRAY = re.compile(r'(\w+)\[([\d,]*)\](\{[^{}]*\})?')
_NAME = re.compile(r'%([\w.\-]+)')
# These move nothing, or are counted where they end up.
_FREE = frozenset((
    'after-all', 'bitcast', 'constant', 'get-tuple-element', 'iota',
    'opt-barrier', 'parameter', 'partition-id', 'replica-id', 'tuple',
))
_CALLERS = frozenset(('async-start', 'call', 'conditional', 'while'))


class Cost(NamedTuple):
  """Of one device: bytes of HBM read and written, operations on products."""

  bytes: float
  flops: float


def cost(text: str) -> Cost:
  """Returns the cost of a run of the program `text` (`compiled.as_text()`)."""
  computations, entry = hlo.parse(text)
  return _Walk(computations).cost(entry)


class _Walk:
  """Costs of computations, each worked out once."""

  def __init__(self, computations):
    self._all = computations
    self.cost = functools.cache(self._cost)

  def _cost(self, name):
    found = [self._instruction(self._all[name], i) for i in self._all[name]]
    return Cost(*map(sum, zip(*found, strict=True))) if found else Cost(0, 0)

  def _instruction(self, body, name):
    instruction = body[name]
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith(('-done', '-update')):
      return Cost(0, 0)
    if opcode in _CALLERS:
      return self._called(instruction)
    if opcode == 'fusion':
      inner = self._all[_called(instruction.attributes, 'calls')]
      flops = self._flops(instruction)
      return Cost(self._fusion_bytes(body, instruction, inner), flops)
    return Cost(_bytes(body, instruction), _flops(body, instruction))

  def _called(self, instruction):
    """A while loop, a branch or a call."""
    text = instruction.attributes
    if instruction.opcode == 'while':
      condition = _called(text, 'condition')
      times = hlo.trips(self._all[condition], text)
      each = (self.cost(condition), self.cost(_called(text, 'body')))
      return Cost(*(times * sum(x) for x in zip(*each, strict=True)))
    if instruction.opcode == 'conditional':
      # The dear branch: the other skips an update that is not finite.
      branches = re.search(r'branch_computations=\{([^}]*)\}', text)
      names = _NAME.findall(branches[1]) if branches else [
          _called(text, 'true_computation'), _called(text, 'false_computation')
      ]
      return max(self.cost(name) for name in names)
    calls = 'to_apply' if instruction.opcode == 'call' else 'calls'
    return self.cost(_called(text, calls))

  def _flops(self, fusion):
    """Of what is fused, fusions inside of it included."""
    inner = self._all[_called(fusion.attributes, 'calls')]
    return sum(
        self._flops(i) if i.opcode == 'fusion' else _flops(inner, i)
        for i in inner.values()
    )

  def _fusion_bytes(self, body, fusion, inner):
    """Reads each operand once, of a slice only what it takes; writes once."""
    parameters = {
        int(re.match(r'\d+', i.operands[0])[0]): name
        for name, i in inner.items() if i.opcode == 'parameter'
    }
    total = 0
    for index, operand in enumerate(fusion.operands):
      full = hbm_bytes(body[operand].shape) if operand in body else 0
      total += self._read(inner, parameters.get(index), full)
    root = next(i for i in inner.values() if i.root)
    return total + self._written(inner, root, hbm_bytes(fusion.shape))

  def _read(self, inner, name, full):
    """Bytes of parameter `name` that a fusion reads, `full` at most."""
    if not full or name is None:
      return 0
    total = 0
    for i in inner.values():
      if name not in i.operands:
        continue
      if i.opcode in ('dynamic-slice', 'slice', 'gather'):
        total += _size(i.shape)
      elif i.opcode == 'dynamic-update-slice' and i.operands[0] == name:
        pass  # It is overwritten in place.
      elif i.opcode in ('bitcast', 'get-tuple-element'):
        total += self._read(inner, _name_of(inner, i), full)
      elif i.opcode == 'fusion':
        nested = self._all[_called(i.attributes, 'calls')]
        index = i.operands.index(name)
        inside = next(
            k for k, v in nested.items()
            if v.opcode == 'parameter' and v.operands[0] == str(index)
        )
        # One that only reshapes passes it on to who reads it out here.
        total += self._read(nested, inside, full) or self._read(
            inner, _name_of(inner, i), full
        )
      else:
        return full
    return min(total, full)

  def _written(self, inner, root, full):
    while root.opcode == 'bitcast':
      root = inner[root.operands[0]]
    if root.opcode == 'tuple':
      parts = [inner[name] for name in root.operands]
      return min(full, sum(
          self._written(inner, part, hbm_bytes(part.shape)) for part in parts
      ))
    if root.opcode == 'dynamic-update-slice':
      return min(full, _size(inner[root.operands[1]].shape))
    if root.opcode == 'fusion':
      nested = self._all[_called(root.attributes, 'calls')]
      last = next(i for i in nested.values() if i.root)
      return self._written(nested, last, full)
    return full


def _name_of(body, instruction):
  return next(k for k, v in body.items() if v is instruction)


def _bytes(body, instruction):
  opcode = instruction.opcode
  shape, operands = instruction.shape, instruction.operands
  if opcode in ('dynamic-slice', 'slice', 'gather'):
    return 2 * hbm_bytes(shape)
  if opcode == 'dynamic-update-slice':
    return 2 * hbm_bytes(body[operands[1]].shape)
  if opcode in ('copy-start', 'slice-start'):
    # (destination, source, ...): one of them is often in VMEM.
    parts = _ARRAY.findall(shape)[:2]
    size = hlo.SIZES.get(parts[0][0], 0) * _padded(*parts[0][1:])
    return size * sum(_in_hbm(layout) for _, _, layout in parts)
  written = hbm_bytes(shape)
  if opcode.endswith('-start'):
    written //= 2  # The operands are part of its result.
  read = sum(hbm_bytes(body[o].shape) for o in operands if o in body)
  return read + written


def _flops(body, instruction):
  """Twice the products of a dot or a convolution, as XLA counts them."""
  if instruction.opcode not in ('convolution', 'dot'):
    return 0
  left, right = (body[name].shape for name in instruction.operands[:2])
  out, left, right = (_dims(s) for s in (instruction.shape, left, right))
  text = instruction.attributes
  if instruction.opcode == 'dot':
    over = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', text)[1]
    inner = math.prod(left[int(i)] for i in over.split(',') if i)
    return 2 * math.prod(out) * inner
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', text)
  total = 2 * out[labels[3].index('b')] * math.prod(
      right[labels[2].index(x)] for x in 'io'
  )
  spatial = [x for x in labels[1] if x.isdigit()]
  window = re.search(r'window=\{([^}]*)\}', text)
  given = dict(re.findall(r'(\w+)=([^ ]+)', window[1])) if window else {}
  for i, x in enumerate(spatial):
    per = {k: v.split('x')[i] for k, v in given.items()}
    total *= _products(
        left[labels[1].index(x)], out[labels[3].index(x)], int(per['size']),
        int(per.get('stride', 1)), int(per.get('pad', '0').split('_')[0]),
        int(per.get('lhs_dilate', 1)), int(per.get('rhs_dilate', 1)),
    )
  return total


@functools.cache
def _products(into, out, size, stride, pad, dilate, apart):
  """Pairs of output and window positions along one axis that meet an input.

  On a TPU the batch of a matrix product is an axis of a convolution, so
  dilated that each output meets one input.
  """
  positions = (
      o * stride + k * apart - pad for o in range(out) for k in range(size)
  )
  last = (into - 1) * dilate
  return sum(0 <= p <= last and p % dilate == 0 for p in positions)


def hbm_bytes(shape: str) -> int:
  """Bytes of a shape, tuples added up, without what lies in VMEM (S(1))."""
  return _size(shape, hbm=True)


def _size(shape, hbm=False):
  return sum(
      hlo.SIZES.get(kind, 0) * _padded(dims, layout)
      for kind, dims, layout in _ARRAY.findall(shape)
      if not hbm or _in_hbm(layout)
  )


def _padded(dims, layout):
  """Counts values, with what fills the tiles: 64 channels lie in 128 lanes."""
  sizes = [int(d) for d in dims.split(',') if d]
  found = re.match(r'\{([\d,]*):T\(([\d,]+)\)', layout)
  if found and sizes:
    order = [int(d) for d in found[1].split(',')]
    tile = [int(t) for t in found[2].split(',')]
    for axis, step in zip(order, reversed(tile), strict=False):
      sizes[axis] = -(-sizes[axis] // step) * step
  return math.prod(sizes)


def _in_hbm(layout):
  return not re.search(r'S\([1-9]\d*\)', layout)


def _dims(shape):
  return [int(d) for d in _ARRAY.search(shape)[2].split(',') if d]


def _called(attributes, key):
  return re.search(key + r'=%?([\w.\-]+)', attributes)[1]
