"""Plans as text: one column for each, one row for each number."""

from collections.abc import Sequence
from typing import Any

# Label, and the text of a plan; what it has no number for is left empty.
_ROWS = (
    ('phase', lambda p: p['phase']),
    ('slice', lambda p: p['topology']),
    ('chips, devices', lambda p: f'{p["chips"]:,}, {p["devices"]:,}'),
    ('batch', lambda p: f'{p["batch_size"]:,}'),
    ('accumulation steps', lambda p: f'{p["accum_steps"]:,}'),
    ('batch per device and pass', lambda p: f'{p["per_device"]:,}'),
    ('remat, compute type', lambda p: f'{p["remat"]}, {p["dtype"]}'),
    ('sharding', lambda p: p['sharding']),
    ('parameters', lambda p: f'{p["parameters"]:,}'),
    ('HBM of a device: state', lambda p: size(p['state_bytes'])),
    ('  activations', lambda p: size(p['activation_bytes'])),
    ('  peak', lambda p: size(p.get('peak_bytes', p.get('needed_bytes')))),
    ('  usable', lambda p: size(p['usable_bytes'])),
    ('fits', lambda p: verdict(p)),
    ('model FLOPs of a step', lambda p: f'{p["model_flops"]:.3g}'),
    ('executed / model FLOPs', lambda p: (
        f'{p["executed_flops"] * p["devices"] / p["model_flops"]:.2f}')),
    ('HBM bytes of a device', lambda p: size(p['hbm_bytes'])),
    ('collective bytes', lambda p: size(p['collective_bytes'])),
    ('ms: arithmetic', lambda p: milliseconds(p['seconds']['compute'])),
    ('  HBM', lambda p: milliseconds(p['seconds']['hbm'])),
    ('  links', lambda p: milliseconds(p['seconds']['ici'])),
    ('roofline step, ms', lambda p: milliseconds(p['step_seconds'])),
    ('MFU at most', lambda p: f'{100 * p["mfu_bound"]:.0f} %'),
    ('examples/s/chip at most', lambda p: (
        f'{p["examples_per_second"] / p["chips"]:,.0f}')),
    ('steps', lambda p: f'{p["steps"]:,}'),
    ('hours at least', lambda p: f'{p["hours"]:.3g}'),
    ('chip-hours at least', lambda p: f'{p["chip_hours"]:,.3g}'),
    ('seconds to compile', lambda p: (
        f'{p["compile_seconds"]:.0f}' + (' (cached)' * ('cached' in p)))),
)


def table(plans: Sequence[dict[str, Any]]) -> str:
  """Returns plans side by side."""
  rows = [[label, *(_cell(get, p) for p in plans)] for label, get in _ROWS]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return '\n'.join(
      '  '.join([
          row[0].ljust(widths[0]),
          *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
      ]).rstrip()
      for row in rows
  )


def _cell(get, plan):
  try:
    return get(plan)
  except KeyError:
    return '-'  # Of a job that does not fit, little is known.


def verdict(plan: dict[str, Any]) -> str:
  """'yes', 'no', or 'tight'.

  Tight: the compiler accepts it because parts of the state make room before
  others are needed; state and temporaries together are more than there is.
  """
  if not plan['fits']:
    return 'no'
  total = plan['argument_bytes'] + plan['temporary_bytes']
  return 'yes' if total <= plan['usable_bytes'] else 'tight'


def size(count: float) -> str:
  """Bytes in GiB, as the compiler gives them."""
  return f'{count / 2**30:.2f} GiB'


def milliseconds(seconds: float) -> str:
  return f'{1e3 * seconds:.3g}'


def refused(plan: dict[str, Any]) -> str:
  """Says that a job runs out of memory."""
  return (
      f'phase {plan["phase"]} does not fit on {plan["topology"]}: it needs'
      f' {size(plan["needed_bytes"])} of each device, which has'
      f' {size(plan["available_bytes"])} (batch {plan["batch_size"]:,},'
      f' accum_steps={plan["accum_steps"]}, {plan["per_device"]:,} per device'
      f' and pass, remat={plan["remat"]!r})'
  )


def settings(plan: dict[str, Any]) -> str:
  """Says how a job that fits is configured."""
  return (
      f'accum_steps={plan["accum_steps"]} ({plan["per_device"]:,} per device'
      f' and pass), model.remat={plan["remat"]!r}'
      + ('' if plan['sharding'] == 'as given' else
         f', sharding.preset={plan["sharding"]!r}')
      + f': peak'
      f' {size(plan["peak_bytes"])}, {milliseconds(plan["step_seconds"])} ms a'
      f' step at least'
  )
