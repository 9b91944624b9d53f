"""The file of starts and stops."""

import json

from bigtransfer import ledger


def test_the_ledger_only_grows(tmp_path):
  for event in ('start', 'stop'):
    ledger.Ledger(str(tmp_path)).write(event, step=3)
  lines = (tmp_path / 'ledger.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  assert [(r['event'], r['step']) for r in rows] == [('start', 3), ('stop', 3)]


def test_a_process_that_does_not_write_leaves_no_file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  ledger.Ledger(None).write('start', step=3)
  assert not list(tmp_path.iterdir())
