"""The base of every recipe, its arguments, and the smoke size.

A recipe starts from `base()`, sets what differs, and returns it. Values are
checked as they are set (see section.py). `python -m bigtransfer.main --config
configs/quickstart.py --help_config` lists all keys with their meaning.
"""

from configs import fields as f
from configs import keys, text_keys
from configs.section import Section


def base() -> Section:
  """Returns the config with every key at its default, locked."""
  c = Section()
  keys.run(c)
  keys.observation(c)
  model = c.section('model', 'The network.')
  keys.model(model)
  text_keys.bert(model)
  keys.optimizer(c.section('optimizer', 'The update rule.'))
  keys.schedule(c.section('schedule', 'The learning rate over time.'))
  data = c.section('data', 'Where examples come from.')
  keys.data(data)
  text_keys.text(data)
  keys.task(c)
  text_keys.task(c)
  keys.checkpoint(c.section('checkpoint', 'What is saved and kept.'))
  keys.devices(c)
  return c.lock()


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


def smoke(config: Section) -> Section:
  """Shrinks a recipe to seconds on a laptop, on embedded data."""
  config.target = 'v5litepod-1'
  config.batch_size = 16
  config.eval_batch_size = 500
  config.total_steps = 3
  config.log_every = 1
  config.eval_every = config.checkpoint.every = 0
  config.checkpoint.keep_every = None
  config.schedule.warmup = 1
  if config.schedule.boundaries:
    config.schedule.boundaries = (2,)
  config.model.blocks = (1, 1)
  config.model.variant = 'R26x1'
  config.model.root_width = config.model.num_groups = 8
  config.model.dtype = 'float32'
  config.data.source = 'embedded'
  config.data.name = 'fashion_mnist'
  config.data.path = None
  config.data.train_split = 'train'
  config.data.eval_split = 'test'
  config.data.train_ops = config.data.eval_ops = 'value_range(-1, 1)'
  return config
