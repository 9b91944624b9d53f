"""Declares every config key with its default, kind and meaning."""

from configs import fields as f


def run(c):
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
  c.declare('eval_every', '1 epoch', f.duration(),
            'Between evaluations; 0 = only at the end.')
  c.declare('ema_decay', None, f.optional(f.number(0, 1)),
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
  c.declare('target', None, f.optional(f.string()),
            'The TPU slice that the recipe is for, such as v3-2048; read by'
            ' the planner alone.')
  c.declare('init_from', None, f.optional(f.string()),
            'Parameters to start from: a workdir, a checkpoint folder or an'
            ' exported .safetensors file. A checkpoint of this workdir wins.')
  c.declare('reset_optimizer', False, f.boolean(),
            'Go on although the optimizer section has changed: a state of'
            ' another optimizer starts anew, parameters and step stay.')
  c.declare('eval_only', False, f.boolean(),
            'Evaluate the newest checkpoint and stop.')
  c.declare('print_plan', False, f.boolean(),
            'Print the resolved config and schedule and stop.')
  c.declare('phases', (), f.overrides(),
            'Phases run in order in one workdir, each a name and the dotted'
            ' keys that differ, each with a schedule of its own; () = one'
            ' phase named train.')
  c.declare('moments', 'reset', f.choice('reset', 'keep'),
            'What a later phase does with the moments of the one before:'
            ' start anew, or go on with them and with their step count. The'
            ' schedule starts from its step 0 either way.')
  c.declare('evaluators', ('classification',), f.tuple_of(
      f.string(), repeated=True), 'Modules of bigtransfer/evaluators to run.')
  c.declare('compilation_cache', '~/.cache/bigtransfer/xla',
            f.optional(f.string()),
            'Folder that keeps compiled steps between runs; None = off.')


def observation(c):
  c.declare('log_every', 50, f.duration(), 'Between progress lines; every step'
            ' is in metrics.jsonl all the same.')
  c.declare('norms_every', 0, f.duration(),
            'Between records of the trust ratio and the norms of every layer'
            ' (lamb, lars); 0 = none.')
  c.declare('tensorboard', False, f.boolean(),
            'Write TensorBoard event files too.')
  c.declare('trace_steps', None, f.optional(
      f.tuple_of(f.integer(1), f.integer(1))),
            'First and last step of a profiler trace in the workdir, both'
            ' included and counted from 1 over the whole run; None = none.')


def model(m):
  m.declare('name', 'bit', f.string(), 'A module of bigtransfer/models.')
  m.declare('variant', 'R50x1', f.string(),
            "bit: 'R<depth>x<width>', depth 26, 50, 101, 152 or 200; bert:"
            " tiny, mini, small, medium, base, large or 'L<layers>_H<hidden>'.")
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
  m.declare('remat', 'none', f.choice(
      'none', 'stage', 'unit', 'layer', 'dots'),
            'What is computed again in the backward pass to save memory: bit'
            ' by stage or unit; bert by layer, or all but products (dots).')
  m.declare('norm', 'gn', f.choice('gn', 'bn', 'ln', 'in', 'none'),
            'Group, batch, layer, instance or no normalization.')
  m.declare('num_groups', 32, f.integer(1), 'Groups of group normalization.')
  m.declare('bn_group_size', 0, f.integer(0),
            'Examples that share batch statistics; 0 = the whole batch.')
  m.declare('weight_standardization', True, f.boolean(),
            'Standardize every convolution kernel.')


def optimizer(o):
  o.declare('name', 'sgd', f.string(),
            'sgd, adam, adamw, lamb or lars: bigtransfer/optim/factory.')
  o.declare('preset', None, f.optional(f.choice(
      'paper', 'tf', 'nvlamb', 'apex', 'deepspeed')),
            'Which code called LAMB to equal: values for what is not given'
            ' otherwise, see bigtransfer/optim/lamb.py.')
  o.declare('learning_rate', 0.03, f.number(0),
            'Peak rate at base_batch_size; batch_rule scales it.')
  o.declare('batch_rule', 'constant', f.choice(
      'constant', 'linear', 'sqrt', 'lamb_epoch_warmup'),
            'How the rate follows batch_size / base_batch_size;'
            " 'lamb_epoch_warmup' is sqrt with a warm-up, in percent, that"
            ' grows as the batch does.')
  o.declare('base_batch_size', 256, f.integer(1),
            'The batch that learning_rate is meant for.')
  o.declare('momentum', 0.9, f.number(0, 1), 'Of sgd and lars.')
  o.declare('nesterov', False, f.boolean(), 'Nesterov momentum in these.')
  o.declare('momentum_after_rate', True, f.boolean(),
            "Of lars: the rate is inside the buffer, as in the paper, or"
            " outside, as in MLPerf's code.")
  o.declare('b1', 0.9, f.number(0, 1),
            'Decay of the first moment of adam, adamw and lamb.')
  o.declare('b2', 0.999, f.number(0, 1), 'And of the second.')
  o.declare('bias_correction', True, f.boolean(),
            'Divide moments by 1 - b^t; the original BERT does not.')
  o.declare('grad_averaging', True, f.boolean(),
            'Of lamb: the gradient enters the moment times 1 - b1.')
  o.declare('pre_norm', False, f.boolean(),
            'Of lamb: divide the gradient by its global norm first.')
  o.declare('adapt_rules', (('.*/(bias|scale)', 0.0), ('.*', 1.0)),
            f.rules(f.number(0)), 'What has a trust ratio in lamb and lars, by'
            ' parameter path: 1, or 0 for a ratio of 1.')
  for name, meaning in (
      ('ratio_min', 'Least trust ratio of lamb and lars; None = no bound.'),
      ('ratio_max', 'And the largest.'),
      ('phi_min', 'Least weight norm in the ratio of lamb; None = no bound.'),
      ('phi_max', 'And the largest.'),
  ):
    o.declare(name, None, f.optional(f.number(0)), meaning)
  o.declare('trust_coefficient', 0.001, f.number(0), 'Of the ratio of lars.')
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


def schedule(s):
  s.declare('name', 'cosine',
            f.choice('cosine', 'linear', 'polynomial', 'stair', 'rsqrt',
                   'exponential', 'constant'), 'Shape after the warm-up.')
  s.declare('warmup', 0, f.duration(), 'Linear warm-up from 0; 0 = full rate'
            ' at once.')
  s.declare('warmup_start', 0, f.integer(),
            'Step at which the warm-up starts; below 0, it is under way at the'
            " first step, as in MLPerf's runs from a checkpoint.")
  s.declare('power', 1.0, f.number(0), 'Of the polynomial.')
  s.declare('end', 0.0, f.number(0), 'Final rate as a fraction of the peak.')
  s.declare('decay_from', 'warmup', f.choice('warmup', 'zero'),
            "Start of the polynomial's clock: 'zero' counts the warm-up too,"
            ' as BERT does, so that the rate jumps where the warm-up ends.')
  s.declare('boundaries', (), f.tuple_of(f.duration(), repeated=True),
            'Steps after which the stair falls.')
  s.declare('factor', 0.1, f.number(0),
            'What each stair, or timescale of exponential, multiplies by.')
  s.declare('timescale', 10000, f.duration(), 'Of rsqrt and exponential.')


def data(d):
  d.declare('kind', 'images', f.choice(
      'images', 'pretraining', 'sentences', 'squad'),
            'What examples are: labelled images, BERT pretraining records,'
            ' labelled sentences or pairs, questions on paragraphs.')
  d.declare('source', 'embedded', f.string(),
            'embedded, folder, csv, tfds or tfrecord: input_pipeline/sources.')
  d.declare('name', 'fashion_mnist', f.string(),
            'Which embedded set or TFDS builder.')
  d.declare('path', None, f.optional(f.string()),
            "Folder of 'folder' and 'csv' (<split>.csv), data_dir of 'tfds',"
            " folder of 'tfrecord', whose splits are patterns of files.")
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
  d.declare('lanes', 0, f.integer(0),
            'Parallel sequences of a streaming source; divides batch_size'
            ' and is divisible by the number of processes; 0 ='
            ' gcd(batch_size, 64). Another number is another order.')
  d.declare('threads', 0, f.integer(0), 'Reader threads; 0 = one per core.')
  d.declare('prefetch', 2, f.integer(1), 'Batches made ahead.')
  records = d.section('tfrecord', 'Features of a tf.train.Example.')
  records.declare('num_classes', 1000, f.integer(1), 'Labels lie below it.')
  records.declare('image_key', 'image/encoded', f.string(), 'Encoded image.')
  records.declare('label_key', 'image/class/label', f.string(), 'int64 label.')
  records.declare('label_offset', 0, f.integer(),
                  "Added to each label: -1 for ImageNet's 1..1000.")


def task(c):
  c.section('loss', 'The classification loss.')
  c.loss.declare('name', 'softmax', f.choice('softmax', 'sigmoid'),
                 'Cross-entropy over classes, or one per class, summed.')
  c.loss.declare('label_smoothing', 0.0, f.number(0, 1),
                 'Share of the target spread over all classes.')
  c.section('augment', 'Mixing of examples, on the devices.')
  c.augment.declare('mixup_alpha', 0.0, f.number(0),
                    'Beta parameter of MixUp; 0 = off.')
  c.augment.declare('cutmix_alpha', 0.0, f.number(0),
                    'Beta parameter of CutMix; 0 = off.')
  c.section('classification', 'The evaluator of that name.')
  c.classification.declare('top_k', 5, f.integer(1),
                           'top_<k> is reported; at most the class count.')


def checkpoint(k):
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


def devices(c):
  c.section('mesh', 'How devices are arranged; -1 = what remains.')
  c.mesh.declare('data', -1, f.integer(-1), 'Devices along the batch.')
  c.mesh.declare('fsdp', 1, f.integer(-1),
                 'Devices along the batch, and along what fsdp splits.')
  c.mesh.declare('model', 1, f.integer(-1),
                 'Devices along the parameters, which share a batch.')
  c.section('sharding', 'How the state is laid over the mesh.')
  c.sharding.declare('preset', None, f.optional(f.choice(
      'replicate', 'zero1', 'fsdp', 'tensor')),
                     'Values for rules, opt_state_rules and the mesh that are'
                     ' not given otherwise, see bigtransfer/sharding.py.')
  c.sharding.declare('rules', (('.*', 'replicate'),), f.rules(f.placement()),
                     'Layout by parameter path.')
  c.sharding.declare('opt_state_rules', (),
                     f.rules(f.placement('replicate', 'fsdp', 'zero')),
                     'Layout of optimizer moments; () = as the parameter.')
  c.sharding.declare('fsdp_min_size', 2**20, f.integer(0),
                     'Elements below which fsdp and zero split nothing.')
  c.sharding.declare('reduce_dtype', 'float32',
                     f.choice('float32', 'bfloat16'),
                     'Type in which gradients are added up over devices, once'
                     ' per step.')
  c.section('distributed', 'Several processes.')
  c.distributed.declare('initialize', None, f.optional(f.boolean()),
                        'Join other processes; None = if an address or a'
                        ' number is given, and on a TPU, in a Slurm job of'
                        ' several tasks and in an indexed Kubernetes job.')
  c.distributed.declare('coordinator_address', None, f.optional(f.string()),
                        'host:port of process 0; None = found by JAX.')
  c.distributed.declare('num_processes', None, f.optional(f.integer(1)),
                        'None = found by JAX.')
  c.distributed.declare('process_id', None, f.optional(f.integer(0)),
                        'None = found by JAX.')
  c.distributed.declare('timeout', 50, f.integer(1),
                        'Seconds that a process waits for the others at the'
                        ' start.')
  c.distributed.declare('heartbeat_timeout', 100, f.integer(1),
                        'Seconds without a sign of life after which a process'
                        ' counts as dead and the others name it and end.')
  c.distributed.declare('hang_seconds', 900, f.optional(f.integer(1)),
                        'A process that makes no step for so long prints where'
                        ' its threads are; several then end, one goes on. To'
                        ' compile is no hang; None = never.')
