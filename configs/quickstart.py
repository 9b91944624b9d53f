r"""A small BiT ResNet on the Fashion-MNIST subset that ships.

python -m bigtransfer.main --config configs/quickstart.py \
    --workdir runs/quickstart
"""

from configs import common


def get_config(arg=None):
  args = common.parse_arg(arg, smoke=False)
  c = common.base()

  c.target = 'v5litepod-1'
  c.batch_size = 128
  c.total_steps = 1100
  c.log_every = 20
  c.eval_every = c.checkpoint.every = 220
  c.eval_batch_size = 500
  c.clip_norm = 1.0

  c.model.variant = 'R26x1'
  c.model.blocks = (1, 1, 1)
  c.model.root_width = 32
  c.model.num_groups = 8

  c.optimizer.learning_rate = 0.1
  c.optimizer.weight_decay = 1e-4
  c.schedule.name = 'cosine'
  c.schedule.warmup = '5%'

  c.data.source = 'embedded'
  c.data.name = 'fashion_mnist'
  c.data.train_ops = 'pad(2)|random_crop(28)|flip_lr|value_range(-1, 1)'
  c.data.eval_ops = 'value_range(-1, 1)'

  c.checkpoint.best_metric = 'accuracy'
  return common.smoke(c) if args['smoke'] else c
