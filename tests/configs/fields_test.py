"""Typed config fields: every value is checked where it is written."""

import copy

import pytest

from configs import fields as f
from configs import section


@pytest.fixture
def config():
  c = section.Section()
  c.declare('steps', 10, f.integer(0), 'An int.')
  c.declare('total', '2 epochs', f.duration(), 'A duration.')
  c.declare('name', 'a', f.string(), 'A string.')
  c.declare('limit', None, f.optional(f.number(0)), 'None or a float.')
  c.declare('flag', False, f.boolean(), 'A switch.')
  c.declare('size', (1, 2), f.tuple_of(f.integer(), f.integer()), 'Two ints.')
  c.declare('names', (), f.tuple_of(f.string(), repeated=True), 'Any number.')
  optimizer = c.section('optimizer', 'Nested.')
  optimizer.declare('lr', 0.1, f.number(), 'A float.')
  optimizer.declare('rules', (('.*', 1.0),), f.rules(f.number()), 'Rules.')
  return c.lock()


@pytest.mark.parametrize(
    'key, text, value',
    [
        ('steps', '300', 300),
        ('total', '300', 300),
        ('total', '10%', '10%'),
        ('total', '1.5 epochs', '1.5 epochs'),
        ('name', '5', '5'),
        ('limit', '1', 1.0),
        ('limit', 'None', None),
        ('flag', 'true', True),
        ('size', '3,4', (3, 4)),
        ('size', '(3, 4)', (3, 4)),
        ('names', 'a,', ('a',)),
        ('names', '()', ()),
        ('optimizer.lr', '1e-4', 1e-4),
        ('optimizer.lr', '1', 1.0),
        ('optimizer.rules', "(('a/.*', 0), ('.*', 1))",
         (('a/.*', 0.0), ('.*', 1.0))),
    ],
)
def test_override_parses_by_kind(config, key, text, value):
  config.override(key, text)
  section, _, last = key.rpartition('.')
  found = (config[section] if section else config)[last]
  assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    'key, text, message',
    [
        ('steps', '1e4', "config.steps must be int of at least 0, got"),
        ('steps', '2.5', "got str '2.5'"),
        ('steps', '-1', "got str '-1'"),
        ('optimizer.lr', 'abc', "config.optimizer.lr must be float, got str"),
        ('total', '3 parsecs', "'2 epochs'"),
        ('flag', '1', 'true or false'),
        ('size', '224', 'tuple'),
        ('size', '(3.5, 4)', 'tuple'),
        ('size', '(1, 2, 3)', 'tuple'),
        ('optimizer.rules', "(('(', 1),)", 'regex'),
    ],
)
def test_override_refuses_what_does_not_fit(config, key, text, message):
  with pytest.raises((TypeError, ValueError), match='must be') as e:
    config.override(key, text)
  assert message in str(e.value)


def test_a_wrong_key_is_answered_with_the_nearest(config):
  with pytest.raises(KeyError, match='did you mean steps'):
    config.override('stpes', '3')
  with pytest.raises(KeyError, match='did you mean optimizer'):
    config.override('optimzer.lr', '3')
  with pytest.raises(KeyError, match='did you mean optimizer.rules'):
    config.override('optimizer.rule', '3')
  with pytest.raises(KeyError, match='optimizer is a section'):
    config.override('optimizer', '3')
  with pytest.raises(AttributeError, match='did you mean steps'):
    config.stpes = 3
  with pytest.raises(AttributeError):
    _ = config.optimizer.rat


def test_none_does_not_make_a_field_forget_its_type(config):
  config.limit = 1.0
  config.limit = None
  with pytest.raises(TypeError, match="limit must be float.*got str '10'"):
    config.limit = '10'
  with pytest.raises(TypeError, match='steps must be int'):
    config.steps = None


def test_bool_is_no_int_and_lists_become_tuples(config):
  with pytest.raises(TypeError):
    config.steps = True
  config.size = [3, 4]
  assert config.size == (3, 4)
  with pytest.raises(TypeError):
    config.size = (3.5, 4)


def test_references_follow_and_are_checked(config):
  config.optimizer.lr = 0.5 * config.get_ref('steps')
  config.steps = 4
  assert config.optimizer.lr == 2.0
  other = copy.deepcopy(config)
  other.steps = 8
  assert (other.optimizer.lr, config.optimizer.lr) == (4.0, 2.0)
  config.optimizer.lr = 1
  assert config.optimizer.lr == 1.0
  config.name = config.get_ref('steps')
  with pytest.raises(TypeError, match='config.name must be str'):
    config.check()


def test_a_key_is_declared_once(config):
  with pytest.raises(KeyError, match='twice'):
    config.declare('steps', 1, f.integer(), 'Again.')


def test_describe_names_every_key_and_its_meaning(config):
  text = config.describe()
  assert 'optimizer.lr = 0.1\n    A float.' in text
  assert '# Nested.' in text
