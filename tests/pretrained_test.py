"""Names and files of BERT elsewhere, there and back."""

import json
import os
import pathlib
import runpy

import jax
import ml_collections
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from bigtransfer import bert_interchange, export, pretrained, saved, trees
from bigtransfer.models import bert, bert_config

GOLDEN = pathlib.Path(__file__).parent / 'golden'
PARAMS = runpy.run_path(str(GOLDEN / 'make_bert_params.py'))
THEIRS = runpy.run_path(str(GOLDEN / 'make_transformers_bert.py'))


def tiny(**changes):
  return PARAMS['section'](**{
      'variant': 'tiny', 'layers': 3, 'hidden': 16, 'heads': 2, 'ffn': 24,
      'vocab_size': 31, 'max_position': 20, **changes,
  })  # fmt: skip


def make(config, seed=0):
  shapes, _ = jax.eval_shape(bert.build(config).init, jax.random.key(0), {})
  rng = np.random.default_rng(seed)
  return jax.tree.map(
      lambda a: rng.normal(size=a.shape).astype(np.float32), shapes
  )


def assert_equal(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


# Of bert_model.ckpt, from google-research/bert: [names of one layer are
# repeated], shapes for hidden 16, inner size 24, 31 words, 20 positions.
TF_SHAPES = {
    'bert/embeddings/word_embeddings': (31, 16),
    'bert/embeddings/token_type_embeddings': (2, 16),
    'bert/embeddings/position_embeddings': (20, 16),
    'bert/embeddings/LayerNorm/gamma': (16,),
    'bert/embeddings/LayerNorm/beta': (16,),
    'bert/pooler/dense/kernel': (16, 16),
    'bert/pooler/dense/bias': (16,),
    'cls/predictions/transform/dense/kernel': (16, 16),
    'cls/predictions/transform/dense/bias': (16,),
    'cls/predictions/transform/LayerNorm/gamma': (16,),
    'cls/predictions/transform/LayerNorm/beta': (16,),
    'cls/predictions/output_bias': (31,),
    'cls/seq_relationship/output_weights': (2, 16),
    'cls/seq_relationship/output_bias': (2,),
}
TF_LAYER = {
    'attention/self/query/kernel': (16, 16),
    'attention/self/query/bias': (16,),
    'attention/self/key/kernel': (16, 16),
    'attention/self/key/bias': (16,),
    'attention/self/value/kernel': (16, 16),
    'attention/self/value/bias': (16,),
    'attention/output/dense/kernel': (16, 16),
    'attention/output/dense/bias': (16,),
    'attention/output/LayerNorm/gamma': (16,),
    'attention/output/LayerNorm/beta': (16,),
    'intermediate/dense/kernel': (16, 24),
    'intermediate/dense/bias': (24,),
    'output/dense/kernel': (24, 16),
    'output/dense/bias': (16,),
    'output/LayerNorm/gamma': (16,),
    'output/LayerNorm/beta': (16,),
}


def tf_tensors():
  shapes = TF_SHAPES | {
      f'bert/encoder/layer_{i}/{k}': v
      for i in range(3) for k, v in TF_LAYER.items()
  }  # fmt: skip
  rng = np.random.default_rng(0)
  return {
      k: rng.normal(size=v).astype(np.float32) for k, v in shapes.items()
  }


def test_tensorflow_names():
  tensors = tf_tensors()
  params = bert_interchange.from_tf(tensors | {
      'bert/pooler/dense/kernel/adam_m': np.zeros((16, 16)),
      'bert/pooler/dense/kernel/adam_v': np.zeros((16, 16)),
      'global_step': np.zeros(()),
  })  # fmt: skip
  assert trees.mismatch(params, make(tiny())) is None
  query = params['encoder']['layers']['query']['kernel']
  np.testing.assert_array_equal(
      query[2], tensors['bert/encoder/layer_2/attention/self/query/kernel']
  )
  nsp = tensors['cls/seq_relationship/output_weights']
  np.testing.assert_array_equal(params['nsp']['kernel'], nsp.T)
  assert_equal(bert_interchange.to_tf(params), tensors)


def test_hugging_face_names():
  params = bert_interchange.from_tf(tf_tensors())
  tensors = bert_interchange.to_hf(params)
  assert set(tensors) == set(np.load(THEIRS['PATH'])['names'])
  assert_equal(bert_interchange.from_hf(tensors), params)
  # Without prefix, with tied copies, and as files from before 2019 have it.
  words = tensors['bert.embeddings.word_embeddings.weight']
  variants = [
      {k.removeprefix('bert.'): v for k, v in tensors.items()},
      tensors | {'cls.predictions.decoder.weight': words},
      tensors | {'bert.embeddings.position_ids': np.arange(20)[None]},
      {
          k.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias',
                                                         'Norm.beta'): v
          for k, v in tensors.items()
      },
  ]
  for variant in variants:
    assert bert_interchange.detect(variant) == 'hf'
    assert_equal(bert_interchange.from_hf(variant), params)
  # A kernel is [out, in] there.
  np.testing.assert_array_equal(
      tensors['bert.encoder.layer.1.intermediate.dense.weight'],
      params['encoder']['layers']['intermediate']['kernel'][1].T,
  )


@pytest.mark.parametrize('drop, add, message', [
    (['bert/pooler/dense/bias'], {}, r'missing \[.bert/pooler/dense/bias'),
    (['cls/predictions/output_bias'], {}, 'missing .*cls/predictions/output_b'),
    (['bert/encoder/layer_1/output/dense/bias'], {},
     'BERT of 3 layers: missing .*layer_1/output/dense/bias'),
    ([], {'bert/encoder/layer_1/gate': (3,)}, 'unknown .*layer_1/gate'),
    ([], {'bert/encoder/layer_1/output/dense/kernel': (16, 16)},
     r'layer_1/output/dense/kernel has shape \(16, 16\), but .*layer_0'),
    ([], {'bert/embeddings/position_embeddings': (20, 8)},
     r'position/embedding has shape \(20, 8\), expected \(20, 16\)'),
    ([], {'cls/predictions/output_bias': (32,)},
     r'mlm/bias has shape \(32,\), expected \(31,\)'),
])  # fmt: skip
def test_other_tensors_are_refused_by_name(drop, add, message):
  tensors = tf_tensors() | {k: np.zeros(v) for k, v in add.items()}
  for name in drop:
    del tensors[name]
  with pytest.raises(ValueError, match=message):
    bert_interchange.from_tf(tensors)


def test_an_output_table_that_is_not_tied_is_refused():
  tensors = bert_interchange.to_hf(bert_interchange.from_tf(tf_tensors()))
  tensors['cls.predictions.decoder.weight'] = np.zeros((31, 16), np.float32)
  with pytest.raises(ValueError, match='decoder.weight differs'):
    bert_interchange.from_hf(tensors)


@pytest.mark.parametrize('head, names', [
    ('pretraining', {'cls.predictions.bias', 'cls.seq_relationship.weight'}),
    ('classification', {'classifier.weight', 'classifier.bias'}),
    ('span', {'qa_outputs.weight', 'qa_outputs.bias'}),
    ('none', {'embeddings.word_embeddings.weight'}),
])  # fmt: skip
@pytest.mark.parametrize('layout', ['hf', 'tf', 'own'])
def test_saved_and_loaded(tmp_path, layout, head, names):
  config = tiny(head=head, num_classes=5)
  params = make(config)
  path = str(tmp_path / 'bert')
  pretrained.save(path, params, layout=layout, config=config)
  assert_equal(pretrained.load(path), params)
  if layout == 'hf':
    file = os.path.join(path, pretrained.WEIGHTS)
    assert names <= set(safetensors_numpy.load_file(file))
    section = bert_config.from_json(
        json.loads((tmp_path / 'bert' / 'config.json').read_text())
    )
    again = ml_collections.ConfigDict({**config.to_dict(), **section})
    assert bert.size(again) == bert.size(config)
    assert again.vocab_size == 31 and again.max_position == 20


def test_heads_are_kept_dropped_or_zero(tmp_path):
  path = str(tmp_path / 'bert')
  params = make(tiny())
  pretrained.save(path, params, config=tiny())
  body = {k: params[k] for k in ('embeddings', 'encoder', 'pooler')}
  assert_equal(pretrained.load(path, head='drop'), body)
  zero = pretrained.load(path, head='zero', num_classes=7)
  head = {'kernel': np.zeros((16, 7)), 'bias': np.zeros(7)}
  assert_equal(zero, body | {'head': head})
  for options in ({'head': 'zero'}, {'num_classes': 7}, {'head': 'none'}):
    with pytest.raises(ValueError, match='head='):
      pretrained.load(path, **options)


def test_padding_of_the_vocabulary_is_cut_and_comes_back(tmp_path):
  exact, padded = tiny(), tiny(vocab_multiple=16)
  params = make(padded)
  path = str(tmp_path / 'bert')
  pretrained.save(path, params, config=padded)
  loaded = pretrained.load(path)
  assert trees.mismatch(loaded, make(exact)) is None
  words = params['embeddings']['word']['embedding']
  found = loaded['embeddings']['word']['embedding']
  np.testing.assert_array_equal(found, words[:31])
  assert_equal(pretrained.fit(loaded, make(exact), None, exact), loaded)
  again = pretrained.fit(loaded, params, None, padded)
  expected = np.concatenate([words[:31], np.zeros((1, 16), np.float32)])
  np.testing.assert_array_equal(
      again['embeddings']['word']['embedding'], expected
  )
  assert again['mlm']['bias'].shape == (32,) and again['mlm']['bias'][31] == 0
  other = tiny(vocab_size=30)
  with pytest.raises(ValueError, match='of 31 rows, but model.vocab_size=30'):
    pretrained.fit(loaded, make(other), None, other)
  with pytest.raises(ValueError, match='of 31 rows, but .*=30 padded to 32'):
    other = tiny(vocab_size=30, vocab_multiple=16)
    pretrained.save(path, loaded, config=other)


def test_extended_positions_keep_the_rows_there_are():
  params = make(tiny())
  table = params['embeddings']['position']['embedding']
  longer = pretrained.extend_positions(params, 24)
  assert trees.mismatch(longer, make(tiny(max_position=24))) is None
  new = longer['embeddings']['position']['embedding']
  np.testing.assert_array_equal(new[:20], table)
  np.testing.assert_array_equal(new[20:], 0)
  fresh = np.ones((24, 16), np.float32)
  new = pretrained.extend_positions(params, 24, fresh)
  np.testing.assert_array_equal(
      new['embeddings']['position']['embedding'],
      np.concatenate([table, fresh[20:]]),
  )
  with pytest.raises(ValueError, match='20 rows cannot be extended to 10'):
    pretrained.extend_positions(params, 10)


def test_files_of_others_are_refused(tmp_path):
  path = str(tmp_path / 'a.safetensors')
  for content, message in (
      (b'no', 'is no .safetensors file'),
      (safetensors_numpy.save({'x': np.zeros(1)}), r"hold a BERT.*\['x'\]"),
  ):
    with open(path, 'wb') as f:
      f.write(content)
    with pytest.raises(ValueError, match=message):
      pretrained.load(path)
  (tmp_path / 'bert_model.ckpt.index').touch()
  for name, message in (
      ('bert_model.ckpt', 'input_pipeline.tf_checkpoint'),
      ('BiT-M-R50x1.npz', 'BiT weights cannot be read'),
  ):
    with pytest.raises(ValueError, match=message):
      pretrained.load(str(tmp_path / name))
  with pytest.raises(FileNotFoundError, match='neither a .safetensors'):
    pretrained.load(str(tmp_path / 'nothing'))


def test_parameters_that_others_do_not_have_are_not_saved(tmp_path):
  for changes, message in (
      ({'mixing': 'fourier'}, 'mixing=.fourier.'),
      ({'mixing': 'hybrid'}, 'mixing=.hybrid.'),
  ):
    config = tiny(**changes)
    with pytest.raises(ValueError, match=message):
      pretrained.save(str(tmp_path / 'x'), make(config), config=config)
    own = str(tmp_path / 'own.safetensors')
    pretrained.save(own, make(config), layout='own', config=config)
    assert_equal(pretrained.load(own), make(config))
  with pytest.raises(ValueError, match='ffn=24, but a model section with 48'):
    pretrained.save(str(tmp_path / 'y'), make(tiny()), config=tiny(ffn=48))
  assert not (tmp_path / 'x').exists() and not (tmp_path / 'y').exists()


@pytest.mark.parametrize('values, gelu', [
    ({'hidden_act': 'gelu'}, 'tanh'),
    ({'hidden_act': 'gelu', 'model_type': 'bert'}, 'erf'),
    ({'hidden_act': 'gelu_new', 'model_type': 'bert'}, 'tanh'),
])  # fmt: skip
def test_gelu_of_a_config_depends_on_whose_it_is(values, gelu):
  values = {**THEIRS['CONFIG'], 'model_type': None, **values}
  values = {k: v for k, v in values.items() if v is not None}
  assert bert_config.from_json(values)['gelu'] == gelu


@pytest.mark.parametrize('changes', [
    {'hidden_act': 'relu'}, {'model_type': 'roberta'},
    {'position_embedding_type': 'relative_key'}, {'layer_norm_eps': 1e-5},
    {'type_vocab_size': 1},
])  # fmt: skip
def test_configs_of_other_networks_are_refused(changes):
  key, value = list(changes.items())[0]
  with pytest.raises(ValueError, match=f'{key}={value!r}, expected one of'):
    bert_config.from_json(THEIRS['CONFIG'] | changes)


def shapes_of(params):
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here), params
  )


@pytest.mark.parametrize('layout', ['hf', 'tf', 'own'])
def test_a_run_may_start_from_a_file_with_other_heads(tmp_path, layout):
  params = make(tiny())
  path = str(tmp_path / 'bert')
  pretrained.save(path, params, layout=layout, config=tiny())
  config = tiny(head='classification', num_classes=5)
  fresh = make(config, seed=1)
  start = export.initial_params(
      path, shapes_of(fresh), model=config, fresh=fresh
  )
  body = {k: params[k] for k in ('embeddings', 'encoder', 'pooler')}
  assert_equal(start, body | {'head': fresh['head']})
  other = tiny(ffn=48)
  with pytest.raises(
      saved.MismatchError,
      match=r'init_from=.*intermediate/bias of shape \(3, 24\), not \(3, 48\)',
  ):
    export.initial_params(
        path, shapes_of(make(other)), model=other, fresh=make(other)
    )


def test_another_network_of_the_same_shapes_is_refused(tmp_path):
  """Neither heads nor the GELU show in the shapes."""
  path = str(tmp_path / 'bert')
  pretrained.save(path, make(tiny()), layout='hf', config=tiny())
  pretrained.check_config(path, tiny())
  other = tiny(heads=4, gelu='erf')
  with pytest.raises(
      saved.MismatchError,
      match='--config.model.heads=2 --config.model.gelu=tanh',
  ):
    export.initial_params(
        path, shapes_of(make(other)), model=other, fresh=make(other)
    )


def test_a_longer_position_table_is_an_opt_in(tmp_path):
  params = make(tiny())
  path = str(tmp_path / 'bert.safetensors')
  pretrained.save(path, params, layout='own', config=tiny())
  longer = tiny(max_position=24)
  fresh = make(longer, seed=1)
  with pytest.raises(saved.MismatchError, match='position'):
    export.initial_params(path, shapes_of(fresh), model=longer, fresh=fresh)
  longer.extend_positions = True
  start = export.initial_params(
      path, shapes_of(fresh), model=longer, fresh=fresh
  )
  got, new, old = (
      p['embeddings']['position']['embedding'] for p in (start, fresh, params)
  )
  np.testing.assert_array_equal(got, np.concatenate([old, new[20:]]))
