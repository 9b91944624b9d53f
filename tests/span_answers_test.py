"""The choice of answers against an exhaustive search."""

from typing import NamedTuple

import numpy as np
import pytest

from bigtransfer import span_answers

CONTEXT = 'peace war peace and more war'


class Window(NamedTuple):
  prefix: int
  offsets: np.ndarray
  max_context: np.ndarray


def window(context=CONTEXT, prefix=3, best=None):
  ends = np.cumsum([len(w) + 1 for w in context.split()]) - 1
  offsets = np.stack([ends - [len(w) for w in context.split()], ends], axis=1)
  count = len(offsets)
  return Window(prefix, offsets, np.ones(count, bool) if best is None else best)


def logits(**values):
  """Logits of 12 positions, -9 but for those given as p<position>."""
  result = np.full(12, -9.0, np.float32)
  for name, value in values.items():
    result[int(name[1:])] = value
  return result


OPTIONS = {'n_best': 20, 'max_length': 30, 'allow_null': False}


def best(rows, **options):
  return span_answers.best_answers(CONTEXT, rows, **OPTIONS | options)


def test_candidates_equal_an_exhaustive_search():
  rng = np.random.default_rng(0)
  for _ in range(20):
    start, end = rng.normal(size=(2, 14)).astype(np.float32)
    w = window(best=rng.random(6) < 0.7)
    for n_best, length in ((3, 2), (6, 30), (20, 1)):
      tops = [set(np.argsort(-x)[:n_best].tolist()) for x in (start, end)]
      want = {
          (i - 3, j - 3)
          for i in tops[0]
          for j in tops[1]
          if 3 <= i <= j < 9 and j - i < length and w.max_context[i - 3]
      }
      got = span_answers.spans(
          w, start, end, n_best=n_best, max_length=length
      )
      assert {(i, j) for _, _, i, j in got} == want
      for s, e, i, j in got:
        assert (s, e) == (start[i + 3], end[j + 3])


def test_the_text_is_cut_out_of_the_paragraph():
  # The question, [CLS] and padding score high and are no answers.
  start = logits(p4=3, p0=9, p1=9, p11=9)
  end = logits(p6=3, p0=9, p1=9, p11=9)
  assert best([(window(), start, end)]).text == 'war peace and'


def test_the_best_window_wins_and_equal_texts_count_once():
  one = (window(), logits(p3=1), logits(p3=1))
  two = (window(), logits(p5=2, p4=1.5), logits(p5=2, p4=1.5))
  result = best([one, two], n_best=3)
  texts = [a.text for a in result.answers]
  # 'peace' is at two places; 4.0 beats 3.5 ('war peace') and 3.0 ('war').
  assert texts[:3] == ['peace', 'war peace', 'war']
  assert result.answers[0].score == 4
  assert len(texts) == len(set(texts)) == 3
  weights = np.exp([4, 3.5, 3])
  np.testing.assert_allclose(result.probabilities, weights / weights.sum())


def test_a_long_answer_is_none():
  row = (window(), logits(p3=5, p8=1), logits(p8=5, p3=-2))
  assert best([row]).text == CONTEXT
  assert best([row], max_length=5).text == 'war'


def test_no_answer_is_that_of_the_window_that_doubts_it_most():
  one = (window(), logits(p0=5, p3=1), logits(p0=5, p3=1))
  two = (window(), logits(p0=2, p4=1), logits(p0=1, p4=2))
  result = best([one, two], allow_null=True)
  assert result.null_odds == pytest.approx(3 - 3)
  assert result.text == 'war'
  assert '' in [a.text for a in result.answers]
  assert '' not in [a.text for a in best([one, two]).answers]


def test_without_a_candidate_there_is_an_empty_answer():
  row = (window(best=np.zeros(6, bool)), logits(p0=1), logits(p0=2))
  result = best([row])
  assert (result.text, result.null_odds) == ('', 3.0)
  assert [a.text for a in result.answers] == ['']
