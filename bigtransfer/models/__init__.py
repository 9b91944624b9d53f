"""Models: pure `init` and `apply` over plain nested dicts of parameters.

Letters in shape comments: `b` batch, `h w c` image, `d` features, `*p` any.
"""

import importlib
import pkgutil
import types


def load(name: str) -> types.ModuleType:
  """Returns the module `bigtransfer.models.<name>`; it exports `build`.

  Raises ValueError, listing the models that exist, for any other name.
  """
  # Of models, and no models themselves.
  parts = {'attention', 'bert_config', 'bit_flops', 'encoder', 'gathered',
           'layers'}
  known = sorted({m.name for m in pkgutil.iter_modules(__path__)} - parts)
  if name not in known:
    raise ValueError(f'model.name={name!r}: expected one of {known}')
  return importlib.import_module(f'{__name__}.{name}')
