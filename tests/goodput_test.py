"""Goodput of ledgers whose times are known."""

import json

import pytest

from bigtransfer import goodput


def row(event, minute, step, *, steps=0.0, **seconds):
  kinds = dict.fromkeys(
      ('steps', 'start', 'compilation', 'data', 'evaluation', 'checkpoints'),
      0.0,
  )
  kinds |= {'steps': steps, **seconds}
  time = f'2026-01-01T00:{minute:02}:00.000Z'
  return json.dumps(
      {'event': event, 'time': time, 'step': step, 'seconds': kinds}
  )


def test_one_run_that_ended_well():
  lines = [
      row('start', 1, 0, start=60),
      row('save', 5, 100, steps=200, start=70, data=30),
      row('stop', 9, 200, steps=400, start=70, data=50, checkpoints=20),
  ]
  result = goodput.of_ledger(lines)
  assert (result.starts, result.total) == (1, 540)
  assert result.share == pytest.approx(400 / 540)
  assert result.seconds == {
      'steps': 400, 'start': 70, 'compilation': 0, 'data': 50, 'evaluation': 0,
      'checkpoints': 20, 'lost': 0,
  }


def test_steps_that_were_made_again_are_lost():
  killed = [
      row('start', 0, 0),
      row('save', 2, 100, steps=120),
      # Was under way when the kill came: not found by the next start.
      row('save', 4, 200, steps=240),
  ]
  failed = [
      row('start', 10, 100),
      row('save', 12, 200, steps=100, start=20),
      row('stop', 13, 250, steps=160, start=20, reason=1),
  ]
  last = [row('start', 15, 200), row('stop', 20, 300, steps=250, start=50)]
  result = goodput.of_ledger(killed + failed + last)
  assert (result.starts, result.total) == (3, 1200)
  assert result.seconds['steps'] == 120 + 100 + 250
  assert result.seconds['start'] == 70
  assert result.seconds['lost'] == 1200 - 470 - 70


def test_a_run_under_way_counts_to_its_last_line():
  result = goodput.of_ledger([
      row('start', 0, 0), row('save', 1, 9, steps=30, evaluation=30)
  ])
  assert (result.total, result.share) == (60, 0.5)


def test_the_table_adds_up():
  lines = [row('start', 0, 0, start=6), row('stop', 2, 1, steps=63, start=6)]
  text = goodput.text(goodput.of_ledger(lines)).splitlines()
  assert text[0] == 'goodput 50.0% of 0:02:06, started once'
  assert text[1].split() == ['steps', '0:01:03', '50.0%']
  assert text[-1].split() == ['lost', '0:00:57', '45.2%']


@pytest.mark.parametrize('lines', [[], [row('save', 0, 1)]])
def test_a_ledger_begins_with_a_start(lines):
  with pytest.raises(ValueError, match='does not begin with a start'):
    goodput.of_ledger(lines)
