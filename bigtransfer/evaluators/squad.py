"""SQuAD 1.1 and 2.0: official exact match and F1, and all answers as files.

The data's `evaluate(config).references` has `questions` and `windows`: see
input_pipeline/squad.py.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from bigtransfer import collect, span_answers, text_metrics


class Evaluator:
  """Chooses the best answers over the windows of each question."""

  def __init__(
      self,
      config: Any,
      *,
      predict: Callable[[Any, Any, Any], Any],
      batches: Callable[[], Iterable[Any]],
      data: Any,
  ):
    self._config = config.squad
    self._null = config.squad.version == '2.0'
    self._references = data.evaluate(config).references
    self._collector = collect.Collector(
        predict, batches, ('start_logits', 'end_logits')
    )
    self._best = None

  def run(self, params: Any, model_state: Any) -> dict[str, float]:
    """Returns `exact_match` and `f1` in per cent and `num_examples`, questions.

    For 2.0 also `has_answer_exact_match`, `no_answer_f1` and so on, and
    `best_f1`, `best_f1_threshold`, `best_exact_match` and its threshold: what
    the null threshold that suits this split best would give.
    """
    windows = self._references.windows
    outputs = self._collector.run(params, model_state, len(windows))
    rows = {}
    for i, window in enumerate(windows):
      row = window, outputs['start_logits'][i], outputs['end_logits'][i]
      rows.setdefault(window.question, []).append(row)
    self._best = {
        question.id: span_answers.best_answers(
            question.context,
            rows[i],
            n_best=self._config.n_best,
            max_length=self._config.max_answer_length,
            allow_null=self._null,
        )
        for i, question in enumerate(self._references.questions)
    }
    scored = self._scores(self._predictions())
    values = _means(scored.values())
    if self._null:
      values |= self._with_null(scored)
    return values | {'num_examples': float(len(scored))}

  def _predictions(self):
    """Returns the answer to each question, '' for none."""
    threshold = self._config.null_threshold
    return {
        name: '' if self._null and best.null_odds > threshold else best.text
        for name, best in self._best.items()
    }

  def _scores(self, predictions):
    return {
        q.id: text_metrics.answer_scores(
            predictions[q.id],
            [text for text, _ in q.answers],
            self._config.version,
        )
        for q in self._references.questions
    }

  def _with_null(self, scored):
    """Returns the metrics that only SQuAD 2.0 has."""
    answerable = {q.id: bool(q.answers) for q in self._references.questions}
    values = {}
    for prefix, wanted in (('has_answer', True), ('no_answer', False)):
      part = [s for name, s in scored.items() if answerable[name] == wanted]
      if part:
        values |= {f'{prefix}_{k}': v for k, v in _means(part).items()}
    always = self._scores({name: b.text for name, b in self._best.items()})
    odds = {name: b.null_odds for name, b in self._best.items()}
    for i, metric in enumerate(('exact_match', 'f1')):
      value, threshold = text_metrics.best_threshold(
          {name: s[i] for name, s in always.items()}, odds, answerable
      )
      values |= {f'best_{metric}': value, f'best_{metric}_threshold': threshold}
    return values

  def tables(self) -> dict[str, str]:
    """Returns the JSON files that SQuAD's own evaluation reads.

    predictions.json: question -> answer; nbest_predictions.json: question ->
    answers with logits and probabilities; null_odds.json, for 2.0: question ->
    score of no answer less that of the best answer.
    """
    nbest = {
        name: [
            {
                'text': answer.text,
                'probability': float(p),
                'start_logit': answer.start,
                'end_logit': answer.end,
            }
            for answer, p in zip(best.answers, best.probabilities, strict=True)
        ]
        for name, best in self._best.items()
    }
    files = {
        'predictions.json': self._predictions(),
        'nbest_predictions.json': nbest,
    }
    if self._null:
      files['null_odds.json'] = {
          name: best.null_odds for name, best in self._best.items()
      }
    return {
        name: json.dumps(content, indent=2, ensure_ascii=False) + '\n'
        for name, content in files.items()
    }


def _means(scores):
  exact, f1 = zip(*scores, strict=True)
  return {
      'exact_match': 100 * sum(exact) / len(exact),
      'f1': 100 * sum(f1) / len(f1),
  }
