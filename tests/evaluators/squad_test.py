"""SQuAD metrics and files from logits that are given."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bigtransfer.evaluators import squad
from configs import common

# A sentence of Washington's address of 1790.
CONTEXT = (
    'To be prepared for war is one of the most effectual means of preserving'
    ' peace'
)
WORDS = CONTEXT.split()
ENDS = np.cumsum([len(w) + 1 for w in WORDS]) - 1
OFFSETS = np.stack([ENDS - [len(w) for w in WORDS], ENDS], axis=1)
PREFIX = 5


def run(spans, answers, version, **squad_config):
  """Evaluates windows that point to (first, last, score) words, or to none."""
  config = common.base()
  config.squad.version = version
  for key, value in squad_config.items():
    config.squad[key] = value
  questions = [
      SimpleNamespace(
          id=f'q{i}', context=CONTEXT, answers=[(text, 0) for text in texts]
      )
      for i, texts in enumerate(answers)
  ]
  windows = [
      SimpleNamespace(
          question=i,
          prefix=PREFIX,
          offsets=OFFSETS,
          max_context=np.ones(len(WORDS), bool),
      )
      for i, _ in spans
  ]
  ends = np.full((2, 4, 24), -50, np.float32)
  for row, (_, span) in enumerate(spans):
    ends[:, row, 0] = 0
    for i, word in enumerate(span[:2]):
      ends[i, row, PREFIX + word] = span[2] / 2
  batch = {
      'start_logits': ends[0],
      'end_logits': ends[1],
      'mask': (np.arange(4) < len(spans)).astype(np.float32),
  }
  references = SimpleNamespace(questions=questions, windows=windows)
  evaluator = squad.Evaluator(
      config,
      predict=lambda params, state, batch: batch,
      batches=lambda: [jax.device_put(batch)],
      data=SimpleNamespace(
          evaluate=lambda config: SimpleNamespace(references=references)
      ),
  )
  values = evaluator.run({}, {})
  tables = {k: json.loads(v) for k, v in evaluator.tables().items()}
  return values, tables


def test_version_1():
  # Question 1 has two windows; the second is surer.
  spans = [(0, (4, 4, 8)), (1, (4, 4, 6)), (1, (13, 14, 7))]
  values, tables = run(spans, [['the war'], ['is one', 'peace']], '1.1')
  assert values == {
      'exact_match': 50.0,
      'f1': pytest.approx(100 * (1 + 2 / 3) / 2),
      'num_examples': 2.0,
  }
  assert tables['predictions.json'] == {'q0': 'war', 'q1': 'preserving peace'}
  assert set(tables) == {'predictions.json', 'nbest_predictions.json'}
  first = tables['nbest_predictions.json']['q1'][0]
  assert first['text'] == 'preserving peace'
  assert first['start_logit'] == first['end_logit'] == 3.5
  assert first['probability'] == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-3)


SPANS = [(0, (4, 4, 8)), (1, (14, 14, -2)), (2, (14, 14, 3))]
ANSWERS = [['war'], ['peace'], []]


def test_version_2():
  # No answer scores 0: q1 loses its right answer, q2 gets a wrong one.
  values, tables = run(SPANS, ANSWERS, '2.0')
  assert tables['predictions.json'] == {'q0': 'war', 'q1': '', 'q2': 'peace'}
  assert tables['null_odds.json'] == {'q0': -8, 'q1': 2, 'q2': -3}
  assert values['exact_match'] == values['f1'] == pytest.approx(100 / 3)
  assert values['has_answer_f1'] == 50
  assert values['no_answer_exact_match'] == 0
  # With a threshold of -8 only q0 is answered: right, and so is q2.
  assert values['best_f1'] == pytest.approx(200 / 3)
  assert values['best_f1_threshold'] == -8
  assert values['best_exact_match_threshold'] == -8


def test_the_null_threshold_decides():
  values, tables = run(SPANS, ANSWERS, '2.0', null_threshold=2.0)
  assert tables['predictions.json']['q1'] == 'peace'
  assert values['f1'] == pytest.approx(200 / 3)
  values, tables = run(SPANS, ANSWERS, '2.0', null_threshold=-8.0)
  assert values['f1'] == pytest.approx(200 / 3)
  assert values['no_answer_f1'] == 100
