"""The file of starts, saves and stops."""

import json

from bigtransfer import ledger, stopwatch


def test_the_ledger_only_grows(tmp_path):
  now = [0.0]
  for event in ('start', 'stop'):
    watch = stopwatch.Stopwatch(clock=lambda: now[0])
    now[0] += 1.5
    ledger.Ledger(str(tmp_path), watch).write(event, step=3)
  lines = (tmp_path / 'ledger.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  assert [(r['event'], r['step']) for r in rows] == [('start', 3), ('stop', 3)]
  assert [r['seconds']['steps'] for r in rows] == [1.5, 1.5]


def test_a_process_that_does_not_write_leaves_no_file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  ledger.Ledger(None, stopwatch.Stopwatch()).write('start', step=3)
  assert not list(tmp_path.iterdir())
