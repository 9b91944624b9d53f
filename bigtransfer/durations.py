"""Durations of a config as numbers of steps."""


def steps(
    duration: int | str,
    *,
    batch_size: int,
    num_examples: int | None = None,
    total_steps: int | None = None,
    what: str = 'duration',
) -> int:
  """Converts 300, '300 steps', '2 epochs', '50000 examples', '10%' to steps.

  Epochs, examples and percents round to the nearest step, and to 1 where that
  would be 0 although more than 0 was asked for.
  """
  if isinstance(duration, int):
    return duration
  amount = float(duration.rstrip('%abcdefghijklmnopqrstuvwxyz '))
  if duration.endswith('%'):
    if total_steps is None:
      raise ValueError(
          f'config.{what}={duration!r}: there is no total to take a'
          ' percentage of'
      )
    exact = amount / 100 * total_steps
  elif 'epoch' in duration:
    if num_examples is None:
      raise ValueError(
          f'config.{what}={duration!r}: the size of the training set is not'
          ' known; give steps'
      )
    exact = amount * num_examples / batch_size
  elif 'example' in duration:
    exact = amount / batch_size
  else:
    exact = amount
  return max(round(exact), 1 if amount else 0)
