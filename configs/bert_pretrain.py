r"""BERT pretraining in two phases, sequences of 128 and then of 512 tokens.

On a laptop, both phases on the speeches that ship, in about five minutes:

python -m bigtransfer.main --config configs/bert_pretrain.py:tiny \
    --workdir runs/bert-tiny

From your own text, one folder for both lengths, and on a pod:

python -m input_pipeline.bert_data --input 'corpus/*.txt' --vocab vocab.txt \
    --output data --test_fraction 0.01
python -m bigtransfer.main --workdir runs/bert-large \
    --config configs/bert_pretrain.py:large,recipe=lamb_64k_32k,data=data

Arguments: the size (tiny, mini, small, medium, base, large or L<n>_H<n>);
`data`, a folder made by bert_data, empty for the speeches; `batch`
of lamb_untuned and mlperf; `accum1` and `accum2`, accumulation steps of the two
phases; `continuous`, a schedule that does not drop where the warm-up ends;
`smoke` for a few seconds; and `recipe`:

lamb_64k_32k  NVIDIA's numbers for the batches of You et al. (arXiv 1904.00962):
              65,536 for 7,038 steps, 32,768 for 1,563, root decay from step 0.
              Published for large: loss 1.2437, SQuAD 1.1 F1 90.60 to 90.96 over
              seeds (DeepLearningExamples, PyTorch BERT); the paper has 90.584.
lamb_untuned  You et al.'s rule for one batch from 512 to 32K: rate 6.25e-4 *
              sqrt(batch / 512), warm-up over batch / 512 / 320 of each phase,
              512M examples, nine tenths of the steps at 128. SQuAD F1
              91.75, 91.76, 91.95, 91.14, 91.26, 91.35, 91.48 from 512 to 32K.
adam_bert     Devlin et al.: Adam without bias correction, batch 256, a million
              steps of one linear schedule, 1e-4 to 0, a tenth of them at 512.
              SQuAD F1 of large 90.87 (google-research/bert).
adam_64k_32k  Nado et al. (arXiv 2102.06356): that tuned AdamW matches LAMB, F1
              91.04 in the same 8,599 steps. Their tuned values are not known
              here: rate, betas and decay are those of lamb_64k_32k or Adam's
              own, where a search may start.
mlperf        Phase 2 alone, by MLPerf's reference points: `batch` is 256, 448,
              1536, 3072, 4096, 4608, 6144, 6912, 8192, 8704, 12288, 13056 or
              16384. Target: masked accuracy 0.720. Start from MLPerf's
              model.ckpt-28252, made a .safetensors file by python -m
              input_pipeline.tf_checkpoint, with --config.init_from.
laptop        For the tiny sizes on the speeches; the default without `data`.
              tiny: masked-word loss 6.01 and accuracy 0.150 after the first
              phase, 6.04 and 0.148 at 512, on speeches held out, where the
              unigram model has 6.47 and 0.072; five minutes on two cores.
"""

from configs import common

RECIPES = (
    'auto', 'lamb_64k_32k', 'lamb_untuned', 'adam_bert', 'adam_64k_32k',
    'mlperf', 'laptop',
)
# Batch: rate, b1, b2, decay, steps, warm-up, step at which it starts.
MLPERF = {
    256: (3.5e-4, 0.9, 0.999, 0.01, 13700, 0, 0),
    448: (4.25e-4, 0.9, 0.999, 0.01, 6700, 0, 0),
    1536: (2e-3, 0.66, 0.996, 0.01, 2254, 0, 0),
    3072: (2e-3, 0.66, 0.998, 0.01, 1141, 100, 0),
    4096: (2.4e-3, 0.66, 0.998, 0.01, 855, 0, 0),
    4608: (3.5e-3, 0.62, 0.9, 0.01, 700, 0, 0),
    6144: (2.9293e-3, 0.7206, 0.78921, 0.001, 700, 0, -700),
    6912: (2.9293e-3, 0.7206, 0.78921, 0.001, 700, 0, -700),
    8192: (2.88293e-3, 0.88, 0.88, 0.0166629, 600, 287, -76),
    8704: (2.97166e-3, 0.88, 0.88, 0.0166629, 600, 287, -76),
    12288: (3.1e-3, 0.8, 0.925, 0.0166629, 500, 300, -100),
    13056: (3.19541e-3, 0.8, 0.925, 0.0166629, 500, 300, -100),
    16384: (3.3e-3, 0.75, 0.9, 0.0166629, 600, 290, -100),
}


def get_config(arg=None):
  args = common.parse_arg(
      arg, size='large', recipe=RECIPES, data='', batch=0, accum1=1, accum2=1,
      continuous=False, smoke=False,
  )
  c = common.base()
  c.task = 'bert_pretraining'
  c.evaluators = ('mlm',)
  c.model.name = 'bert'
  c.model.variant = args['size']
  c.model.dtype = 'bfloat16'
  # A multiple of the lanes of a TPU, and of any power of two of devices to 128.
  c.model.vocab_multiple = 128
  c.data.kind = 'pretraining'
  c.data.path = args['data'] or None
  c.eval_every = '5%'
  c.checkpoint.every = '5%'
  c.checkpoint.minutes = 30.0
  recipe = args['recipe']
  if recipe == 'auto':
    recipe = 'lamb_64k_32k' if args['data'] else 'laptop'
  if args['batch'] and recipe not in ('lamb_untuned', 'mlperf'):
    raise ValueError(
        f'argument batch={args["batch"]}: recipe={recipe} has its own;'
        ' accepted with lamb_untuned and mlperf'
    )
  globals()[f'_{recipe}'](c, args)
  if recipe != 'laptop':
    # Less memory and, by the planner's count, less time on a TPU than without:
    # 16 sequences of 512 on a core of v3 take 32.5 of 15.5 GiB otherwise.
    c.model.remat = 'dots'
  if args['continuous']:
    c.schedule.decay_from = 'warmup'
  return _smoke(c) if args['smoke'] else c


def _phase(args, length, batch, steps, **others):
  """A phase of the lengths that the data is made for."""
  first = length == 128
  return {
      'name': f'length{length}',
      'data.seq_length': length,
      'data.max_predictions': 20 if first else 80,
      'batch_size': batch,
      'accum_steps': args['accum1' if first else 'accum2'],
      'total_steps': steps,
  } | {key.replace('__', '.'): value for key, value in others.items()}


def _lamb(c, power):
  c.optimizer.name = 'lamb'
  c.optimizer.weight_decay = 0.01
  c.optimizer.eps = 1e-6
  c.clip_norm = 1.0
  _polynomial(c, power)


def _polynomial(c, power):
  c.schedule.name = 'polynomial'
  c.schedule.power = power
  # As all these codes have it: the decay counts from step 0.
  c.schedule.decay_from = 'zero'


def _lamb_64k_32k(c, args):
  _lamb(c, 0.5)
  c.optimizer.preset = 'apex'
  c.moments = 'keep'
  c.target = 'v3-2048'
  c.phases = _two(args, (7038, 2000, 6e-3), (1563, 200, 4e-3))


def _two(args, first, second):
  """Phases of 65,536 and 32,768, of (steps, warm-up, rate) each."""
  return tuple(
      _phase(args, length, batch, steps, schedule__warmup=warmup,
             optimizer__learning_rate=rate)
      for length, batch, (steps, warmup, rate) in (
          (128, 65536, first), (512, 32768, second))
  )


def _lamb_untuned(c, args):
  batch = args['batch'] or 32768
  if batch not in (512, 1024, 2048, 4096, 8192, 16384, 32768):
    raise ValueError(
        f'argument batch={batch}: accepted are the powers of two from 512 to'
        ' 32768'
    )
  _lamb(c, 1.0)
  # The paper's own: 32 sequences a chip.
  c.target = f'v3-{batch // 16}'
  c.optimizer.preset = 'paper'
  c.optimizer.learning_rate = 6.25e-4
  c.optimizer.base_batch_size = 512
  c.optimizer.batch_rule = 'lamb_epoch_warmup'
  c.schedule.warmup = '0.3125%'
  steps = 512_000_000 // batch
  first = round(0.9 * steps)
  c.phases = (
      _phase(args, 128, batch, first),
      _phase(args, 512, batch, steps - first),
  )


def _adam_bert(c, args):
  _adamw(c)
  c.optimizer.bias_correction = False
  c.moments = 'keep'
  c.target = 'v3-32'
  # Two pieces of one line from 1e-4 at step 0 to 0 at step 1,000,000.
  c.phases = (
      _phase(args, 128, 256, 900_000, optimizer__learning_rate=1e-4,
             schedule__end=0.1, schedule__warmup=10_000),
      _phase(args, 512, 256, 100_000, optimizer__learning_rate=1e-5),
  )


def _adam_64k_32k(c, args):
  _adamw(c)
  c.target = 'v3-2048'
  c.phases = _two(args, (7037, 2000, 6e-3), (1562, 200, 4e-3))


def _adamw(c):
  c.optimizer.name = 'adamw'
  c.optimizer.weight_decay = 0.01
  c.optimizer.decay_rules = (('.*/(bias|scale)', 0.0), ('.*', 1.0))
  c.optimizer.eps = 1e-6
  c.clip_norm = 1.0
  _polynomial(c, 1.0)


def _mlperf(c, args):
  batch = args['batch'] or 256
  if batch not in MLPERF:
    raise ValueError(
        f'argument batch={batch}: accepted are {", ".join(map(str, MLPERF))}'
    )
  rate, b1, b2, decay, steps, warmup, start = MLPERF[batch]
  _lamb(c, 1.0)
  # At most 64 sequences a chip, as the rounds of MLPerf on v4 have it.
  c.target = 'v4-16' if batch < 512 else 'v4-128' if batch < 4096 else 'v4-512'
  c.optimizer.preset = 'tf'
  c.optimizer.learning_rate = rate
  c.optimizer.b1, c.optimizer.b2 = b1, b2
  c.optimizer.weight_decay = decay
  c.schedule.warmup = warmup
  c.schedule.warmup_start = start
  # MLPerf's own records have 76 predictions.
  c.phases = (_phase(args, 512, batch, steps, data__max_predictions=76),)


def _laptop(c, args):
  c.target = 'v5litepod-1'
  c.model.dtype = 'float32'
  c.model.vocab_multiple = 1
  c.model.dropout = c.model.attention_dropout = 0.0
  _lamb(c, 1.0)
  c.optimizer.preset = 'tf'
  c.schedule.decay_from = 'warmup'
  c.schedule.warmup = '10%'
  c.log_every = 20
  c.eval_every = '50%'
  c.phases = (
      _phase(args, 128, 32, 800, optimizer__learning_rate=3e-2),
      _phase(args, 512, 8, 150, optimizer__learning_rate=1e-2),
  )


def _smoke(c):
  """A few steps of a network of two narrow layers, on the speeches."""
  c.target = 'v5litepod-1'
  c.model.variant = 'tiny'
  c.model.layers, c.model.hidden, c.model.heads, c.model.ffn = 2, 32, 2, 64
  c.model.dtype = 'float32'
  c.model.vocab_multiple = 1
  c.data.path = None
  c.data.eval_examples = 32
  c.log_every = 1
  c.eval_every = c.checkpoint.every = 0
  c.checkpoint.minutes = None
  c.schedule.warmup = 1
  phases = []
  for phase in c.phases:
    first = phase['data.seq_length'] == 128
    phases.append(phase | {
        'batch_size': 8 if first else 4, 'accum_steps': 1, 'total_steps': 3,
        'schedule.warmup': 1,
        'data.max_predictions': 20 if first else 80,
    })
  c.phases = tuple(phases)
  return c
