"""Paths, rules and norms of trees."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bigtransfer import trees


class Pair(NamedTuple):
  params: Any
  moments: Any


TREE = Pair(
  params={'block1': {'unit01': {'kernel': 1}}, 'a': 2},
  moments=[{'mu': 3}, (4, None)],
)
PATHS = ['block1/conv/kernel', 'block1/norm/scale', 'head/kernel']


def test_flatten_names_dicts_sequences_and_named_tuples():
  flat = trees.flatten(TREE)
  assert flat == [
    ('params/a', 2),
    ('params/block1/unit01/kernel', 1),
    ('moments/0/mu', 3),
    ('moments/1/0', 4),
  ]
  assert [leaf for _, leaf in flat] == jax.tree.leaves(TREE)


def test_map_with_path_maps_several_trees():
  other = jax.tree.map(lambda x: 10 * x, TREE)
  mapped = trees.map_with_path(lambda path, x, y: (path, x + y), TREE, other)
  assert mapped.params['block1']['unit01']['kernel'] == (
    'params/block1/unit01/kernel',
    11,
  )
  assert isinstance(mapped, Pair)


def test_first_rule_that_matches_wins():
  rules = (('head/.*', 'a'), ('.*/kernel', 'b'), ('.*', 'c'))
  values = trees.match_rules(rules, PATHS, what='rules')
  assert values == dict(zip(PATHS, 'bca', strict=True))


def test_a_rule_must_match_the_whole_path():
  with pytest.raises(ValueError, match=r"\['head', '\.\*/kern'\] decide no"):
    trees.match_rules((('head', 1), ('.*/kern', 1), ('.*', 0)), PATHS, what='r')


def test_unmatched_paths_are_named_five_at_most():
  paths = [f'layer{i}/bias' for i in range(8)] + ['head/kernel']
  with pytest.raises(ValueError) as error:
    trees.match_rules((('.*/kernel', 1),), paths, what='optimizer.lr_rules')
  message = str(error.value)
  assert message.startswith('optimizer.lr_rules: no rule matches')
  assert "'layer4/bias' and 3 more" in message
  assert 'layer5' not in message


@pytest.mark.parametrize(
  ('rules', 'dead'),
  [
    ((('heed/.*', 1), ('.*', 0)), ['heed/.*']),
    ((('.*', 0), ('head/.*', 1), ('x', 1)), ['head/.*', 'x']),
    ((('.*', 0), ('.*', 1), ('head/.*', 1)), ['.*', 'head/.*']),
  ],
  ids=['matches none', 'behind a broader rule', 'only a last one may idle'],
)
def test_rules_that_decide_nothing_are_refused(rules, dead):
  with pytest.raises(ValueError) as error:
    trees.match_rules(rules, PATHS, what='rules')
  assert f'rules: {dead} decide no path' in str(error.value)


def test_a_last_catch_all_is_a_default_that_may_idle():
  rules = (('.*/kernel', 1.0), ('.*', 0.0))
  values = trees.match_rules(rules, ['a/kernel'], what='rules')
  assert values == {'a/kernel': 1.0}


def test_a_pattern_that_is_no_regular_expression_is_named():
  with pytest.raises(ValueError, match=r"lr_rules: '\*/kernel' is not"):
    trees.match_rules((('*/kernel', 1),), PATHS, what='lr_rules')


def test_global_norm_is_float32_for_any_leaf_type():
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(7, 5)), rng.normal(size=64)
  tree = {'a': jnp.asarray(a, jnp.float32), 'b': jnp.asarray(b, jnp.bfloat16)}
  kept = [np.asarray(x, np.float64) for x in tree.values()]
  expected = np.sqrt(sum((x**2).sum() for x in kept))
  norm = jax.jit(trees.global_norm)(tree)
  assert norm.dtype == jnp.float32 and norm.shape == ()
  np.testing.assert_allclose(norm, expected, rtol=1e-6)


def test_global_norm_of_nothing_is_zero():
  assert trees.global_norm({}) == 0.0


@pytest.mark.parametrize(
  ('path', 'stacked'),
  [
    ('encoder/layers/query/kernel', True),
    ('encoder/attention_layers/query/kernel', True),
    ('layers/kernel', True),
    ('encoder/layer_norm/scale', False),
    ('encoder/my_layers/kernel', False),
    ('block1/unit01/conv1/kernel', False),
  ],
)
def test_what_lies_below_layers_is_stacked(path, stacked):
  assert trees.is_stacked(path) == stacked
  x = np.random.default_rng(0).normal(size=(3, 4, 5))
  norm = trees.layer_norm(path, jnp.asarray(x, jnp.float32))
  expected = np.sqrt((x**2).sum((1, 2) if stacked else None))
  assert norm.dtype == jnp.float32 and norm.shape == expected.shape
  np.testing.assert_allclose(norm, expected, rtol=1e-6)
  scaled = trees.per_layer(1 / norm, x) * jnp.asarray(x, jnp.float32)
  np.testing.assert_allclose(trees.layer_norm(path, scaled), 1.0, rtol=1e-6)
