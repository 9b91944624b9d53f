"""BERT against NumPy, transformers and the published sizes."""

import functools
import math
import os
import pathlib
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from bigtransfer import bert_interchange, pretrained, trees
from bigtransfer.models import attention, bert

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden'
PARAMS = runpy.run_path(str(GOLDEN / 'make_bert_params.py'))
THEIRS = runpy.run_path(str(GOLDEN / 'make_transformers_bert.py'))
BATCH = THEIRS['tiny_batch']()


def tiny(**changes):
  """Three layers of width 16 on 31 words and 20 positions, no dropout."""
  return PARAMS['section'](**{
      'layers': 3, 'hidden': 16, 'heads': 2, 'ffn': 24, 'vocab_size': 31,
      'max_position': 20, 'dropout': 0.0, 'attention_dropout': 0.0, **changes
  })  # fmt: skip


def batch(**changes):
  return {k: v.astype(np.int32) for k, v in (BATCH | changes).items()}


def known_params(model, seed=0):
  """Parameters with no symmetry left: scales and biases random too."""
  rng = np.random.default_rng(seed)

  def draw(path, a):
    values = rng.normal(size=a.shape)
    if path.endswith('scale'):
      return (1 + 0.2 * values).astype(a.dtype)
    return (values * (0.5 if a.ndim > 1 else 0.2)).astype(a.dtype)

  shapes, _ = jax.eval_shape(model.init, jax.random.key(0), {})
  return trees.map_with_path(draw, shapes)


def forward(model, params, inputs, rng=None):
  rows = np.arange(len(inputs['input_ids']), dtype=np.uint32)
  inputs = {'row': rows} | inputs

  @jax.jit
  def apply(params, inputs):
    train = rng is not None
    return model.apply(params, {}, inputs, train=train, rng=rng)[0]

  return apply(params, inputs)


def reference(params, inputs, config):
  """The network in float64 NumPy, written from the papers' definitions."""
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
  ids, mask = inputs['input_ids'], inputs['input_mask']

  def dense(x, p):
    return x @ p['kernel'] + p['bias']

  def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    return x * p['scale'] + p['bias']

  def gelu(x):
    if config.gelu == 'erf':
      return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2

  def split(x):
    return x.reshape(*x.shape[:2], config.heads, -1).transpose(0, 2, 1, 3)

  def attend(x, p):
    q, k, v = (split(dense(x, p[n])) for n in ('query', 'key', 'value'))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    scores = np.exp(scores + (mask[:, None, None] - 1) * 10000.0)
    y = (scores / scores.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    return dense(y.reshape(x.shape), p['attention_output'])

  e = p['embeddings']
  x = e['word']['embedding'][ids] + e['position']['embedding'][:ids.shape[1]]
  x = norm(x + e['segment']['embedding'][inputs['segment_ids']], e['norm'])
  for name in ('layers', 'attention_layers'):
    stack = p['encoder'].get(name, {'output': {'kernel': ()}})
    for i in range(len(stack['output']['kernel'])):
      layer = jax.tree.map(lambda a: a[i], stack)  # noqa: B023
      mix = attend if 'query' in layer else (
          lambda x, _: np.fft.fft2(x, axes=(1, 2)).real)
      x = norm(x + mix(x, layer), layer['attention_norm'])
      y = dense(gelu(dense(x, layer['intermediate'])), layer['output'])
      x = norm(x + y, layer['output_norm'])
  pooled = np.tanh(dense(x[:, 0], p['pooler']))
  positions = inputs['masked_lm_positions'][..., None]
  y = np.take_along_axis(x, positions, 1)
  y = norm(gelu(dense(y, p['mlm']['transform'])), p['mlm']['norm'])
  return {
      'sequence': x, 'pooled': pooled,
      'mlm_logits': y @ e['word']['embedding'].T + p['mlm']['bias'],
      'nsp_logits': dense(pooled, p['nsp']),
  }


def assert_close(actual, expected, tolerance=1e-5):
  """Differences within `tolerance` of the largest expected value."""
  scale = np.abs(expected).max()
  np.testing.assert_allclose(actual, expected, atol=tolerance * scale, rtol=0)


def assert_outputs(outputs, expected, inputs):
  """Equal where a token is real; what padding becomes is nobody's business."""
  assert outputs.keys() == expected.keys()
  real = inputs['input_mask'][..., None] > 0
  for name, value in expected.items():
    where = real if name == 'sequence' else True
    assert_close(np.where(where, outputs[name], 0), np.where(where, value, 0))


@pytest.mark.parametrize('changes', [
    {}, {'scan': False}, {'gelu': 'erf'}, {'mixing': 'fourier'},
    {'mixing': 'hybrid'}, {'mixing': 'hybrid', 'scan': False},
])  # fmt: skip
def test_forward_matches_numpy(changes):
  config = tiny(**changes)
  model = bert.build(config)
  params = known_params(model)
  outputs = forward(model, params, batch())
  assert_outputs(outputs, reference(params, batch(), config), batch())


def test_forward_matches_transformers():
  golden = dict(np.load(THEIRS['PATH']))
  shapes = bert_interchange.to_hf(known_params(bert.build(tiny())))
  assert set(golden['names']) == set(shapes)
  tensors = {
      name: THEIRS['weight'](name, a.shape).astype(np.float32)
      for name, a in shapes.items()
  }
  params = bert_interchange.from_hf(tensors)
  del golden['names']
  assert_outputs(forward(bert.build(tiny()), params, batch()), golden, batch())


def test_forward_matches_transformers_on_released_weights():
  variable = THEIRS['MINILM_VARIABLE']
  if variable not in os.environ:
    pytest.skip(f'{variable} is not set to the weights of all-MiniLM-L6-v2')
  config = tiny(
      variant='L6_H384', layers=0, hidden=0, heads=12, ffn=0, gelu='erf',
      head='none', vocab_size=30522, max_position=512,
  )
  inputs = {
      k: v.astype(np.int32) for k, v in THEIRS['minilm_batch']().items()
  }
  params = pretrained.load(os.environ[variable])
  outputs = forward(bert.build(config), params, inputs)
  golden = np.load(THEIRS['MINILM'])
  assert_close(outputs['sequence'][:, THEIRS['KEPT']], golden['sequence'])
  assert_close(outputs['pooled'], golden['pooled'])


def test_parameters_of_base_are_the_golden_ones():
  golden = PARAMS['PATH'].read_text(encoding='utf-8').splitlines()
  assert PARAMS['lines']() == golden, (
      'Parameter names, shapes or dtypes changed, and with them every '
      'checkpoint. If that is meant, run tests/golden/make_bert_params.py and '
      'say in CHANGELOG.md how old checkpoints convert.'
  )


# BertModel of transformers counts 109,482,240 for bert-base-uncased; the small
# ones are in the README of google-research/bert, in millions.
@pytest.mark.parametrize('variant, count', [
    ('base', 109_482_240), ('large', 335_141_888), ('tiny', 4.4e6),
    ('mini', 11.3e6), ('small', 29.1e6), ('medium', 41.7e6),
    ('L12_H768', 109_482_240),
])  # fmt: skip
def test_number_of_parameters(variant, count):
  model = bert.build(PARAMS['section'](variant=variant, head='none'))
  params, _ = jax.eval_shape(model.init, jax.random.key(0), {})
  found = sum(a.size for a in jax.tree.leaves(params))
  assert found == count or abs(found / count - 1) < 0.05 and count < 1e8


def test_initial_parameters():
  """A normal of 0.02 cut at two deviations has one of 0.0176."""
  model = bert.build(tiny(variant='tiny', layers=0, hidden=0, heads=0, ffn=0))
  params, state = jax.jit(model.init)(jax.random.key(0), {})
  assert state == {}
  for path, a in trees.flatten(params):
    if path.endswith(('kernel', 'embedding')):
      assert np.abs(a).max() <= 0.04
      if a.size > 1e4:
        assert abs(np.std(a) - 0.0176) < 0.0005, path
    else:
      np.testing.assert_array_equal(a, float(path.endswith('scale')))
  kernels = params['encoder']['layers']['query']['kernel']
  assert np.any(kernels[0] != kernels[1])


def test_masked_tokens_change_nothing_unless_mixed_by_fourier():
  inputs = batch()
  padding = inputs['input_mask'] == 0
  changed = inputs | {'input_ids': np.where(padding, 7, inputs['input_ids'])}
  for mixing, same in (('attention', True), ('fourier', False)):
    model = bert.build(tiny(mixing=mixing))
    params = known_params(model)
    before, after = (
        np.asarray(forward(model, params, x)['pooled'])
        for x in (inputs, changed)
    )
    assert np.array_equal(before, after) == same


def test_a_row_without_any_token_stays_finite():
  model = bert.build(tiny())
  inputs = jax.tree.map(np.zeros_like, batch())
  for value in forward(model, known_params(model), inputs).values():
    assert np.isfinite(value).all()


def test_padding_of_the_vocabulary_never_wins_and_changes_nothing():
  exact, padded = (bert.build(tiny(vocab_multiple=n)) for n in (1, 16))
  (params, _), (wide, _) = (
      jax.jit(m.init)(jax.random.key(3), {}) for m in (exact, padded)
  )
  np.testing.assert_array_equal(
      wide['embeddings']['word']['embedding'],
      np.pad(params['embeddings']['word']['embedding'], [(0, 1), (0, 0)]),
  )
  # Even where padding would win by far.
  wide['mlm']['bias'] = wide['mlm']['bias'].at[31].set(1e6)
  expected = forward(exact, params, batch())['mlm_logits']
  logits = forward(padded, wide, batch())['mlm_logits']
  assert logits.shape[-1] == 32
  np.testing.assert_array_equal(logits[..., :31], expected)
  probabilities = jax.nn.softmax(logits)
  np.testing.assert_array_equal(probabilities[..., 31], 0.0)


def gradient(rng=None, **changes):
  model = bert.build(tiny(**changes))

  @jax.jit
  def grad(params):
    def loss(params):
      outputs, _ = model.apply(
          params,
          {},
          batch() | {'row': np.arange(3, dtype=np.uint32)},
          train=rng is not None,
          rng=rng,
      )
      return sum(
          jnp.mean(jnp.square(outputs[k]))
          for k in ('sequence', 'mlm_logits', 'nsp_logits')
      )

    return jax.grad(loss)(params)

  return grad(known_params(model))


DROPOUT = {'dropout': 0.2, 'attention_dropout': 0.3}


@pytest.mark.parametrize('mixing', ['attention', 'hybrid'])
def test_scan_and_remat_change_no_gradient(mixing):
  options = {'rng': jax.random.key(0), 'mixing': mixing, **DROPOUT}
  expected = gradient(**options)
  for changes in (
      {'scan': False}, {'remat': 'layer'}, {'remat': 'dots'},
      {'remat': 'layer', 'scan': False},
  ):  # fmt: skip
    actual = gradient(**options, **changes)
    # As one vector: that of the keys' bias is nothing but rounding.
    assert_close(ravel_pytree(actual)[0], ravel_pytree(expected)[0])


def test_remat_recomputes():
  counts = [
      str(jax.make_jaxpr(lambda: gradient(remat=remat))()).count(name)  # noqa: B023
      for remat, name in (
          ('none', 'dot_general'), ('dots', 'dot_general'),
          ('layer', 'dot_general'), ('none', 'rsqrt'), ('dots', 'rsqrt'),
      )
  ]  # fmt: skip
  assert counts[0] < counts[1] < counts[2]
  assert counts[3] < counts[4]


def test_scan_keeps_the_program_small():
  def size(layers):
    model = bert.build(tiny(layers=layers))
    params, _ = jax.eval_shape(model.init, jax.random.key(0), {})
    apply = functools.partial(model.apply, train=False)
    return len(jax.jit(apply).lower(params, {}, batch()).as_text())

  assert size(24) < 1.01 * size(3)


def test_dropout_follows_from_the_key_of_the_row_alone():
  x = jnp.ones((4, 7, 5, 300))
  keys = jax.random.split(jax.random.key(0), 4)
  y = attention.dropout(x, 0.1, keys)
  assert set(np.unique(y)) == {0.0, np.float32(65536 / 58982)}
  assert abs(np.mean(y == 0) - 0.1) < 0.005
  assert abs(np.mean(y) - 1) < 0.005
  rows = [
      attention.dropout(x[i : i + 1], 0.1, keys[i : i + 1]) for i in range(4)
  ]
  np.testing.assert_array_equal(y, np.concatenate(rows))
  masks = {np.asarray(row).tobytes() for row in y}
  masks |= {np.asarray(y[0, i]).tobytes() for i in range(7)}
  assert len(masks) == 11
  assert attention.dropout(x, 0.1, None) is x is attention.dropout(x, 0.0, keys)


@pytest.mark.parametrize('changes', [
    {'dropout': 0.2}, {'attention_dropout': 0.2},
    {'head': 'classification', 'num_classes': 5, 'dropout': 0.2},
])  # fmt: skip
def test_dropout_is_for_training_and_deterministic(changes):
  model = bert.build(tiny(**changes))
  params = known_params(model)
  name = 'logits' if 'head' in changes else 'sequence'

  def run(rng=None, inputs=batch()):  # noqa: B008
    return np.asarray(forward(model, params, inputs, rng)[name])

  first, second = (jax.random.key(i) for i in range(2))
  np.testing.assert_array_equal(run(first), run(first))
  assert np.any(run(first) != run(second))
  assert np.any(run(first) != run())
  # A row brings its number along when a batch is split.
  rows = [
      run(first, jax.tree.map(lambda a: a[i : i + 1], batch()) | {  # noqa: B023
          'row': np.array([i], np.uint32)})
      for i in range(3)
  ]
  assert_close(run(first), np.concatenate(rows))


def test_attention_with_dropout_is_the_same_but_for_what_is_dropped():
  rng = np.random.default_rng(0)
  q, k, v = rng.normal(size=(3, 3, 20, 2, 8)).astype(np.float32)
  mask = batch()['input_mask'] > 0
  keys = jax.random.split(jax.random.key(0), 3)
  expected = attention.attend(q, k, v, mask)
  # Rounds to no dropout, in the code with dropout.
  assert_close(attention.attend(q, k, v, mask, 1e-9, keys), expected, 1e-6)
  many = jax.vmap(lambda key: attention.attend(
      q, k, v, mask, 0.3, jax.random.split(key, 3)))
  mean = many(jax.random.split(jax.random.key(1), 2000)).mean(0)
  assert_close(mean, expected, 0.05)


def test_fourier_by_matrices_and_its_gradient():
  rng = np.random.default_rng(0)
  x, g = rng.normal(size=(2, 2, 6, 16)).astype(np.float32)
  y, pull = jax.vjp(attention.fourier, x)
  assert_close(y, np.fft.fft2(x).real)
  assert_close(attention.fourier_by_matrices(x), np.fft.fft2(x).real)
  assert_close(pull(g)[0], jax.vjp(attention.fourier_by_matrices, x)[1](g)[0])


@pytest.mark.parametrize('changes, shapes', [
    ({'head': 'classification', 'num_classes': 5}, {'logits': (3, 5)}),
    ({'head': 'span'}, {'start_logits': (3, 20), 'end_logits': (3, 20)}),
    ({'head': 'none'}, {}),
    ({}, {'mlm_logits': (3, 3, 31), 'nsp_logits': (3, 2)}),
])  # fmt: skip
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_heads(changes, shapes, dtype):
  exact, model = (bert.build(tiny(**changes, dtype=d))
                  for d in ('float32', dtype))
  params = known_params(model)
  assert ('mlm' in params) == ('mlm_logits' in shapes)
  assert ('head' in params) == ('head' in changes and bool(shapes))
  outputs = forward(model, params, batch())
  assert {k: v.shape for k, v in outputs.items()} == {
      'sequence': (3, 20, 16), 'pooled': (3, 16), **shapes
  }
  expected = forward(exact, params, batch())
  for name, value in outputs.items():
    is_logit = name not in ('sequence', 'pooled')
    assert value.dtype == (jnp.float32 if is_logit else dtype)
    assert_close(value, expected[name], 0.1 if dtype == 'bfloat16' else 0)


def test_without_positions_there_are_no_word_logits():
  model = bert.build(tiny())
  inputs = batch()
  del inputs['masked_lm_positions']
  outputs = forward(model, known_params(model), inputs)
  assert outputs.keys() == {'sequence', 'pooled', 'nsp_logits'}


def test_an_id_beyond_the_table_is_no_number_rather_than_another_word():
  model = bert.build(tiny())
  inputs = batch()
  inputs['input_ids'][1, 3] = 31
  outputs = forward(model, known_params(model), inputs)
  assert np.isnan(outputs['pooled'][1]).all()
  assert np.isfinite(outputs['pooled'][0]).all()


@pytest.mark.parametrize('changes, message', [
    ({'variant': 'huge'}, "variant='huge'.*'base', 'large'.*L4_H256"),
    ({'heads': 3}, 'hidden size 16 not divisible by 3 heads'),
    ({'variant': 'L2_H32', 'hidden': 0, 'heads': 0},
     'hidden size 32 not divisible by 0 heads'),
    ({'mixing': 'hybrid', 'layers': 2}, "2 layers with .*'hybrid'.* 3 or more"),
    ({'vocab_size': 0}, 'model.vocab_size=0: expected 1 or more'),
    ({'vocab_size': None}, 'model.vocab_size=None: expected'),
    ({'dropout': 1.0}, 'model.dropout=1.0: expected at least 0, below 1'),
    ({'head': 'classification'}, "num_classes=None with head='classifica"),
    ({'head': 'mlm'}, "head='mlm'.*'pretraining', 'classification'"),
    ({'gelu': True}, "gelu=True.*'tanh', 'erf'"),
    ({'remat': 'stage'}, "remat='stage'.*'none', 'layer', 'dots'"),
])  # fmt: skip
def test_impossible_networks_are_refused_at_once(changes, message):
  with pytest.raises(ValueError, match=message):
    bert.build(tiny(**changes))


@pytest.mark.parametrize('changes, message', [
    ({'input_ids': np.zeros((3, 21))},
     r'input_mask of shape \(3, 20\) with input_ids of \(3, 21\)'),
    ({k: np.zeros((3, 21)) for k in ('input_ids', 'input_mask', 'segment_ids')},
     r'\(3, 21\).*longer than the position table, model.max_position=20'),
    ({'input_ids': np.zeros(20)}, r'input_ids of shape \(20,\).*\[batch, seq'),
    ({'masked_lm_positions': np.zeros((2, 3))},
     r'masked_lm_positions of shape \(2, 3\) with input_ids of \(3, 20\)'),
])  # fmt: skip
def test_impossible_inputs_are_refused_when_traced(changes, message):
  model = bert.build(tiny())
  params, _ = jax.eval_shape(model.init, jax.random.key(0), {})
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(
        lambda p, b: model.apply(p, {}, b, train=False), params,
        batch(**changes),
    )


def test_train_flops_are_those_of_the_published_formula():
  """BERT-Large: 2.406e11 at 128 with 20 predictions, 1.020e12 at 512, 76."""
  large = tiny(variant='large', layers=0, hidden=0, heads=0, ffn=0,
               vocab_size=30522)  # fmt: skip
  assert bert.train_flops(large, 128, 20) == pytest.approx(2.406e11, rel=1e-3)
  assert bert.train_flops(large, 512, 76) == pytest.approx(1.020e12, rel=2e-3)
