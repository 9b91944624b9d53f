"""The fine-tuning recipe names what its task needs."""

import pytest

from configs import bert_finetune


@pytest.mark.parametrize('task', bert_finetune.GLUE)
def test_glue(task):
  c = bert_finetune.get_config(f'{task},large,data=glue,vocab=v.txt')
  assert (c.task, c.evaluators) == ('sequence_classification', ('glue',))
  assert (c.data.kind, c.data.task) == ('sentences', task)
  assert c.data.regression == (task == 'stsb')
  assert (c.model.variant, c.data.path, c.data.vocab) == (
      'large', 'glue', 'v.txt'
  )


def test_squad_has_the_published_sizes():
  base = bert_finetune.get_config('squad')
  large = bert_finetune.get_config('squad2,large')
  assert (base.batch_size, large.batch_size) == (12, 24)
  assert (base.squad.version, large.squad.version) == ('1.1', '2.0')
  assert (base.model.head, base.data.kind) == ('span', 'squad')
  assert (base.data.seq_length, base.optimizer.learning_rate) == (384, 3e-5)


def test_a_path_after_csv_is_enough():
  c = bert_finetune.get_config('csv=mine.csv,shots=8,regression,cased')
  assert (c.data.task, c.data.path) == ('csv', 'mine.csv')
  assert c.data.examples_per_class == 8
  assert c.data.regression and not c.data.lowercase


def test_an_unknown_task_is_refused():
  with pytest.raises(ValueError, match="'sst'.*'sst2'"):
    bert_finetune.get_config('sst')
