"""The official metrics of GLUE and SQuAD, of NumPy arrays and strings.

GLUE's are fractions, SQuAD's per cent, as their leaderboards print them.
"""

import collections
import re
import string
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

_ARTICLES = re.compile(r'\b(a|an|the)\b', re.UNICODE)
_PUNCTUATION = frozenset(string.punctuation)


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
  return float(np.mean(predicted == labels))


def f1(predicted: np.ndarray, labels: np.ndarray) -> float:
  """Returns F1 of class 1; 0 where nothing of it is there or was found."""
  true = np.sum((predicted == 1) & (labels == 1))
  both = np.sum(predicted == 1) + np.sum(labels == 1)
  return float(2 * true / both) if both else 0.0


def matthews(predicted: np.ndarray, labels: np.ndarray) -> float:
  """Returns Matthews' correlation of classes 0, 1; 0 where it is undefined."""
  return pearson((predicted == 1) * 1.0, (labels == 1) * 1.0)


def pearson(predicted: np.ndarray, labels: np.ndarray) -> float:
  """Returns Pearson's correlation, 0 where one side is constant."""
  return _correlation(stats.pearsonr, predicted, labels)


def spearman(predicted: np.ndarray, labels: np.ndarray) -> float:
  """Returns Spearman's correlation, 0 where one side is constant."""
  return _correlation(stats.spearmanr, predicted, labels)


def _correlation(function, predicted, labels):
  if np.ptp(predicted) == 0 or np.ptp(labels) == 0:
    return 0.0
  predicted, labels = (np.asarray(x, np.float64) for x in (predicted, labels))
  return float(function(predicted, labels).statistic)


def normalize_answer(text: str) -> str:
  """Lower case without ASCII punctuation, articles and surplus space.

  In this order, as in evaluate-v1.1.py and evaluate-v2.0.py of SQuAD.
  """
  text = ''.join(c for c in text.lower() if c not in _PUNCTUATION)
  return ' '.join(_ARTICLES.sub(' ', text).split())


def answer_exact(predicted: str, answer: str) -> float:
  """Returns 1 if both are the same once normalized, else 0."""
  return float(normalize_answer(predicted) == normalize_answer(answer))


def answer_f1(predicted: str, answer: str) -> float:
  """Returns F1 of the bags of words; 0 if they share none."""
  found, wanted = (normalize_answer(t).split() for t in (predicted, answer))
  counts = collections.Counter(found) & collections.Counter(wanted)
  same = counts.total()
  return 2 * same / (len(found) + len(wanted)) if same else 0.0


def answer_scores(
    predicted: str, answers: Sequence[str], version: str
) -> tuple[float, float]:
  """Returns (exact, f1), each the best over the reference answers.

  In SQuAD '2.0' references that normalize to nothing do not count; where none
  is left the right prediction is one that normalizes to nothing as well.
  """
  if version == '2.0':
    answers = [a for a in answers if normalize_answer(a)]
    if not answers:
      return (float(not normalize_answer(predicted)),) * 2
  return (
      max(answer_exact(predicted, a) for a in answers),
      max(answer_f1(predicted, a) for a in answers),
  )


def best_threshold(
    scores: Mapping[str, float],
    null_odds: Mapping[str, float],
    answerable: Mapping[str, bool],
) -> tuple[float, float]:
  """Returns the best mean score in per cent and the threshold that gives it.

  `find_best_thresh` of evaluate-v2.0.py: questions whose odds are above the
  threshold get no answer, the others the one that was scored.

  Args:
    scores: of the best answer with a text, by question.
    null_odds: by question, more speaks for no answer.
    answerable: by question.
  """
  current = best = sum(not answerable[name] for name in scores)
  threshold = 0.0
  for name in sorted(scores, key=lambda name: null_odds[name]):
    # Without an answer there was a point, kept if nothing is predicted.
    current += scores[name] - (not answerable[name])
    if current > best:
      best, threshold = current, null_odds[name]
  return 100 * best / len(scores), threshold
