"""Trees by path: names, rules of (regular expression, value), and norms.

A path joins the keys from the root to a leaf with slashes, for dicts, lists
and NamedTuples alike: 'block1/unit01/conv1/kernel'. Decay, freezing and
sharding all address parameters by path through `match_rules`.
"""

import re

import jax
import jax.numpy as jnp

CATCH_ALL = '.*'
# Parameters below one of these are stacked: entry i of the first axis belongs
# to layer i, and the layers run in a scan.
STACKS = ('layers', 'attention_layers')
# What an optimizer keeps per layer: it has paths that end like a parameter's
# but is no moment of it.
LAYER_STATISTICS = ('trust_ratio', 'weight_norm', 'update_norm')


def _path(keys):
  return jax.tree_util.keystr(keys, simple=True, separator='/')


def flatten(tree):
  """Returns the list of (path, leaf), in the order of `jax.tree.leaves`."""
  return [
    (_path(keys), leaf)
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
  ]


def map_with_path(f, tree, *rest):
  """Maps f(path, leaf, *leaves of rest) over trees of one structure."""
  return jax.tree_util.tree_map_with_path(
    lambda keys, *leaves: f(_path(keys), *leaves), tree, *rest
  )


def match_rules(rules, paths, *, what):
  """Gives every path the value of the first rule that matches all of it.

  Args:
    rules: pairs of (regular expression, value).
    paths: paths of leaves, as `flatten` writes them.
    what: the config field the rules come from, for error messages.

  Returns:
    A dict from path to value.

  Raises:
    ValueError: a path that no rule matches, a pattern that is not a regular
      expression, or a rule that decides no path because it matches none or
      rules before it take them all. A last '.*' is a default and may idle.
  """
  patterns = [_compile(pattern, what) for pattern, _ in rules]
  values, used, unmatched = {}, set(), []
  for path in paths:
    first = next((i for i, p in enumerate(patterns) if p.fullmatch(path)), None)
    if first is None:
      unmatched.append(path)
    else:
      used.add(first)
      values[path] = rules[first][1]
  if unmatched:
    raise ValueError(
      f'{what}: no rule matches {_some(unmatched)}; the rules are '
      f"{[p.pattern for p in patterns]}, and a last ('.*', value) takes the "
      'rest.'
    )
  dead = [
    p.pattern
    for i, p in enumerate(patterns)
    if i not in used and not (i == len(patterns) - 1 and p.pattern == CATCH_ALL)
  ]
  if dead:
    raise ValueError(
      f'{what}: {dead} decide no path: they match none, or an earlier rule '
      f'matches first. A rule must match a whole path; paths are '
      f'{_some(list(paths))}.'
    )
  return values


def global_norm(tree):
  """Returns the float32 Euclidean norm of all the leaves together."""
  squares = [
    jnp.sum(jnp.square(leaf.astype(jnp.float32)))
    for leaf in jax.tree.leaves(tree)
  ]
  return jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32)))


def is_stacked(path):
  """Says whether the first axis of the parameter counts layers."""
  return any(part in STACKS for part in path.split('/'))


def layer_norm(path, leaf):
  """Returns the float32 Euclidean norm [], or [layers] where stacked.

  `path` is the parameter's, and `leaf` any array of its shape.
  """
  axes = tuple(range(is_stacked(path), leaf.ndim))
  return jnp.sqrt(jnp.sum(jnp.square(leaf.astype(jnp.float32)), axes))


def per_layer(values, leaf):
  """Gives [] or [layers] the rank of the leaf, to multiply it."""
  return values.reshape(values.shape + (1,) * (leaf.ndim - values.ndim))


def mismatch(found, wanted):
  """Says how the shapes of two trees differ, or None."""
  found = {path: tuple(leaf.shape) for path, leaf in flatten(found)}
  wanted = {path: tuple(leaf.shape) for path, leaf in flatten(wanted)}
  for path in wanted:
    if path not in found:
      extra = [p for p in found if p not in wanted]
      return f'has no {path}' + (f', but {extra[0]}' if extra else '')
    if found[path] != wanted[path]:
      return f'has {path} of shape {found[path]}, not {wanted[path]}'
  extra = [p for p in found if p not in wanted]
  return f'has {extra[0]} too' if extra else None


def _compile(pattern, what):
  try:
    return re.compile(pattern)
  except re.error as error:
    raise ValueError(
      f'{what}: {pattern!r} is not a regular expression: {error}.'
    ) from error


def _some(paths):
  shown = ', '.join(repr(path) for path in paths[:5])
  return f'{shown} and {len(paths) - 5} more' if len(paths) > 5 else shown
