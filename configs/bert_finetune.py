r"""Fine-tuning of BERT: GLUE, your own labelled text, SQuAD.

On a laptop, from what `configs/bert_pretrain.py:tiny` left in runs/bert-tiny:
was a paragraph of a State of the Union address spoken before 1900?

python -m bigtransfer.main --workdir runs/speeches \
    --config configs/bert_finetune.py:speeches,init_from=runs/bert-tiny

Without init_from it starts from scratch.

Your own sentences: a CSV file `sentence,label` or `sentence,sentence2,label`,
or a folder with train.csv and dev.csv; `regression` where labels are numbers:

python -m bigtransfer.main --workdir runs/mine \
    --config configs/bert_finetune.py:csv=mine.csv,init_from=runs/bert-tiny

GLUE and SQuAD from a folder with the official files; without `data` GLUE comes
from TFDS, prepared once by `tfds build glue/mrpc`:

python -m bigtransfer.main --workdir runs/squad --config \
    configs/bert_finetune.py:squad,large,data=squad,init_from=uncased_L-24,\
vocab=uncased_L-24/vocab.txt

Arguments: the task (cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, squad,
squad2, speeches, csv); the size (tiny to large, or L<n>_H<n>); `init_from`,
parameters to start from; `data`; `vocab`, the vocabulary of the pretraining,
that of the speeches by default for speeches and csv; `cased`; `shots`, train
on so many examples of each class; `regression`; `smoke` for a few seconds.

The predictions for the split data.eval_split are left in the workdir: those for
a submission come with --config.data.eval_split=test --config.eval_only.

Seen for speeches: 0.811 on dev from a pretrained tiny model, 0.655, which is
the larger class, from scratch in as many steps (300).
Published (google-research/bert): MRPC accuracy of base 84 to 88 % on dev at
batch 32, rate 2e-5, 3 epochs; SQuAD 1.1 dev F1 of base 88.41, exact match 81.25
at batch 12, of large 90.87 and 84.38 at batch 24, rate 3e-5, 2 epochs. LAMB
checkpoints want more, by a comment in MLPerf's code: 3e-4 to 5e-4 at batch 64.
"""

from configs import common

GLUE = ('cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte')


def get_config(arg=None):
  args = common.parse_arg(
      arg,
      task=('sst2', *(name for name in GLUE if name != 'sst2'), 'squad',
            'squad2', 'speeches', 'csv'),
      size='',
      init_from='',
      data='',
      vocab='',
      csv='',
      cased=False,
      shots=0,
      regression=False,
      smoke=False,
  )
  if args['csv']:
    args['task'], args['data'] = 'csv', args['csv']
  own = args['task'] in ('speeches', 'csv')
  c = common.base()
  c.target = 'v5litepod-1' if own else 'v5litepod-4'
  c.model.name = 'bert'
  c.model.variant = args['size'] or ('tiny' if own else 'base')
  c.model.dtype = 'float32' if own else 'bfloat16'
  c.init_from = args['init_from'] or None
  c.data.path = args['data'] or None
  c.data.vocab = args['vocab'] or ('speeches' if own else None)
  c.data.lowercase = not args['cased']
  c.data.eval_split = 'dev'
  c.data.examples_per_class = args['shots']
  _adam(c)
  if args['task'].startswith('squad'):
    _squad(c, '2.0' if args['task'] == 'squad2' else '1.1', args)
  else:
    _sentences(c, args)
  if own:
    # Small networks learn from a larger rate: the top of google-research/bert's
    # search for them.
    c.optimizer.learning_rate = 3e-4
  if args['task'] == 'speeches':
    _laptop(c)
  return _smoke(c) if args['smoke'] else c


def _adam(c):
  """The optimizer and schedule of run_classifier.py and run_squad.py."""
  c.optimizer.name = 'adamw'
  c.optimizer.bias_correction = False
  c.optimizer.weight_decay = 0.01
  c.optimizer.eps = 1e-6
  c.optimizer.decay_rules = (('.*/(bias|scale)', 0.0), ('.*', 1.0))
  c.clip_norm = 1.0
  c.schedule.name = 'polynomial'
  c.schedule.decay_from = 'zero'
  c.schedule.warmup = '10%'


def _sentences(c, args):
  c.task = 'sequence_classification'
  c.evaluators = ('glue',)
  c.model.head = 'classification'
  c.data.kind = 'sentences'
  c.data.task = args['task']
  c.data.regression = args['regression'] or args['task'] == 'stsb'
  c.data.seq_length = 128
  c.batch_size = 32
  c.eval_batch_size = 128
  c.optimizer.learning_rate = 2e-5
  c.total_steps = '3 epochs'


def _laptop(c):
  """Short texts and no dropout, whose random bits are dear on a CPU."""
  c.data.seq_length = 64
  c.batch_size = 64
  c.total_steps = 300
  c.eval_every = 100
  c.optimizer.learning_rate = 1e-3
  c.model.dropout = c.model.attention_dropout = 0.0


def _squad(c, version, args):
  c.task = 'question_answering'
  c.evaluators = ('squad',)
  c.model.head = 'span'
  c.data.kind = 'squad'
  c.squad.version = version
  c.data.seq_length = 384
  c.data.doc_stride = 128
  c.data.max_query_length = 64
  c.batch_size = 24 if args['size'] == 'large' else 12
  c.eval_batch_size = 64
  c.optimizer.learning_rate = 3e-5
  c.total_steps = '2 epochs'


def _smoke(c):
  """A few steps of a narrow network, on the speeches for all but SQuAD."""
  c.target = 'v5litepod-1'
  c.model.variant = 'tiny'
  c.model.layers, c.model.hidden, c.model.heads, c.model.ffn = 2, 32, 2, 64
  c.model.dtype = 'float32'
  c.init_from = None
  c.data.vocab = 'speeches'
  if c.data.kind == 'sentences':
    c.data.task, c.data.path, c.data.regression = 'speeches', None, False
    c.data.seq_length = 32
    c.data.examples_per_class = 32
  c.data.eval_examples = 64
  c.batch_size = 16
  c.total_steps = 3
  c.log_every = 1
  c.eval_every = c.checkpoint.every = 0
  c.schedule.warmup = 1
  return c
