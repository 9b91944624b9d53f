"""Plans as text."""

import pytest

from bigtransfer import plan_table

GIB = 2**30
FITS = {
    'phase': 'train', 'topology': 'v3-8', 'chips': 4, 'devices': 8,
    'batch_size': 4096, 'accum_steps': 2, 'per_device': 256, 'remat': 'unit',
    'dtype': 'bfloat16', 'sharding': 'zero1', 'parameters': 25_000_000,
    'state_bytes': GIB // 4, 'argument_bytes': GIB // 2,
    'temporary_bytes': 10 * GIB, 'activation_bytes': 9 * GIB,
    'peak_bytes': 10 * GIB, 'usable_bytes': 15 * GIB, 'fits': True,
    'model_flops': 1e14, 'executed_flops': 1.5e13, 'hbm_bytes': 3 * GIB,
    'collective_bytes': GIB, 'step_seconds': 0.25, 'mfu_bound': 0.817,
    'seconds': {'compute': 0.25, 'hbm': 0.2, 'ici': 0.01},
    'examples_per_second': 16384.0, 'steps': 28000, 'hours': 1.94444,
    'chip_hours': 7.7777, 'compile_seconds': 61.2, 'cached': True,
}
REFUSED = {
    key: FITS[key] for key in (
        'phase', 'topology', 'chips', 'devices', 'batch_size', 'accum_steps',
        'per_device', 'remat', 'dtype', 'sharding', 'parameters',
        'state_bytes', 'usable_bytes', 'model_flops', 'steps',
    )
} | {'fits': False, 'needed_bytes': 20 * GIB, 'available_bytes': 15 * GIB}


def rows(*plans):
  """Returns {label: cells}; a cell has no two spaces in it."""
  result = {}
  for line in plan_table.table(plans).splitlines():
    *cells, = filter(None, (c.strip() for c in line.split('  ')))
    result[cells[0]] = cells[1:]
  return result


def test_numbers_are_in_the_units_of_their_rows():
  found = rows(FITS)
  for label, cell in (
      ('chips, devices', '4, 8'),
      ('batch', '4,096'),
      ('remat, compute type', 'unit, bfloat16'),
      ('HBM of a device: state', '0.25 GiB'),
      ('peak', '10.00 GiB'),
      ('fits', 'yes'),
      # 8 devices of 1.5e13 against 1e14.
      ('executed / model FLOPs', '1.20'),
      ('roofline step, ms', '250'),
      ('MFU at most', '82 %'),
      # Of four chips.
      ('examples/s/chip at most', '4,096'),
      ('chip-hours at least', '7.78'),
      ('seconds to compile', '61 (cached)'),
  ):
    assert found[label] == [cell], label


def test_what_does_not_fit_stands_beside_what_does():
  found = rows(FITS, REFUSED)
  assert found['fits'] == ['yes', 'no']
  assert found['peak'] == ['10.00 GiB', '20.00 GiB']
  assert found['roofline step, ms'] == ['250', '-']
  assert len(set(map(len, found.values()))) == 1


@pytest.mark.parametrize(
    ('temporary', 'expected'), [(14.5, 'yes'), (14.6, 'tight')]
)
def test_state_and_temporaries_together_may_be_tight(temporary, expected):
  plan = FITS | {'temporary_bytes': round(temporary * GIB)}
  assert plan_table.verdict(plan) == expected


def test_a_refusal_says_how_much_of_what():
  text = plan_table.refused(REFUSED)
  assert 'phase train does not fit on v3-8: it needs 20.00 GiB' in text
  assert 'which has 15.00 GiB (batch 4,096, accum_steps=2, 256 per' in text


def test_settings_are_those_to_give():
  assert plan_table.settings(FITS) == (
      "accum_steps=2 (256 per device and pass), model.remat='unit',"
      " sharding.preset='zero1': peak 10.00 GiB, 250 ms a step at least"
  )
  text = plan_table.settings(FITS | {'sharding': 'as given'})
  assert 'preset' not in text
