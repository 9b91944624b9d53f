"""The kinds of data: config.data.kind -> the class that reads it."""

import importlib
from typing import Any

_MODULES = {
    'images': 'pipeline',
    'pretraining': 'pretraining',
    'sentences': 'sentences',
    'squad': 'squad',
}


def open_data(config: Any, process_index: int = 0, process_count: int = 1):
  """Returns the `Data` of a config, opened and checked.

  It has `num_examples`, `spec`, {key: (shape, dtype)} of the global training
  batch, `class_names` or None, and

    model_fields() -> {key: value} that the `model` section must hold or exceed
    identity() -> dict for JSON that tells one training set from another
    train(config, start_step) -> endless iterator with `spec`, `bad`, `close()`
    evaluate(config, split=None) -> finite iterable with `len()`, `spec`, `bad`

  Raises what the class raises: ValueError and OSError for what is not there or
  does not fit.
  """
  module = importlib.import_module(
      f'input_pipeline.{_MODULES[config.data.kind]}'
  )
  return module.Data(config, process_index, process_count)
