"""Loss, top-1, top-k and per-class accuracy over a whole split, exactly."""

import csv
import io
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bigtransfer import evaluators
from bigtransfer.tasks import classification

# Up to here who is taken for whom is counted too: 1000^2 int32 are 4 MB.
MAX_CONFUSION_CLASSES = 1000


class Evaluator:
  """Counts every example of weight 1 once; a label below 0 is unknown."""

  def __init__(
      self,
      config: Any,
      *,
      predict: Callable[[Any, Any, Any], Any],
      batches: Callable[[], Iterable[Any]],
      data: Any,
  ):
    self._batches = batches
    self._num_classes = config.model.num_classes
    self._top_k = min(config.classification.top_k, self._num_classes)
    self._loss_name = config.loss.name
    self._class_names = data.class_names
    self._predict = predict
    self._add = jax.jit(self._count)
    self._totals = None

  def _zeros(self):
    k = self._num_classes
    totals = {
        'loss': jnp.zeros((), jnp.float32),
        'correct': jnp.zeros((), jnp.int32),
        'top_k': jnp.zeros((), jnp.int32),
        'num_examples': jnp.zeros((), jnp.int32),
        'images': jnp.zeros(k, jnp.int32),
        'hits': jnp.zeros(k, jnp.int32),
    }
    if k <= MAX_CONFUSION_CLASSES:
      totals['confusion'] = jnp.zeros((k, k), jnp.int32)
    return totals

  def _count(self, totals, params, model_state, batch):
    logits = self._predict(params, model_state, batch)['logits']
    logits = logits.astype(jnp.float32)
    known = (batch['mask'] > 0) & (batch['label'] >= 0)
    label = jnp.where(known, batch['label'], 0)
    target = jax.nn.one_hot(label, self._num_classes)
    loss = classification.cross_entropy(self._loss_name, logits, target)
    top = jax.lax.top_k(logits, self._top_k)[1]
    # top_k breaks ties by index, so the first of the k is the argmax.
    correct = known & (top[:, 0] == label)
    in_top = known & jnp.any(top == label[:, None], axis=-1)
    ones, hits, in_top = (
        x.astype(jnp.int32) for x in (known, correct, in_top)
    )
    new = {
        'loss': totals['loss'] + jnp.sum(jnp.where(known, loss, 0)),
        'correct': totals['correct'] + jnp.sum(hits),
        'top_k': totals['top_k'] + jnp.sum(in_top),
        'num_examples': totals['num_examples'] + jnp.sum(ones),
        'images': totals['images'].at[label].add(ones),
        'hits': totals['hits'].at[label].add(hits),
    }
    if 'confusion' in totals:
      counts = totals['confusion'].at[label, top[:, 0]]
      new['confusion'] = counts.add(ones)
    return new

  def run(self, params: Any, model_state: Any) -> dict[str, float]:
    """Returns `loss`, `accuracy`, `top_<k>` and `num_examples`.

    Raises:
      EvaluationError: the split has no labelled example.
    """
    totals = evaluators.add_up(
        lambda totals, batch: self._add(totals, params, model_state, batch),
        self._zeros(),
        self._batches(),
    )
    n = int(totals['num_examples'])
    if n == 0:
      raise evaluators.EvaluationError(
          'the evaluation split has no labelled example'
      )
    self._totals = totals
    metrics = {
        'loss': float(totals['loss']) / n,
        'accuracy': int(totals['correct']) / n,
    }
    if self._top_k > 1:
      metrics[f'top_{self._top_k}'] = int(totals['top_k']) / n
    return metrics | {'num_examples': float(n)}

  def tables(self) -> dict[str, str]:
    """Returns the per-class report of the last run as `per_class.csv`."""
    totals = self._totals
    # A head may have more outputs than there are named classes.
    names = [*(self._class_names or ())]
    names += [str(i) for i in range(len(names), self._num_classes)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator='\n')
    header = 'label,class,images,correct,accuracy,taken_for,times'
    writer.writerow(header.split(','))
    for i, name in enumerate(names):
      images, hits = int(totals['images'][i]), int(totals['hits'][i])
      row = [i, name, images, hits, f'{hits / images:.4f}' if images else '']
      if 'confusion' in totals:
        mistakes = np.array(totals['confusion'][i])
        mistakes[i] = 0
        worst = int(np.argmax(mistakes))
        times = int(mistakes[worst])
        row += [names[worst], times] if times else ['', 0]
      writer.writerow(row)
    return {'per_class.csv': out.getvalue()}
