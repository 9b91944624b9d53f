r"""BiT pretraining: R26 to R200 of any width on any image source.

On a TPU v3-512 (facts of the paper: batch 4096, 8 images per core):

python -m bigtransfer.main \
    --config configs/bit_pretrain.py:R50x1,data=imagenet2012 \
    --workdir runs/bit-s-r50x1

On your own folder of images, {train,val}/<class>/*.jpg:

python -m bigtransfer.main --config configs/bit_pretrain.py:R50x1,data=folder \
    --config.data.path=photos --config.batch_size=256 --workdir runs/photos

Arguments: the variant; `data` = imagenet2012, imagenet21k, folder, embedded or
tfds:NAME; `recipe` = paper (Kolesnikov et al., arXiv 1912.11370) or
big_vision (its configs bit_i1k.py and bit_i21k.py); `smoke` for a few seconds
on embedded data.

Published for a ResNet-50 from scratch at batch 4096 (arXiv 1912.11370, ILSVRC
top-1): GroupNorm with Weight Standardization 76.0 %, GroupNorm alone 70.2 %.
"""

from configs import common


def get_config(arg=None):
  args = common.parse_arg(
      arg,
      variant='R50x1',
      data='imagenet2012',
      recipe=('paper', 'big_vision'),
      smoke=False,
  )
  c = common.base()
  c.model.variant = args['variant']
  c.model.dtype = 'bfloat16'
  # Eight images per core, as the paper has it.
  c.target = 'v3-512' if args['data'].startswith('imagenet') else 'v3-8'
  c.batch_size = 4096
  c.total_steps = '90 epochs'
  c.eval_every = '5 epochs'
  c.checkpoint.every = '1 epoch'
  c.checkpoint.keep_every = '30 epochs'
  _set_data(c, args['data'])
  large = args['data'] == 'imagenet21k'
  {'paper': _paper, 'big_vision': _big_vision}[args['recipe']](c, large)
  if not args['data'].startswith('imagenet'):
    # The published numbers of steps would outlast a run on a small set.
    c.schedule.warmup = '5%'
  return common.smoke(c) if args['smoke'] else c


def _paper(c, large):
  """Momentum, stairs and coupled L2, as BiT-S and BiT-M were trained."""
  c.optimizer.learning_rate = 0.03
  c.optimizer.base_batch_size = 256
  c.optimizer.batch_rule = 'linear'
  c.optimizer.weight_decay = 1e-4
  c.optimizer.decay = 'coupled'
  c.schedule.name = 'stair'
  c.schedule.warmup = 5000
  c.schedule.boundaries = ('30 epochs', '60 epochs', '80 epochs')
  _set_loss(c, large)


def _big_vision(c, large):
  """Cosine and decay that is independent of the peak rate."""
  batch = c.get_ref('batch_size')
  c.optimizer.learning_rate = 0.03 if large else 0.1
  c.optimizer.base_batch_size = 256
  c.optimizer.batch_rule = 'linear'
  c.optimizer.weight_decay = (3e-5 if large else 1e-4) / 256 * batch
  c.optimizer.decay = 'independent'
  c.optimizer.moment_dtype = 'bfloat16'
  c.clip_norm = 1.0
  c.schedule.name = 'cosine'
  c.schedule.warmup = 5000 if large else 1000
  c.data.shuffle_buffer = 250_000
  _set_loss(c, large)


def _set_loss(c, large):
  if large:
    # 21,843 classes that are no partition: one binary loss each, started at
    # a low probability (exp(-10) = 5e-5).
    c.loss.name = 'sigmoid'
    c.model.head_bias_init = -10.0


def _set_data(c, name):
  c.data.train_ops = 'decode_inception_crop(224)|flip_lr|value_range(-1, 1)'
  c.data.eval_ops = (
      'decode|resize_small(256)|central_crop(224)|value_range(-1, 1)'
  )
  if name == 'folder':
    c.data.source = 'folder'
    c.data.eval_split = 'val'
  elif name == 'embedded':
    c.data.source = 'embedded'
    c.data.train_ops = 'pad(2)|random_crop(28)|flip_lr|value_range(-1, 1)'
    c.data.eval_ops = 'value_range(-1, 1)'
    c.model.stem = 'small'
  elif name == 'imagenet2012':
    _set_tfds(c, 'imagenet2012', 'train[:99%]', 'validation')
  elif name == 'imagenet21k':
    _set_tfds(c, 'imagenet21k', 'full[51200:]', 'full[:51200]')
  elif name.startswith('tfds:') and name != 'tfds:':
    _set_tfds(c, name.removeprefix('tfds:'), 'train', 'test')
  else:
    raise ValueError(
        f'argument data={name!r}: accepted are imagenet2012, imagenet21k,'
        ' folder, embedded and tfds:NAME'
    )


def _set_tfds(c, name, train_split, eval_split):
  c.data.source = 'tfds'
  c.data.name = name
  c.data.train_split = train_split
  c.data.eval_split = eval_split
