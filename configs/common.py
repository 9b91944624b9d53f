"""Every config key with its default and meaning; arguments; the smoke size.

A recipe starts from `base()`, sets what differs, and returns it. Values are
checked as they are set (see fields.py). `python -m bigtransfer.main --config
configs/quickstart.py --help_config` lists all keys.
"""

from configs import fields as f


def base() -> f.Section:
  """Returns the config with every key at its default, locked."""
  c = f.Section()
  _declare_run(c)
  _declare_model(c.section('model', 'The network.'))
  _declare_optimizer(c.section('optimizer', 'The update rule.'))
  _declare_schedule(c.section('schedule', 'The learning rate over time.'))
  _declare_data(c.section('data', 'Where examples come from.'))
  _declare_task(c)
  _declare_checkpoint(c.section('checkpoint', 'What is saved and kept.'))
  _declare_devices(c)
  return c.lock()


def _declare_run(c):
  c.declare('task', 'classification', f.string(),
            'Objective: a module of bigtransfer/tasks.')
  c.declare('seed', 0, f.integer(0),
            'Seed of initialisation, data order, augmentation and dropout.')
  c.declare('batch_size', 128, f.integer(1),
            'Examples per step over all devices and accumulation steps.')
  c.declare('eval_batch_size', None, f.optional(f.integer(1)),
            'Examples per evaluation step over all devices, rounded up to a'
            ' multiple of them; None = batch_size.')
  c.declare('accum_steps', 1, f.integer(1),
            'Micro-batches that one step is split into, to save memory. The'
            ' result does not depend on it.')
  c.declare('total_steps', '10 epochs', f.duration(), 'Length of the run.')
  c.declare('log_every', 50, f.duration(), 'Between progress lines; every step'
            ' is in metrics.jsonl all the same.')
  c.declare('eval_every', '1 epoch', f.duration(),
            'Between evaluations; 0 = only at the end.')
  c.declare('ema_decay', None, f.optional(f.number(0)),
            'Decay of the moving average of the parameters, which is then'
            ' evaluated and exported; None = no average.')
  c.declare('clip_norm', None, f.optional(f.number(0)),
            'Largest global gradient norm; None = no clipping.')
  c.declare('nonfinite', 'stop', f.choice('stop', 'skip'),
            'On a NaN or infinite loss or gradient: stop, the last good'
            ' checkpoint stays; or leave the update out and count it.')
  c.declare('platform', None, f.optional(f.choice('cpu', 'gpu', 'tpu')),
            'The run fails at once if this is not what JAX finds; None ='
            ' whatever is there.')
  c.declare('init_from', None, f.optional(f.string()),
            'Parameters to start from: a workdir, a checkpoint folder or an'
            ' exported .safetensors file. A checkpoint of this workdir wins.')
  c.declare('reset_optimizer', False, f.boolean(),
            'Resume with parameters and step, but a new optimizer state.')
  c.declare('eval_only', False, f.boolean(),
            'Evaluate the newest checkpoint and stop.')
  c.declare('print_plan', False, f.boolean(),
            'Print the resolved config and schedule and stop.')
  c.declare('phases', (), f.anything(
      "tuple of dicts such as {'name': 'long', 'total_steps': 100}"),
            'Phases run in order in one workdir, each a name and the dotted'
            ' keys that differ; () = one phase named train.')
  c.declare('evaluators', ('classification',), f.tuple_of(
      f.string(), repeated=True), 'Modules of bigtransfer/evaluators to run.')
  c.declare('tensorboard', False, f.boolean(),
            'Write TensorBoard event files too.')
  c.declare('compilation_cache', '~/.cache/bigtransfer/xla',
            f.optional(f.string()),
            'Folder that keeps compiled steps between runs; None = off.')


def _declare_model(m):
  m.declare('name', 'bit', f.string(), 'A module of bigtransfer/models.')
  m.declare('variant', 'R50x1', f.string(),
            "'R<depth>x<width>', depth 26, 50, 101, 152 or 200.")
  m.declare('blocks', (), f.tuple_of(f.integer(1), repeated=True),
            "Units per stage in place of the depth's, for small networks.")
  m.declare('root_width', 64, f.integer(1), 'Channels of the root at width x1.')
  m.declare('stem', 'imagenet', f.choice('imagenet', 'small'),
            "'imagenet': 7x7 stride 2 and max-pool; 'small': 3x3 stride 1,"
            ' for images of about 28 to 64 pixels.')
  m.declare('num_classes', None, f.optional(f.integer(0)),
            'Outputs of the head; None = from the data, 0 = no head.')
  m.declare('head_bias_init', 0.0, f.number(),
            'Initial head bias; -10 suits the sigmoid loss on 21k classes.')
  m.declare('dtype', 'float32', f.choice('float32', 'bfloat16'),
            'Compute type. Parameters and statistics are float32 always.')
  m.declare('remat', 'none', f.choice('none', 'stage', 'unit'),
            'What is computed again in the backward pass to save memory.')
  m.declare('norm', 'gn', f.choice('gn', 'bn', 'ln', 'in', 'none'),
            'Group, batch, layer, instance or no normalization.')
  m.declare('num_groups', 32, f.integer(1), 'Groups of group normalization.')
  m.declare('bn_group_size', 0, f.integer(0),
            'Examples that share batch statistics; 0 = the whole batch.')
  m.declare('weight_standardization', True, f.boolean(),
            'Standardize every convolution kernel.')


def _declare_optimizer(o):
  o.declare('name', 'sgd', f.choice('sgd', 'adam', 'adamw'), 'The update rule.')
  o.declare('learning_rate', 0.03, f.number(0),
            'Peak rate at base_batch_size; batch_rule scales it.')
  o.declare('batch_rule', 'constant', f.choice('constant', 'linear', 'sqrt'),
            'How the rate follows batch_size / base_batch_size.')
  o.declare('base_batch_size', 256, f.integer(1),
            'The batch that learning_rate is meant for.')
  o.declare('momentum', 0.9, f.number(0), 'Of sgd.')
  o.declare('nesterov', False, f.boolean(), 'Nesterov momentum in sgd.')
  o.declare('b1', 0.9, f.number(0), 'Decay of the first moment of adam(w).')
  o.declare('b2', 0.999, f.number(0), 'Decay of the second moment of adam(w).')
  o.declare('eps', 1e-8, f.number(0), 'Added to the root of the second moment.')
  o.declare('weight_decay', 0.0, f.number(0), 'Strength; see decay.')
  o.declare('decay', None, f.optional(
      f.choice('coupled', 'decoupled', 'independent')),
            "'coupled': L2, added to the gradient; 'decoupled': lr * decay *"
            " weight; 'independent': lr / peak * decay * weight; None ="
            ' coupled for sgd and adam, decoupled for adamw.')
  o.declare('moment_dtype', 'float32', f.choice('float32', 'bfloat16'),
            'Type of the momentum and of the first moment.')
  o.declare('decay_rules', (('.*/kernel', 1.0), ('.*', 0.0)),
            f.rules(f.number(0)), 'Multiplier of decay by parameter path.')
  o.declare('lr_rules', (('.*', 1.0),), f.rules(f.number(0)),
            'Multiplier of the rate by parameter path; 0 = frozen.')


def _declare_schedule(s):
  s.declare('name', 'cosine',
            f.choice('cosine', 'linear', 'polynomial', 'stair', 'rsqrt',
                   'constant'), 'Shape after the warm-up.')
  s.declare('warmup', 0, f.duration(), 'Linear warm-up from 0; 0 = full rate'
            ' at once.')
  s.declare('power', 1.0, f.number(0), 'Of the polynomial.')
  s.declare('end', 0.0, f.number(0), 'Final rate as a fraction of the peak.')
  s.declare('decay_from', 'warmup', f.choice('warmup', 'zero'),
            "Start of the polynomial's clock: 'zero' counts the warm-up too,"
            ' as BERT does, so that the rate jumps where the warm-up ends.')
  s.declare('boundaries', (), f.tuple_of(f.duration(), repeated=True),
            'Steps after which the stair falls.')
  s.declare('factor', 0.1, f.number(0), 'What each stair multiplies by.')
  s.declare('timescale', 10000, f.duration(), 'Of rsqrt.')


def _declare_data(d):
  d.declare('source', 'embedded',
            f.choice('embedded', 'folder', 'csv', 'tfds', 'tfrecord'),
            'Kind of source.')
  d.declare('name', 'fashion_mnist', f.string(),
            'Which embedded set or TFDS builder.')
  d.declare('path', None, f.optional(f.string()),
            'Image folder, CSV file, TFDS data_dir or TFRecord pattern;'
            ' {split} in it is replaced.')
  d.declare('train_split', 'train', f.string(), 'Split to train on.')
  d.declare('eval_split', 'test', f.string(), 'Split to evaluate on.')
  d.declare('train_ops', 'value_range(-1, 1)', f.string(),
            'Preprocessing of training examples, see input_pipeline/ops.py.')
  d.declare('eval_ops', 'value_range(-1, 1)', f.string(),
            'Preprocessing for evaluation and prediction.')
  d.declare('bad_images', 'stop', f.choice('stop', 'skip'),
            'An image that cannot be decoded stops the run and is named, or'
            ' is left out, counted and listed.')
  d.declare('allow_empty_classes', False, f.boolean(),
            'A class folder without images keeps its index.')
  d.declare('cache', 'none', f.choice('none', 'raw'),
            'Keep encoded examples in memory after they are first read.')
  d.declare('shuffle_buffer', 10000, f.integer(1),
            'Examples in the shuffle window of streaming sources.')
  d.declare('lanes', 16, f.integer(1),
            'Parallel sequences of a streaming source; divides batch_size'
            ' and is divisible by the number of processes.')
  d.declare('threads', 0, f.integer(0), 'Reader threads; 0 = one per core.')
  d.declare('prefetch', 2, f.integer(1), 'Batches made ahead.')


def _declare_task(c):
  c.section('loss', 'The classification loss.')
  c.loss.declare('name', 'softmax', f.choice('softmax', 'sigmoid'),
                 'Cross-entropy over classes, or one per class, summed.')
  c.loss.declare('label_smoothing', 0.0, f.number(0),
                 'Share of the target spread over all classes.')
  c.section('augment', 'Mixing of examples, on the devices.')
  c.augment.declare('mixup_alpha', 0.0, f.number(0),
                    'Beta parameter of MixUp; 0 = off.')
  c.augment.declare('cutmix_alpha', 0.0, f.number(0),
                    'Beta parameter of CutMix; 0 = off.')
  c.section('classification', 'The evaluator of that name.')
  c.classification.declare('top_k', 5, f.integer(1),
                           'top_<k> is reported; at most the class count.')


def _declare_checkpoint(k):
  k.declare('every', '1 epoch', f.duration(), 'Between saves; 0 = last only.')
  k.declare('minutes', None, f.optional(f.number(0)),
            'Save also when so much time has passed since the last save.')
  k.declare('keep', 2, f.optional(f.integer(1)),
            'Newest checkpoints that stay; None = all.')
  k.declare('keep_every', None, f.optional(f.duration()),
            'Checkpoints at multiples of this stay for ever.')
  k.declare('best_metric', None, f.optional(f.string()),
            'Evaluation metric whose best checkpoint stays too.')
  k.declare('best_mode', 'max', f.choice('max', 'min'),
            'Which end of best_metric is good.')


def _declare_devices(c):
  c.section('mesh', 'How devices are arranged; -1 = what remains.')
  c.mesh.declare('data', -1, f.integer(-1), 'Devices along the batch.')
  c.mesh.declare('model', 1, f.integer(-1), 'Devices along the parameters.')
  c.section('sharding', 'How the state is laid over the mesh.')
  spec = f.anything("'replicate', 'fsdp' or a tuple of axes and None")
  c.sharding.declare('rules', (('.*', 'replicate'),), f.rules(spec),
                     'Layout by parameter path.')
  c.sharding.declare('opt_state_rules', (), f.rules(spec),
                     'Layout of optimizer moments; () = as the parameter.')
  c.sharding.declare('fsdp_min_size', 2**20, f.integer(0),
                     'Elements below which fsdp replicates.')
  c.section('distributed', 'Several processes.')
  c.distributed.declare('initialize', False, f.boolean(),
                        'Call jax.distributed.initialize.')
  c.distributed.declare('coordinator_address', None, f.optional(f.string()),
                        'host:port of process 0; None = found by JAX.')
  c.distributed.declare('num_processes', None, f.optional(f.integer(1)),
                        'None = found by JAX.')
  c.distributed.declare('process_id', None, f.optional(f.integer(0)),
                        'None = found by JAX.')


def parse_arg(arg: str | None, **defaults):
  """Parses the text after the colon of `--config file.py:R50x1,data=folder`.

  Args:
    arg: comma-separated `name=value`, bare values for the names in order, and
      bare names of switches. None is the same as ''.
    **defaults: name to default. A tuple lists what is accepted, default first;
      a bool is a switch; other types convert the text.

  Returns:
    A dict of name to value.

  Raises:
    ValueError: unknown name, a value that is not accepted, or a name twice.
  """
  first = {k: v[0] if isinstance(v, tuple) else v for k, v in defaults.items()}
  positional = [k for k, v in first.items() if not isinstance(v, bool)]
  given = {}
  for item in filter(None, (arg or '').split(',')):
    name, has_value, text = item.partition('=')
    if not has_value:
      if isinstance(first.get(name), bool):
        text = 'true'
      else:
        free = [k for k in positional if k not in given]
        name, text = (free[0] if free else item), item
    if name not in first or name in given:
      accepted = ', '.join(f'{k}={v}' for k, v in first.items())
      raise ValueError(f'argument {item!r}: accepted once each: {accepted}')
    given[name] = _convert_arg(name, text, defaults[name])
  return first | given


def _convert_arg(name, text, default):
  if isinstance(default, tuple):
    kind = f.choice(*default)
  elif isinstance(default, bool):
    kind = f.boolean()
  else:
    kind = {int: f.integer(), float: f.number(), str: f.string()}[type(default)]
  try:
    return kind.parse(text)
  except ValueError:
    raise ValueError(
        f'argument {name}={text!r} must be {kind.accepts}') from None


def smoke(config: f.Section) -> f.Section:
  """Shrinks a recipe to seconds on a laptop, on embedded data."""
  config.batch_size = 16
  config.eval_batch_size = 100
  config.total_steps = 3
  config.log_every = 1
  config.eval_every = config.checkpoint.every = 0
  config.checkpoint.keep_every = None
  config.schedule.warmup = 1
  if config.schedule.boundaries:
    config.schedule.boundaries = (2,)
  config.model.blocks = (1, 1)
  config.model.root_width = 32
  config.model.variant = 'R26x1'
  config.model.dtype = 'float32'
  config.data.source = 'embedded'
  config.data.name = 'fashion_mnist'
  config.data.path = None
  config.data.train_split = 'train[:64]'
  config.data.eval_split = 'test[:100]'
  config.data.train_ops = config.data.eval_ops = 'value_range(-1, 1)'
  return config
