"""Batches for BERT pretraining from records written here by hand."""

import collections
import hashlib
import json

import ml_collections
import numpy as np
import pytest
from array_record.python import array_record_module

from input_pipeline import (
    pretraining,
    record_batches,
    text_ops,
)
from input_pipeline.host import tf

TOKENS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
TOKENS += [f'w{i}' for i in range(40)] + ['##a', '##b']
VOCAB = ''.join(f'{token}\n' for token in TOKENS)
CLS, SEP = 2, 3
LENGTH, PREDICTIONS = 16, 3
SIZES = {'train': (9, 14, 7), 'test': (6, 5)}


def _tokens(number):
  """Tokens and boundary of runtime record `number`: 5 to 16 tokens."""
  rng = np.random.default_rng(number)
  first, second = rng.integers(1, 7, 2)
  words = rng.integers(5, len(TOKENS), first + second)
  ids = [CLS, *words[:first], SEP, *words[first:], SEP]
  return np.array(ids), first + 2


def _int64(values):
  values = np.ravel(values)
  return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _serialized(features):
  return tf.train.Example(
      features=tf.train.Features(feature=features)
  ).SerializeToString()


def runtime(number, **changed):
  ids, boundary = _tokens(number)
  features = {
      'input_ids': ids,
      'boundary': boundary,
      'next_sentence_labels': number % 2,
  } | changed
  return _serialized({k: _int64(v) for k, v in features.items()})


def static(number, names=None, **changed):
  """One prediction, at position 1, which a [MASK] hides."""
  ids, boundary = _tokens(number)
  mask = (np.arange(LENGTH) < len(ids)).astype(int)
  slots = np.zeros(PREDICTIONS, int)
  hidden = np.pad(ids, (0, LENGTH - len(ids)))
  hidden[1] = 4
  features = {
      'input_ids': hidden,
      'input_mask': mask,
      'segment_ids': mask * (np.arange(LENGTH) >= boundary),
      'masked_lm_positions': slots + [1, 0, 0],
      'masked_lm_ids': slots + [ids[1], 0, 0],
      'next_sentence_labels': number % 2,
  } | changed
  features = {(names or {}).get(k, k): _int64(v) for k, v in features.items()}
  features['masked_lm_weights'] = tf.train.Feature(
      float_list=tf.train.FloatList(value=[1.0, 0.0, 0.0])
  )
  return _serialized(features)


def _write_file(path, written):
  if path.suffix == '.arrayrecord':
    writer = array_record_module.ArrayRecordWriter(str(path), 'group_size:1')
  else:
    writer = tf.io.TFRecordWriter(str(path))
  for record in written:
    writer.write(record)
  writer.close()


def write(folder, record, container='tfrecord', sizes=None, **metadata):
  """Writes a folder of data; numbers of records go on from split to split."""
  folder.mkdir(parents=True)
  (folder / 'vocab.txt').write_text(VOCAB)
  number, shards = 0, {}
  for split, counts in (sizes or SIZES).items():
    for shard, count in enumerate(counts):
      path = folder / f'{split}-{shard:05d}-of-{len(counts):05d}.{container}'
      written = [record(n) for n in range(number, number + count)]
      _write_file(path, written)
      shards[path.name] = count, path.stat().st_size
      number += count
  (folder / 'metadata.json').write_text(
      json.dumps(
          {
              'format': 'bigtransfer-bert-1',
              'container': container,
              'masking': 'static' if record is static else 'runtime',
              'max_seq_length': LENGTH,
              'max_predictions_per_seq': PREDICTIONS,
              'masked_lm_prob': 0.15,
              'vocab_sha256': hashlib.sha256(VOCAB.encode()).hexdigest(),
              'vocab_size': len(TOKENS),
              'shards': shards,
          }
          | metadata
      )
  )
  return folder


def make_config(path, **data):
  return ml_collections.ConfigDict({
      'seed': 3,
      'batch_size': 8,
      'eval_batch_size': None,
      'data': {
          'path': path and str(path),
          'train_split': 'train',
          'eval_split': 'test',
          'seq_length': LENGTH,
          'max_predictions': PREDICTIONS,
          'masked_lm_prob': 0.15,
          'whole_word': False,
          'shuffle_buffer': 8,
          'lanes': 4,
          'threads': 1,
          'prefetch': 1,
          'vocab': None,
          'eval_examples': 0,
          **data,
      },
  }, convert_dict=True)


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """Returns a function from (record, container) to a folder of them."""
  root, made = tmp_path_factory.mktemp('folders'), {}

  def folder(record, container):
    key = f'{record.__name__}-{container}'
    if key not in made:
      made[key] = write(root / key, record, container)
    return made[key]

  return folder


def _rows(batches):
  """Returns {id: row} of all batches, without padding rows."""
  rows = {}
  for batch in batches:
    for i in np.flatnonzero(batch['mask']):
      assert batch['id'][i] not in rows
      rows[int(batch['id'][i])] = {k: v[i] for k, v in batch.items()}
  return rows


def _take(batches, count):
  return [next(batches) for _ in range(count)]


BOTH = pytest.mark.parametrize('container', ['tfrecord', 'arrayrecord'])
KINDS = pytest.mark.parametrize('record', [runtime, static])


def _masked(number, seed, epoch, **changed):
  options = {
      'vocab_size': len(TOKENS),
      'special_ids': (0, 1, 2, 3, 4),
      'mask_id': 4,
      'seed': seed,
      'epoch': epoch,
      'example_id': number,
      'fraction': 0.15,
      'max_predictions': PREDICTIONS,
      'whole_word': False,
  }
  return text_ops.mask_tokens(_tokens(number)[0], **(options | changed))


def _check_row(row, expected):
  """Compares with `expected`, whose tokens are not padded."""
  ids, boundary = _tokens(row['id'])
  place = np.arange(LENGTH)
  inside = place < len(ids)
  np.testing.assert_array_equal(row['input_mask'], inside)
  segments = (place >= boundary) & inside
  np.testing.assert_array_equal(row['segment_ids'], segments)
  assert row['next_sentence_labels'] == row['id'] % 2
  rest = (0, LENGTH - len(ids))
  expected['input_ids'] = np.pad(expected['input_ids'], rest)
  for key, value in expected.items():
    np.testing.assert_array_equal(row[key], value, err_msg=key)


@BOTH
def test_rows_are_records_padded_and_masked_for_their_epoch(folders, container):
  data = pretraining.Data(make_config(folders(runtime, container)))
  assert data.num_examples == 30
  assert data.model_fields() == {'vocab_size': len(TOKENS)}
  # One lane and row a step, so that every 30 steps are an epoch.
  config = make_config(folders(runtime, container), lanes=1)
  config.batch_size = 1
  batches = data.train(config)
  assert batches.spec['input_ids'] == ((1, LENGTH), np.int32)
  masks = []
  for epoch in range(2):
    rows = _rows(_take(batches, 30))
    assert sorted(rows) == list(range(30))
    for row in rows.values():
      _check_row(row, _masked(row['id'], 3, epoch))
    masks.append([rows[i]['masked_lm_positions'] for i in range(30)])
  assert (np.array(masks[0]) != masks[1]).any(axis=1).mean() > 0.7


def test_keys_shapes_and_types(folders):
  config = make_config(folders(runtime, 'tfrecord'))
  data = pretraining.Data(config, process_index=1, process_count=2)
  tokens, slots = ((8, LENGTH), np.int32), ((8, PREDICTIONS), np.int32)
  assert data.spec == {
      'input_ids': tokens,
      'input_mask': tokens,
      'segment_ids': tokens,
      'masked_lm_positions': slots,
      'masked_lm_ids': slots,
      'masked_lm_weights': ((8, PREDICTIONS), np.float32),
      'next_sentence_labels': ((8,), np.int32),
      'mask': ((8,), np.float32),
      'id': ((8,), np.int64),
  }
  for batch in (next(data.train(config)), *data.evaluate(config)):
    local = {k: ((4, *s[1:]), d) for k, (s, d) in data.spec.items()}
    assert {k: (v.shape, v.dtype) for k, v in batch.items()} == local


def test_segments_and_mask_of_a_short_pair(tmp_path):
  """NVIDIA/NeMo-Speech pull request 58: A of 2 tokens, B of 3, length 12."""
  ids = [CLS, 5, 6, SEP, 7, 8, 9, SEP]
  folder = write(
      tmp_path / 'data',
      lambda n: runtime(n, input_ids=ids, boundary=4),
      sizes={'train': (1,)},
      max_seq_length=12,
  )
  config = make_config(folder, seq_length=12, eval_split='train')
  row = next(iter(pretraining.Data(config).evaluate(config)))
  assert row['segment_ids'][0].tolist() == [0] * 4 + [1] * 4 + [0] * 4
  assert row['input_mask'][0].tolist() == [1] * 8 + [0] * 4
  assert not row['input_ids'][0, 8:].any()


@BOTH
def test_static_records_come_as_they_are(folders, container):
  config = make_config(folders(static, container))
  rows = _rows(pretraining.Data(config).evaluate(config, 'train'))
  assert sorted(rows) == list(range(30))
  for row in rows.values():
    ids, _ = _tokens(row['id'])
    hidden = ids.copy()
    hidden[1] = 4
    _check_row(row, {
        'input_ids': hidden,
        'masked_lm_positions': [1, 0, 0],
        'masked_lm_ids': [ids[1], 0, 0],
        'masked_lm_weights': [1, 0, 0],
    })


@pytest.mark.parametrize('names', [{}, {
    'input_ids': 'input_word_ids', 'segment_ids': 'input_type_ids'
}])
def test_files_that_do_not_describe_themselves(folders, tmp_path, names):
  """Names of files as in NVIDIA's bertPrep.py, of features as in Google's."""
  for name, first, count in (('training', 0, 30), ('test', 30, 11)):
    _write_file(
        tmp_path / f'wikicorpus_en_{name}_0.tfrecord',
        [static(n, names) for n in range(first, first + count)],
    )
  config = make_config(tmp_path)
  with pytest.raises(ValueError, match='set config.data.vocab'):
    pretraining.Data(config)
  described = folders(static, 'tfrecord')
  config.data.vocab = str(described / 'vocab.txt')
  other = make_config(described)
  for split in ('train', 'test'):
    rows = _rows(pretraining.Data(config).evaluate(config, split))
    expected = _rows(pretraining.Data(other).evaluate(other, split))
    np.testing.assert_equal(rows, expected)
  config.data.train_split = '*training_?.tfrecord'
  assert pretraining.Data(config).num_examples == 30
  config.data.max_predictions = 10
  with pytest.raises(ValueError, match='max_predictions=10.* have 3'):
    pretraining.Data(config)


@pytest.mark.parametrize(
    ('container', 'count'), [('tfrecord', 4), ('arrayrecord', 2)]
)
def test_the_global_batch_does_not_depend_on_processes_or_resuming(
    folders, container, count
):
  config = make_config(folders(runtime, container))
  whole = _take(pretraining.Data(config).train(config), 9)
  parts = [
      _take(pretraining.Data(config, i, count).train(config, 5), 4)
      for i in range(count)
  ]
  for step, batch in enumerate(whole[5:]):
    for key, value in batch.items():
      joined = np.concatenate([part[step][key] for part in parts])
      np.testing.assert_array_equal(joined, value, err_msg=key)


@BOTH
@pytest.mark.parametrize(('count', 'limit'), [(1, 0), (3, 0), (2, 7)])
def test_evaluation_has_each_example_once(folders, container, count, limit):
  config = make_config(
      folders(runtime, container), eval_examples=limit, lanes=12
  )
  config.batch_size, config.eval_batch_size = 12, 4
  parts = [
      pretraining.Data(config, i, count).evaluate(config) for i in range(count)
  ]
  assert len({len(part) for part in parts}) == 1
  assert parts[0].num_examples == (limit or 11)
  batches = [batch for part in parts for batch in part]
  rows = _rows(batches)
  assert sorted(rows) == list(range(limit or 11))
  for batch in batches:
    padding = batch['mask'] == 0
    np.testing.assert_array_equal(batch['id'] == -1, padding)
    assert not any(v[padding].any() for k, v in batch.items() if k != 'id')
  for i, row in rows.items():
    expected = _masked(i + 30, 0, 0, example_id=i)
    for key, value in expected.items():
      got = row[key][: len(value)]
      np.testing.assert_array_equal(got, value, err_msg=key)
  again = _rows(batch for part in parts for batch in part)
  np.testing.assert_equal(again, rows)


def test_whole_words(folders):
  config = make_config(folders(runtime, 'tfrecord'), whole_word=True)
  pieces = np.array([token.startswith('##') for token in TOKENS])
  for row in _rows(_take(pretraining.Data(config).train(config), 3)).values():
    expected = _masked(
        row['id'], 3, 0, whole_word=True, is_continuation=pieces
    )
    _check_row(row, expected)


@KINDS
def test_unigram(folders, record):
  counts = collections.Counter(range(len(TOKENS)))
  for number in range(30):
    counts.update(i for i in _tokens(number)[0].tolist() if i > 4)
  expected = np.array([counts[i] for i in range(len(TOKENS))], np.float64)
  for container in ('tfrecord', 'arrayrecord'):
    unigram = pretraining.Data(
        make_config(folders(record, container))
    ).unigram()
    assert unigram.dtype == np.float64
    np.testing.assert_allclose(unigram, expected / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ('record', 'changed', 'message'),
    [
        (runtime, {'seq_length': 64}, '=64, .* made for 16'),
        (static, {'seq_length': 8}, '=8, .* made for 16'),
        (static, {'max_predictions': 10}, '=10, .* have 3'),
        (runtime, {'max_predictions': 1}, '=1 is less than the 2'),
        (runtime, {'eval_split': 'dev'}, "split 'dev'; there is test, train"),
        (runtime, {'lanes': 3}, 'data.lanes=3 must divide batch_size=8'),
    ],
)
def test_configs_that_do_not_fit_the_data(folders, record, changed, message):
  config = make_config(folders(record, 'tfrecord'), **changed)
  with pytest.raises(ValueError, match=message):
    pretraining.Data(config)


@pytest.mark.parametrize(
    ('metadata', 'message'),
    [
        ({'format': 'other-2'}, "format='other-2'"),
        ({'container': 'zip'}, "container='zip'"),
        ({'masked_lm_prob': 0.5}, '=3 is less than the 8'),
        ({'shards': {}}, "no records of the split 'train'"),
        ({'shards': {'train-0': [2, 20]}}, 'train-0 is missing'),
    ],
)
def test_folders_that_do_not_fit(tmp_path, metadata, message):
  folder = write(tmp_path / 'data', static, **metadata)
  with pytest.raises(ValueError, match=message):
    pretraining.Data(make_config(folder))


def test_another_vocabulary(folders, tmp_path):
  other = tmp_path / 'vocab.txt'
  other.write_text(VOCAB + 'more\n')
  config = make_config(folders(runtime, 'tfrecord'), vocab=str(other))
  with pytest.raises(ValueError, match='48 tokens.* is not the vocabulary'):
    pretraining.Data(config)
  other.write_bytes(VOCAB.rstrip().replace('\n', '\r\n').encode())
  pretraining.Data(config)
  folder = write(tmp_path / 'data', runtime)
  (folder / 'vocab.txt').write_text(VOCAB + 'more\n')
  with pytest.raises(ValueError, match='is not the vocabulary'):
    pretraining.Data(make_config(folder))


def test_folders_that_are_not_there_or_not_finished(tmp_path):
  config = make_config(tmp_path / 'no')
  with pytest.raises(ValueError, match='bert_data .*--max_seq_length 16'):
    pretraining.Data(config)
  config = make_config(tmp_path)
  with pytest.raises(ValueError, match='there is nothing'):
    pretraining.Data(config)
  _write_file(tmp_path / 'train-0.tfrecord', [])
  with pytest.raises(ValueError, match='has no records'):
    pretraining.Data(config)
  _write_file(tmp_path / 'train-0.tfrecord', [runtime(0)])
  with pytest.raises(ValueError, match='bert_data was stopped'):
    pretraining.Data(config)


@BOTH
@pytest.mark.parametrize(
    ('record', 'changed', 'message'),
    [
        (runtime, {'input_ids': [CLS, 164930, SEP]}, '164930 .* 47 tokens'),
        (runtime, {'input_ids': [5] * 17}, r'17 is not in \[1, 16\]'),
        (runtime, {'boundary': 20}, 'boundary 20 is not in'),
        (static, {'masked_lm_ids': [47, 0, 0]}, '47 .* 47 tokens'),
        (static, {'input_ids': [5] * 17}, r'needs input_ids.*input_ids \[17\]'),
        (static, {'masked_lm_positions': [16, 0, 0]}, 'positions 16'),
        (static, {'next_sentence_labels': 2}, 'labels 2'),
    ],
)
def test_a_bad_record_is_named(tmp_path, container, record, changed, message):
  """Record 4 of the first file, in training and in evaluation."""
  folder = write(
      tmp_path / 'data',
      lambda n: record(n, **(changed if n == 4 else {})),
      container,
      masking=record.__name__,
  )
  config = make_config(folder, eval_split='train')
  data = pretraining.Data(config)
  where = rf'train-00000.* record 4 \(id 4\): .*{message}'
  with pytest.raises(record_batches.BadRecord, match=where):
    list(data.evaluate(config))
  with pytest.raises(record_batches.BadRecord, match=where):
    _take(data.train(config), 4)


def test_a_damaged_file_is_named(tmp_path):
  folder = write(tmp_path / 'data', runtime)
  path = folder / 'train-00001-of-00003.tfrecord'
  damaged = bytearray(path.read_bytes())
  damaged[200] ^= 1
  path.write_bytes(damaged)
  config = make_config(folder)
  with pytest.raises(record_batches.BadRecord, match='train-00001.*corrupted'):
    _take(pretraining.Data(config).train(config), 4)
  path.write_bytes(damaged[:-9])
  with pytest.raises(ValueError, match='train-00001.* bytes and not'):
    pretraining.Data(config)


def test_closed_batches(folders):
  config = make_config(folders(runtime, 'tfrecord'))
  batches = pretraining.Data(config).train(config)
  next(batches)
  batches.close()
  with pytest.raises(ValueError, match='closed'):
    next(batches)
