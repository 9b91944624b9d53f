"""Masked words and next sentence on held-out text, beside the unigram model."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from bigtransfer import evaluators
from bigtransfer.tasks import bert_pretraining


class Evaluator:
  """Counts every prediction and every pair of the split once.

  The unigram model, which knows only how frequent words are in the training
  text, is what a network has to beat; it needs `data.unigram()`.
  """

  def __init__(
      self,
      config: Any,
      *,
      predict: Callable[[Any, Any, Any], Any],
      batches: Callable[[], Iterable[Any]],
      data: Any,
  ):
    del config
    self._predict, self._batches = predict, batches
    unigram = data.unigram()
    self._log_unigram = jnp.log(jnp.asarray(unigram, jnp.float32))
    self._most_frequent = int(unigram.argmax())
    self._add = jax.jit(self._count)

  def _count(self, totals, params, model_state, batch):
    outputs = self._predict(params, model_state, batch)
    ids, labels = batch['masked_lm_ids'], batch['next_sentence_labels']
    words = bert_pretraining.score(outputs['mlm_logits'], ids)
    pairs = bert_pretraining.score(outputs['nsp_logits'], labels)
    mask = batch['mask']
    weights = batch['masked_lm_weights'] * mask[:, None]

    def of(weights, values):
      return jnp.sum(jnp.where(weights > 0, weights * values, 0))

    def count(which):
      # As integers: float32 counts to 16 million only.
      return jnp.sum(which.astype(jnp.int32))

    used, real = weights > 0, mask > 0

    new = {
        'predictions': count(used),
        'mlm_loss': of(weights, words.loss),
        'mlm_hits': count(used & (words.hit > 0)),
        'unigram_loss': of(weights, -self._log_unigram[ids]),
        'unigram_hits': count(used & (ids == self._most_frequent)),
        'examples': count(real),
        'nsp_loss': of(mask, pairs.loss),
        'nsp_hits': count(real & (pairs.hit > 0)),
    }
    return jax.tree.map(jnp.add, totals, new)

  def run(self, params: Any, model_state: Any) -> dict[str, float]:
    """Returns losses in nats, accuracies, perplexity and what was counted.

    Raises:
      EvaluationError: the split has no masked token.
    """
    names = ('predictions', 'mlm_loss', 'mlm_hits', 'unigram_loss',
             'unigram_hits', 'examples', 'nsp_loss', 'nsp_hits')
    zeros = {
        name: jnp.zeros((), 'float32' if name.endswith('loss') else 'int32')
        for name in names
    }
    totals = evaluators.add_up(
        lambda totals, batch: self._add(totals, params, model_state, batch),
        zeros,
        self._batches(),
    )
    t = {name: float(value) for name, value in totals.items()}
    if not t['predictions']:
      raise evaluators.EvaluationError(
          'the evaluation split has no masked token'
      )
    words, examples = t['predictions'], t['examples']
    mlm_loss = t['mlm_loss'] / words
    return {
        'loss': mlm_loss + t['nsp_loss'] / examples,
        'mlm_loss': mlm_loss,
        'mlm_accuracy': t['mlm_hits'] / words,
        # A network that diverged is past what a float holds.
        'perplexity': math.exp(mlm_loss) if mlm_loss < 700 else math.inf,
        'unigram_loss': t['unigram_loss'] / words,
        'unigram_accuracy': t['unigram_hits'] / words,
        'nsp_loss': t['nsp_loss'] / examples,
        'nsp_accuracy': t['nsp_hits'] / examples,
        'num_examples': examples,
        'num_predictions': words,
    }

  def tables(self) -> dict[str, str]:
    return {}
