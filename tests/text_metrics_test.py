"""Official metrics: hand-made cases, by the definitions of their authors."""

import numpy as np
import pytest

from bigtransfer import text_metrics


@pytest.mark.parametrize(
    ('text', 'want'),
    [
        ('The  Cat,\tsat!', 'cat sat'),
        ('a an the theory', 'theory'),
        ("O'Neill's", 'oneills'),
        # Punctuation goes first, so that 'a-b' is one word without an article.
        ('a-b', 'ab'),
        ('— the “end”', '— “end”'),  # ASCII punctuation only.
        ('The', ''),
    ],
)
def test_answers_are_normalized_as_squad_does(text, want):
  assert text_metrics.normalize_answer(text) == want


@pytest.mark.parametrize(
    ('predicted', 'answers', 'version', 'want'),
    [
        ('the Common defense', ['common defense.', 'defense'], '1.1', (1, 1)),
        # 1 of 1 found and 1 of 2: 2 * 1 * 0.5 / 1.5.
        ('defense', ['common defense'], '1.1', (0, 2 / 3)),
        ('war war war', ['war and war'], '1.1', (0, 2 / 3)),
        ('peace', ['war', 'the peace of all'], '1.1', (0, 1 / 2)),
        ('', ['peace'], '1.1', (0, 0)),
        # An answer that is all article: only 2.0 knows empty bags of words.
        ('The', ['a'], '1.1', (1, 0)),
        ('The', ['a'], '2.0', (1, 1)),
        ('', [], '2.0', (1, 1)),
        ('peace', [], '2.0', (0, 0)),
        ('', ['peace', 'the'], '2.0', (0, 0)),
    ],
)
def test_the_best_reference_counts(predicted, answers, version, want):
  got = text_metrics.answer_scores(predicted, answers, version)
  assert got == pytest.approx(want)


def test_best_threshold():
  # By rising odds: +1 for a right answer, -1 for answering what has none, and
  # 2 points to start with: 3, 2, 2.5, 1.5.
  scores = {'a': 1.0, 'n1': 0.0, 'b': 0.5, 'n2': 0.0}
  odds = {'a': -3.0, 'n1': -1.0, 'b': 0.5, 'n2': 2.0}
  answerable = {'a': True, 'b': True, 'n1': False, 'n2': False}
  got = text_metrics.best_threshold(scores, odds, answerable)
  assert got == (75.0, -3.0)
  # Nothing gains: never answer.
  scores = {'a': 0.0, 'n1': 0.0}
  assert text_metrics.best_threshold(scores, odds, answerable) == (50.0, 0.0)


def test_glue_metrics_of_a_table():
  # tp 3, fp 1, fn 2, tn 4.
  predicted = np.array([1] * 4 + [0] * 6)
  labels = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
  assert text_metrics.accuracy(predicted, labels) == 0.7
  assert text_metrics.f1(predicted, labels) == pytest.approx(6 / 9)
  want = (3 * 4 - 1 * 2) / np.sqrt(4 * 5 * 5 * 6)
  assert text_metrics.matthews(predicted, labels) == pytest.approx(want)


def test_correlations():
  x, y = np.array([1.0, 2, 3, 4]), np.array([1.0, 4, 9, 100])
  assert text_metrics.spearman(x, y) == pytest.approx(1)
  dx, dy = x - 2.5, y - 28.5
  want = (dx * dy).sum() / np.sqrt((dx**2).sum() * (dy**2).sum())
  assert text_metrics.pearson(x, y) == pytest.approx(want)
  # Equal ranks: 1, 2.5, 2.5, 4 against 4, 3, 2, 1.
  y, z = np.array([1.0, 2, 2, 3]), np.array([4.0, 3, 2, 1])
  assert text_metrics.spearman(y, z) == pytest.approx(-4.5 / np.sqrt(4.5 * 5))


def test_what_is_constant_has_no_correlation():
  same, labels = np.ones(4, int), np.array([0, 1, 1, 0])
  for metric in ('matthews', 'pearson', 'spearman'):
    assert getattr(text_metrics, metric)(same, labels) == 0
  assert text_metrics.f1(np.zeros(3), np.zeros(3)) == 0
