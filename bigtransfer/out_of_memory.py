"""A step that does not fit into the memory of a device, and what to try."""

import re
from typing import Any

# What costs least time first: a layer or unit that is computed twice adds a
# third to the arithmetic, products kept less.
REMAT = {'bert': ('none', 'dots', 'layer'), 'bit': ('none', 'unit', 'stage')}

_UNITS = {'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
_SIZE = r'([\d.]+)([KMGT])'
_NO_ROOM = (
    re.compile(rf'\({_SIZE}\) exceeds available HBM \({_SIZE}\)'),
    re.compile(rf'Used {_SIZE} of {_SIZE} hbm'),
)


class OutOfMemoryError(ValueError):
  """The compiler finds no room for a step; says what to try."""


def sizes(message: str) -> tuple[int, int] | None:
  """Returns bytes needed and available, from an error of the compiler.

  None where the message is on something else, or has no sizes.
  """
  for pattern in _NO_ROOM:
    match = pattern.search(message)
    if match:
      need, have = match.group(1, 2), match.group(3, 4)
      return tuple(round(float(n) * _UNITS[u]) for n, u in (need, have))
  return None


def error(message: str, phase: Any = None) -> OutOfMemoryError | None:
  """Returns what to raise for the message of a `JaxRuntimeError`.

  Args:
    message: of the compiler or of whoever hands out memory.
    phase: a `program.Phase`, where its step is what did not fit.

  Returns:
    None where the message is on something else.
  """
  found = sizes(message)
  if not (found or message.startswith('RESOURCE_EXHAUSTED')):
    return None
  what = message.splitlines()[0]
  if found:
    need, have = (f'{size / 2**30:.2f} GiB' for size in found)
    what = f'it needs {need} of each device, which has {have}'
  subject, advice = 'the job', ''
  if phase:
    c, parts = phase.config, phase.program.parts
    subject = f'phase {phase.name}'
    what += (
        f' (batch {c.batch_size:,}, accum_steps={c.accum_steps},'
        f' {c.batch_size // parts // c.accum_steps:,} per device and pass,'
        f' remat={c.model.remat!r})'
    )
    advice = f'try {_advice(c, parts)}; '
  return OutOfMemoryError(
      f'{subject} runs out of memory: {what}; {advice}python -m'
      ' bigtransfer.plan --search with the same --config, and --topology for'
      ' the slice, finds what fits'
  )


def _advice(config, parts):
  """Returns the options that take less memory, the cheapest first."""
  passes, size = config.accum_steps, config.batch_size // parts
  more = [n for n in range(passes + 1, size + 1) if size % n == 0]
  options = [f'--config.accum_steps={n}' for n in more[:1]]
  policies = REMAT.get(config.model.name, ())
  if config.model.remat in policies:
    after = policies[policies.index(config.model.remat) + 1 :]
    options += [f'--config.model.remat={policy}' for policy in after[:1]]
  if parts > 1 and not config.sharding.preset:
    options.append('--config.sharding.preset=zero1')
  return ' or '.join(options) or 'a larger slice'
