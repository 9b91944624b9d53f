"""The folder of the embedded speeches: made once, and only as a whole."""

import os

import pytest

from input_pipeline import bert_data, speeches


@pytest.fixture
def calls(monkeypatch, tmp_path):
  """The arguments of each call of bert_data, which writes an empty file."""
  made = []

  def main(argv):
    made.append(argv)
    output = argv[argv.index('--output') + 1]
    os.makedirs(output)
    with open(os.path.join(output, 'metadata.json'), 'w'):
      return 0

  monkeypatch.setattr(bert_data, 'main', main)
  monkeypatch.setenv('HOME', str(tmp_path))
  return made


def _cache(home):
  return sorted(os.listdir(home / '.cache' / 'bigtransfer'))


def test_made_once_for_each_length(calls, tmp_path):
  first = speeches.folder(128)
  assert first == speeches.folder(128)
  assert os.listdir(first) == ['metadata.json']
  second = speeches.folder(512)
  assert [argv[argv.index('--max_seq_length') + 1] for argv in calls] == [
      '128', '512',
  ]
  assert _cache(tmp_path) == [os.path.basename(p) for p in (first, second)]


def test_another_text_is_another_folder(calls, monkeypatch, tmp_path):
  text = tmp_path / 'text.txt'
  text.write_text('Hello.\n')
  before = speeches.folder(128)
  monkeypatch.setattr(speeches, '_TEXT', str(text))
  assert speeches.folder(128) != before


def test_nothing_is_left_of_a_failure(calls, monkeypatch, tmp_path):
  monkeypatch.setattr(bert_data, 'main', lambda argv: 1)
  with pytest.raises(ValueError, match='exit code 1'):
    speeches.folder(128)
  assert not _cache(tmp_path)


def test_another_process_may_be_faster(calls, monkeypatch, tmp_path):
  main = bert_data.main

  def slow(argv):
    monkeypatch.setattr(bert_data, 'main', main)
    faster.append(speeches.folder(128))
    return main(argv)

  faster = []
  monkeypatch.setattr(bert_data, 'main', slow)
  assert [speeches.folder(128)] == faster
  assert _cache(tmp_path) == [os.path.basename(faster[0])]
