"""The shipped example of labelled text."""

import pytest

from input_pipeline import embedded, era


def test_no_speech_is_in_two_splits_and_none_is_left_out():
  splits = {name: era.read(name) for name in ('train', 'dev', 'test')}
  numbers = [set(rows.lines) for rows in splits.values()]
  assert sum(map(len, numbers)) == len(set.union(*numbers)) == 249
  years = [year for year, _ in embedded.speeches(years=True)]
  for rows in splits.values():
    share = rows.labels.count('since_1900') / len(rows.labels)
    assert 0.5 < share < 0.7
    for label, number in zip(rows.labels, rows.lines, strict=True):
      assert (label == 'since_1900') == (years[number] >= 1900)


def test_another_split_is_refused():
  with pytest.raises(ValueError, match="no split 'valid'.*dev"):
    era.read('valid')
