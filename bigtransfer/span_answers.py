"""From the logits of windows to the best answers of a question.

The rules are those of `write_predictions` in run_squad.py of
google-research/bert; the text of an answer is cut out of the paragraph.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Answer(NamedTuple):
  """A text, '' for none, and its start and end logit."""

  text: str
  start: float
  end: float

  @property
  def score(self) -> float:
    return self.start + self.end


class Best(NamedTuple):
  """The outcome of a question.

  Attributes:
    answers: best first, with '' among them if that is allowed.
    probabilities: softmax of their scores.
    null_odds: score of no answer less that of the best one with a text.
  """

  answers: Sequence[Answer]
  probabilities: np.ndarray
  null_odds: float

  @property
  def text(self) -> str:
    """The best answer that has a text; '' if there is none."""
    return next((a.text for a in self.answers if a.text), '')


def spans(
    window: Any,
    start: np.ndarray,
    end: np.ndarray,
    *,
    n_best: int,
    max_length: int,
) -> list[tuple[float, float, int, int]]:
  """Returns (start logit, end logit, first, last) of a window's candidates.

  A candidate starts and ends at one of the `n_best` highest logits of the whole
  row, lies in the paragraph, starts where the window has most context, and has
  at most `max_length` tokens.

  Args:
    window: with `prefix`, `offsets` [m, 2], and `max_context` [m].
    start: logits [s] of the row.
    end: logits [s] of the row.
    n_best: see above.
    max_length: see above.
  """
  count = len(window.offsets)
  first, last = (
      np.argsort(-logits, kind='stable')[:n_best] - window.prefix
      for logits in (start, end)
  )
  first = first[(first >= 0) & (first < count)]
  first = first[window.max_context[first]]
  last = last[(last >= 0) & (last < count)]
  length = last - first[:, None] + 1
  rows, columns = np.nonzero((length > 0) & (length <= max_length))
  return [
      (float(start[i + window.prefix]), float(end[j + window.prefix]), i, j)
      for i, j in zip(
          first[rows].tolist(), last[columns].tolist(), strict=True
      )
  ]


def best_answers(
    context: str,
    rows: Iterable[tuple[Any, np.ndarray, np.ndarray]],
    *,
    n_best: int,
    max_length: int,
    allow_null: bool,
) -> Best:
  """Returns the best answers of a question over its windows.

  Args:
    context: the paragraph.
    rows: (window, start logits [s], end logits [s]) of each window.
    n_best: of distinct texts that are kept, and of logits that are tried.
    max_length: of an answer, in tokens.
    allow_null: no answer, [CLS] to [CLS] in the window that scores it lowest,
      is one of the answers.
  """
  found, null = [], Answer('', np.inf, 0.0)
  for window, start, end in rows:
    here = Answer('', float(start[0]), float(end[0]))
    null = min(null, here, key=lambda a: a.score)
    found += [
        (s + e, s, e, window.offsets[i, 0], window.offsets[j, 1])
        for s, e, i, j in spans(
            window, start, end, n_best=n_best, max_length=max_length
        )
    ]
  found.sort(key=lambda candidate: -candidate[0])
  answers = {}
  for _, s, e, begin, stop in found:
    text = context[begin:stop]
    if len(answers) == n_best:
      break
    if text.strip():
      answers.setdefault(text, Answer(text, s, e))
  answers = list(answers.values())
  null_odds = null.score - (answers[0].score if answers else 0.0)
  if allow_null or not answers:
    answers = sorted([*answers, null], key=lambda a: -a.score)
  scores = np.array([a.score for a in answers], np.float64)
  weights = np.exp(scores - scores.max())
  return Best(answers, weights / weights.sum(), null_odds)
