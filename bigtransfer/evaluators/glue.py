"""The official GLUE metrics of sentences and pairs, and a submission file.

The data's `evaluate(config).references` has `labels`, `written`, `parts` and
`metrics`: see input_pipeline/sentences.py.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bigtransfer import collect, text_metrics

METRICS = {
    'accuracy': text_metrics.accuracy,
    'f1': text_metrics.f1,
    'matthews': text_metrics.matthews,
    'pearson': text_metrics.pearson,
    'spearman': text_metrics.spearman,
}
# STS-B's scale, to which a submission is clipped, and its digits.
_LOWEST, _HIGHEST = 0.0, 5.0


class Evaluator:
  """Scores each part of the split; the first has the plain metric names."""

  def __init__(
      self,
      config: Any,
      *,
      predict: Callable[[Any, Any, Any], Any],
      batches: Callable[[], Iterable[Any]],
      data: Any,
  ):
    self._references = data.evaluate(config).references
    self._clip = config.data.task == 'stsb'
    self._collector = collect.Collector(predict, batches, ('logits',))
    self._predicted = None

  def run(self, params: Any, model_state: Any) -> dict[str, float]:
    """Returns `loss`, the metrics of the task and `num_examples`.

    The names of further parts end in _<part>: accuracy_mismatched. Examples
    without a label are predicted and not counted; a split of them, as the test
    splits of GLUE are, has `num_examples` 0 and no metrics.
    """
    labels = self._references.labels
    outputs = self._collector.run(params, model_state, len(labels))
    logits = outputs['logits'].astype(np.float64)
    if self._references.written:
      # A head may have more outputs than there are classes.
      offered = logits[:, : len(self._references.written)]
      self._predicted = np.argmax(offered, axis=-1)
      known = labels >= 0
    else:
      self._predicted = logits[:, 0]
      known = np.isfinite(labels)
    values = {}
    for i, (name, begin, end) in enumerate(self._references.parts):
      part = slice(begin, end)
      suffix = f'_{name}' if i else ''
      for key, value in self._score(
          logits[part], self._predicted[part], labels[part], known[part]
      ).items():
        values[key + suffix] = value
    return values

  def _score(self, logits, predicted, labels, known):
    count = int(known.sum())
    values = {}
    if count:
      logits, predicted, labels = logits[known], predicted[known], labels[known]
      values['loss'] = self._loss(logits, labels)
      for name in self._references.metrics:
        values[name] = METRICS[name](predicted, labels)
    return values | {'num_examples': float(count)}

  def _loss(self, logits, labels):
    if not self._references.written:
      return float(np.mean((logits[:, 0] - labels) ** 2))
    logits = logits - logits.max(axis=-1, keepdims=True)
    log_z = np.log(np.exp(logits).sum(axis=-1))
    return float(np.mean(log_z - logits[np.arange(len(labels)), labels]))

  def tables(self) -> dict[str, str]:
    """Returns `predictions.tsv` of the last run, one more for each more part.

    The layout of GLUE submissions: index from 0 in each part, prediction.
    """
    files = {}
    for i, (name, begin, end) in enumerate(self._references.parts):
      lines = ['index\tprediction']
      for row, value in enumerate(self._predicted[begin:end]):
        lines.append(f'{row}\t{self._write(value)}')
      suffix = f'_{name}' if i else ''
      files[f'predictions{suffix}.tsv'] = '\n'.join(lines) + '\n'
    return files

  def _write(self, value):
    if self._references.written:
      return self._references.written[value]
    if self._clip:
      value = min(max(value, _LOWEST), _HIGHEST)
    return f'{value:.3f}'
