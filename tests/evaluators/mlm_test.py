"""Held-out words and pairs: exact counts, beside the unigram model."""

import math
import types

import jax.numpy as jnp
import numpy as np
import pytest

from bigtransfer import evaluators
from bigtransfer.evaluators import mlm
from configs import common

V = 7
UNIGRAM = np.array([1, 2, 3, 4, 5, 6, 7]) / 28


def make(batches):
  def predict(params, model_state, batch):
    return {'mlm_logits': batch['words'], 'nsp_logits': batch['pairs']}

  return mlm.Evaluator(
      common.base(),
      predict=predict,
      batches=lambda: [
          {k: jnp.asarray(v) for k, v in batch.items()} for batch in batches
      ],
      data=types.SimpleNamespace(unigram=lambda: UNIGRAM),
  )


def batch(seed, size=4, slots=3):
  rng = np.random.default_rng(seed)
  return {
      'words': rng.normal(size=(size, slots, V)).astype(np.float32),
      'pairs': rng.normal(size=(size, 2)).astype(np.float32),
      'masked_lm_ids': rng.integers(0, V, (size, slots)).astype(np.int32),
      'masked_lm_weights': (
          np.arange(slots) < rng.integers(0, slots + 1, (size, 1))
      ).astype(np.float32),
      'next_sentence_labels': rng.integers(0, 2, size).astype(np.int32),
      # The last row is padding, with anything in it.
      'mask': np.float32([1] * (size - 1) + [0]),
  }


def log_softmax(x):
  x = x.astype(np.float64)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_values_equal_numpy():
  batches = [batch(0), batch(1)]
  values = make(batches).run({}, {})
  all_of = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
  used = (all_of['masked_lm_weights'] * all_of['mask'][:, None]) > 0
  ids = all_of['masked_lm_ids'][used]
  logits = all_of['words'][used]
  loss = -np.take_along_axis(log_softmax(logits), ids[:, None], 1).mean()
  real = all_of['mask'] > 0
  labels, pairs = all_of['next_sentence_labels'][real], all_of['pairs'][real]
  nsp = -np.take_along_axis(log_softmax(pairs), labels[:, None], 1).mean()
  assert values == pytest.approx({
      'loss': loss + nsp,
      'mlm_loss': loss,
      'mlm_accuracy': (logits.argmax(-1) == ids).mean(),
      'perplexity': math.exp(loss),
      'unigram_loss': -np.log(UNIGRAM[ids]).mean(),
      'unigram_accuracy': (ids == 6).mean(),
      'nsp_loss': nsp,
      'nsp_accuracy': (pairs.argmax(-1) == labels).mean(),
      'num_examples': 6,
      'num_predictions': used.sum(),
  }, rel=1e-5)


def test_a_network_that_diverged_has_no_finite_perplexity():
  diverged = batch(0) | {'words': 1e4 * batch(0)['words']}
  assert make([diverged]).run({}, {})['perplexity'] == math.inf


def test_a_split_without_masked_tokens_is_refused():
  empty = batch(0) | {'masked_lm_weights': np.zeros((4, 3), np.float32)}
  with pytest.raises(evaluators.EvaluationError, match='no masked token'):
    make([empty]).run({}, {})
