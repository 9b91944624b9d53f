"""Where parameters and optimizer state live: rules to NamedShardings.

A rule is (regular expression on the parameter path, placement); the first
that matches decides. A placement is

  'replicate'   a full copy on every device;
  'fsdp'        the largest dimension but the last that the fsdp axis divides
                is split over it, the last where there is no other;
  'zero'        of moments only: as the parameter, and besides split over those
                of the axes data and fsdp that the parameter does not use;
  a tuple       per dimension a mesh axis or None: (None, None, None, 'model').

The first two strings leave tensors below `fsdp_min_size` elements whole, and
never split the layer axis of a stack: a loop over layers would have to gather
all of it at once.

Moments and the moving average follow their parameter, found as the longest
parameter path that ends their own, of equal shape. `opt_state_rules` place
the moments otherwise: (('.*', 'zero'),) with replicated parameters is ZeRO-1.
What an optimizer keeps per layer (`trees.LAYER_STATISTICS`) is replicated.
"""

import math

from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bigtransfer import trees
from bigtransfer.mesh import BATCH_AXES

PRESETS = ('replicate', 'zero1', 'fsdp', 'tensor')
_REPLICATE = (('.*', 'replicate'),)
# As in Megatron-LM, https://arxiv.org/abs/1909.08053: what goes into a
# nonlinearity by columns, what comes out of it by rows, words by vocabulary.
_TENSOR = (
  ('encoder/.*/(query|key|value|intermediate)/kernel', (None, None, 'model')),
  ('encoder/.*/(query|key|value|intermediate)/bias', (None, 'model')),
  ('encoder/.*/(attention_output|output)/kernel', (None, 'model', None)),
  ('embeddings/word/embedding', ('model', None)),
  ('.*', 'replicate'),
)


def preset(name, model):
  """Returns what a preset says: {config path: value}, in order.

  Args:
    name: one of `PRESETS`.
    model: name of the model.

  Raises:
    ValueError: the preset is not for this model.
  """
  if name == 'tensor' and model != 'bert':
    raise ValueError(
      f"config.sharding.preset='tensor' is for bert, and "
      f'config.model.name={model!r}; accepted: replicate, zero1, fsdp.'
    )
  rules = {'fsdp': (('.*', 'fsdp'),), 'tensor': _TENSOR}.get(name, _REPLICATE)
  moments = (('.*', 'zero'),) if name == 'zero1' else ()
  values = {'sharding.rules': rules, 'sharding.opt_state_rules': moments}
  if name == 'fsdp' and model == 'bert':
    # Its layers run in a loop, which would keep every kernel it has gathered.
    values['model.remat'] = 'dots'
  return values


def batch_sharding(mesh):
  """Splits the first dimension of a batch over the data and fsdp axes."""
  return NamedSharding(mesh, P(BATCH_AXES))


def tree_shardings(tree, mesh, config):
  """Gives every leaf its sharding.

  Args:
    tree: parameters, or a whole train state (a NamedTuple with fields
      `params`, `opt_state` and `ema`); arrays or ShapeDtypeStructs.
    mesh: as `mesh.make` makes it.
    config: section with `rules`, `opt_state_rules`, `fsdp_min_size`.

  Returns:
    A tree like `tree` of NamedShardings. What is neither a parameter nor
    shaped like one is replicated.

  Raises:
    ValueError: a dead rule, a parameter without a rule, an unknown placement
      or axis, or a dimension that its axis does not divide.
  """
  if 'params' not in getattr(tree, '_fields', ()):
    specs, _ = _both(tree, mesh, config)
    return trees.map_with_path(
      lambda path, _: NamedSharding(mesh, specs[path]), tree
    )
  shapes = {path: leaf.shape for path, leaf in trees.flatten(tree.params)}
  specs, moment_specs = _both(tree.params, mesh, config)
  by_field = {'params': specs, 'ema': specs, 'opt_state': moment_specs}

  def place(path, leaf):
    field, _, rest = path.partition('/')
    parameter = _parameter_of(rest, leaf.shape, shapes)
    spec = by_field.get(field, {}).get(parameter, P())
    return NamedSharding(mesh, spec)

  return trees.map_with_path(place, tree)


def gradient_shardings(params, mesh, config):
  """Gives every gradient the sharding of its moments, which it goes into."""
  _, specs = _both(params, mesh, config)
  return trees.map_with_path(
    lambda path, _: NamedSharding(mesh, specs[path]), params
  )


def axes_of(shardings):
  """Returns the mesh axes over which something in the tree is split."""
  return {
    axis
    for _, sharding in trees.flatten(shardings)
    for entry in sharding.spec
    for axis in axes_in(entry)
  }


def axes_in(entry):
  """Returns the axes of one dimension of a PartitionSpec as a tuple."""
  if entry is None:
    return ()
  return entry if isinstance(entry, tuple) else (entry,)


def _parameter_of(path, shape, shapes):
  """Returns the longest parameter path that ends `path`, if shapes agree.

  None below a name of `trees.LAYER_STATISTICS`: a norm per layer may have the
  shape of some parameter by chance.
  """
  parts = path.split('/')
  suffixes = ['/'.join(parts[i:]) for i in range(len(parts))]
  start = next((i for i, s in enumerate(suffixes) if s in shapes), 0)
  if set(parts[:start]) & set(trees.LAYER_STATISTICS):
    return None
  return next((s for s in suffixes if shapes.get(s) == shape), None)


def _both(params, mesh, config):
  """Returns {path: PartitionSpec} of the parameters and of their moments."""
  leaves = dict(trees.flatten(params))
  what = 'sharding.rules'
  placements = trees.match_rules(config.rules, list(leaves), what=what)
  specs = {
    path: _spec(path, leaf.shape, placements[path], mesh, config, what)
    for path, leaf in leaves.items()
  }
  if not config.opt_state_rules:
    return specs, specs
  what, rules = 'sharding.opt_state_rules', config.opt_state_rules
  placements = trees.match_rules(rules, list(leaves), what=what)
  moments = {}
  for path, leaf in leaves.items():
    if placements[path] == 'zero':
      moments[path] = _split(
        path, leaf.shape, specs[path], BATCH_AXES, mesh, config
      )
    else:
      moments[path] = _spec(
        path, leaf.shape, placements[path], mesh, config, what
      )
  return specs, moments


def _spec(path, shape, placement, mesh, config, what):
  """Turns one placement into a PartitionSpec for one parameter."""
  if placement == 'replicate':
    return P()
  if placement == 'fsdp':
    return _split(path, shape, P(), ('fsdp',), mesh, config)
  if isinstance(placement, str):
    raise ValueError(
      f"{what}: {placement!r} for {path!r}; accepted: 'replicate', 'fsdp', a "
      "tuple with a mesh axis or None per dimension, and 'zero' in "
      'sharding.opt_state_rules.'
    )
  axes = tuple(placement)
  named = [axis for axis in axes if axis is not None]
  if len(axes) != len(shape):
    raise ValueError(
      f'{what}: {axes} has {len(axes)} entries, but {path!r} of shape '
      f'{shape} has {len(shape)} dimensions.'
    )
  if not set(named) <= set(mesh.shape) or len(set(named)) < len(named):
    raise ValueError(
      f'{what}: {axes} for {path!r}; accepted: the mesh axes '
      f'{tuple(mesh.shape)}, each at most once, and None.'
    )
  for size, axis in zip(shape, axes, strict=True):
    if axis is not None and size % mesh.shape[axis]:
      raise ValueError(
        f'{what}: {axes} splits a dimension of {path!r} of shape {shape} '
        f'over axis {axis!r} of size {mesh.shape[axis]}, which does not '
        f'divide {size}.'
      )
  return P(*axes)


def _split(path, shape, spec, axes, mesh, config):
  """Splits what is large over those of `axes` that `spec` does not use."""
  used = {axis for entry in spec for axis in axes_in(entry)}
  axes = [a for a in axes if a not in used and mesh.shape[a] > 1]
  if math.prod(shape) < config.fsdp_min_size or not axes:
    return spec
  entries = [axes_in(entry) for entry in spec]
  entries += [()] * (len(shape) - len(entries))
  # The layer axis of a stack stays whole.
  candidates = range(trees.is_stacked(path), len(shape))
  for axis in axes:
    left = [
      size // math.prod(mesh.shape[a] for a in entry)
      for size, entry in zip(shape, entries, strict=True)
    ]
    divisible = [d for d in candidates if left[d] % mesh.shape[axis] == 0]
    if not divisible:
      raise ValueError(
        f'sharding: {path!r} of shape {shape} cannot be split: the {axis} axis '
        f'of size {mesh.shape[axis]} divides none of '
        f'{[left[d] for d in candidates]}; give it a rule of its own '
        "('replicate' or a tuple), raise sharding.fsdp_min_size above "
        f'{math.prod(shape)}, or share the devices otherwise between '
        f'mesh.data={mesh.shape["data"]} and mesh.fsdp={mesh.shape["fsdp"]}.'
      )
    # On a TPU the last dimension lies in lanes of 128: split finer than that it
    # is padded, and a reduce-scatter becomes an all-reduce and a slice.
    last = len(shape) - 1
    chosen = max(divisible, key=lambda d: (d < last, left[d], d))
    # In the order of the mesh, so that a part of the axes can be manual.
    entries[chosen] = tuple(
      a for a in mesh.shape if a in (*entries[chosen], axis)
    )
  return P(*(_entry(axes) for axes in entries))


def _entry(axes):
  return axes[0] if len(axes) == 1 else axes or None
