"""Where parameters and optimizer state live: rules to NamedShardings.

A rule is (regular expression on the parameter path, placement); the first
that matches decides. A placement is

  'replicate'   a full copy on every device;
  'fsdp'        the largest dimension that the data axis divides is split over
                it (the last of equals); tensors below `fsdp_min_size`
                elements are replicated;
  a tuple       per dimension a mesh axis or None: (None, None, None, 'model').

Moments and the moving average follow their parameter, found as the longest
parameter path that ends their own, of equal shape. `opt_state_rules` place
the moments otherwise: (('.*', 'fsdp'),) with replicated parameters is ZeRO-1.
What an optimizer keeps per layer (`trees.LAYER_STATISTICS`) is replicated.
"""

import math

from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bigtransfer import trees


def batch_sharding(mesh):
  """Splits the first dimension of a batch over the data axis."""
  return NamedSharding(mesh, P('data'))


def tree_shardings(tree, mesh, config):
  """Gives every leaf its sharding.

  Args:
    tree: parameters, or a whole train state (a NamedTuple with fields
      `params`, `opt_state` and `ema`); arrays or ShapeDtypeStructs.
    mesh: a mesh with axes 'data' and 'model'.
    config: section with `rules`, `opt_state_rules`, `fsdp_min_size`.

  Returns:
    A tree like `tree` of NamedShardings. What is neither a parameter nor
    shaped like one is replicated.

  Raises:
    ValueError: a dead rule, a parameter without a rule, an unknown placement
      or axis, or a dimension that its axis does not divide.
  """
  if 'params' not in getattr(tree, '_fields', ()):
    specs = _specs(tree, config.rules, mesh, config, 'sharding.rules')
    return trees.map_with_path(
      lambda path, _: NamedSharding(mesh, specs[path]), tree
    )
  shapes = {path: leaf.shape for path, leaf in trees.flatten(tree.params)}
  specs = _specs(tree.params, config.rules, mesh, config, 'sharding.rules')
  moment_specs = specs
  if config.opt_state_rules:
    moment_specs = _specs(
      tree.params,
      config.opt_state_rules,
      mesh,
      config,
      'sharding.opt_state_rules',
    )
  by_field = {'params': specs, 'ema': specs, 'opt_state': moment_specs}

  def place(path, leaf):
    field, _, rest = path.partition('/')
    parameter = _parameter_of(rest, leaf.shape, shapes)
    spec = by_field.get(field, {}).get(parameter, P())
    return NamedSharding(mesh, spec)

  return trees.map_with_path(place, tree)


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


def _specs(params, rules, mesh, config, what):
  leaves = dict(trees.flatten(params))
  placements = trees.match_rules(rules, list(leaves), what=what)
  return {
    path: _spec(path, leaf.shape, placements[path], mesh, config, what)
    for path, leaf in leaves.items()
  }


def _spec(path, shape, placement, mesh, config, what):
  """Turns one placement into a PartitionSpec for one parameter."""
  if placement == 'replicate':
    return P()
  if placement == 'fsdp':
    return _fsdp(path, shape, mesh.shape['data'], config.fsdp_min_size)
  if isinstance(placement, str):
    raise ValueError(
      f"{what}: {placement!r} for {path!r}; accepted: 'replicate', 'fsdp' or "
      'a tuple with a mesh axis or None per dimension.'
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


def _fsdp(path, shape, axis_size, min_size):
  if math.prod(shape) < min_size:
    return P()
  divisible = [d for d, size in enumerate(shape) if size % axis_size == 0]
  if not divisible:
    raise ValueError(
      f"sharding: 'fsdp' cannot split {path!r} of shape {shape}: the data "
      f'axis of size {axis_size} divides none of its dimensions; give it a '
      "rule of its own ('replicate' or a tuple)."
    )
  chosen = max(divisible, key=lambda d: (shape[d], d))
  return P(*('data' if d == chosen else None for d in range(len(shape))))
