"""Labelled text from CSV, TSV, the official GLUE layouts and TFDS."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from configs import common
from input_pipeline import glue, labelled_text, sentences

LETTERS = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']


@pytest.fixture(scope='module')
def vocab(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  tokens = SPECIALS + LETTERS + ['##' + c for c in LETTERS]
  path.write_text('\n'.join(tokens) + '\n')
  return str(path)


def config_for(vocab, path, task='csv', **data):
  config = common.base()
  config.batch_size = 4
  config.data.kind = 'sentences'
  config.data.task = task
  config.data.path = path and str(path)
  config.data.vocab = vocab
  config.data.eval_split = 'dev'
  config.data.seq_length = 16
  for key, value in data.items():
    config.data[key] = value
  return config


def folder(tmp_path, **files):
  for name, text in files.items():
    (tmp_path / name.replace('__', '.')).write_text(text, encoding='utf-8')
  return tmp_path


def labels_of(data, config, split=None):
  return data.evaluate(config, split).references.labels.tolist()


def test_csv_folder(tmp_path, vocab):
  path = folder(
      tmp_path,
      train__csv='\ufeffsentence,label\n"a, b",10\r\n\ncd,9\n"e\nf",10\n',
      dev__tsv='sentence\tlabel\n"ab\t9\n',
  )
  config = config_for(vocab, path)
  data = sentences.Data(config)
  assert data.class_names == ('9', '10')
  assert data.model_fields() == {'num_classes': 2, 'vocab_size': 141}
  assert data.num_examples == 3
  assert data.spec['label'] == ((4,), np.int32)
  assert labels_of(data, config) == [0]
  assert labels_of(data, config, 'train') == [1, 0, 1]
  [batch] = data.evaluate(config)
  tokens = [*SPECIALS, *LETTERS, *('##' + c for c in LETTERS)]
  ids = batch['input_ids'][0][:5]
  assert [tokens[i] for i in ids] == ['[CLS]', '"', 'a', '##b', '[SEP]']


def test_regression_of_pairs(tmp_path, vocab):
  head = 'sentence,sentence2,label\n'
  path = folder(
      tmp_path,
      train__csv=head + 'a,b,0.5\nc,d,-1\n',
      dev__csv=head + 'a,b,2\n',
  )
  config = config_for(vocab, path, regression=True)
  data = sentences.Data(config)
  assert data.class_names is None
  assert data.model_fields()['num_classes'] == 1
  batch = next(data.train(config))
  assert batch['label'].dtype == np.float32
  assert set(batch['label']) == {0.5, -1.0}
  assert batch['segment_ids'][0].tolist() == [0] * 3 + [1] * 2 + [0] * 11


@pytest.mark.parametrize(
    ('train', 'dev', 'message'),
    [
        ('text,label\na,1\n', None, r'train.csv:1: .*sentence,label'),
        ('sentence,label\na,1\nb\n', None, r'train.csv:3: 1 columns'),
        ('sentence,label\n"a,1\nb,0\n', None, r'train.csv:2: no valid CSV'),
        ('sentence,label\n', None, 'no examples'),
        ('', None, 'no examples'),
        ('sentence,label\na,1\nb,\n', None, r'train.csv:3: .*no label'),
        ('sentence\na\n', None, r'train.csv:2: .*no label'),
        ('sentence,label\na,1\nb,1\n', None, "one label only, '1'"),
        (
            'sentence,label\na,1\nb,0\n',
            'sentence,label\na,1\nb,no\nb,yes\n',
            r"dev.csv:3: labels 'no', 'yes' are not among .* '0', '1'",
        ),
        (
            'sentence,label\na,1\nb,0\n',
            'sentence,sentence2,label\na,b,1\n',
            'dev.csv: pairs in one split',
        ),
    ],
)
def test_wrong_files_are_named_with_their_line(
    tmp_path, vocab, train, dev, message
):
  path = folder(tmp_path, train__csv=train, dev__csv=dev or train)
  with pytest.raises(ValueError, match=message):
    sentences.Data(config_for(vocab, path))


def test_text_that_is_not_utf8_is_named(tmp_path, vocab):
  (tmp_path / 'train.csv').write_bytes(b'sentence,label\na,1\n\xe9,0\n')
  with pytest.raises(ValueError, match=r'train.csv:3: not UTF-8'):
    sentences.Data(config_for(vocab, tmp_path))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'task': 'sst'}, "task='sst': accepted are cola, sst2"),
        ({'path': None}, 'data.path=None'),
        ({'vocab': None}, 'data.vocab=None'),
        ({'eval_split': 'test'}, 'expected one of .*test.csv'),
        ({'examples_per_class': 3}, "has 2 of class '0'"),
        ({'regression': True, 'examples_per_class': 1}, 'has no classes'),
        ({'task': 'sst2', 'regression': True}, 'not for sst2'),
    ],
)
def test_impossible_configs_are_refused(tmp_path, vocab, changes, message):
  text = 'sentence,label\na,1\nb,0\nc,0\nd,1\ne,1\n'
  path = folder(tmp_path, train__csv=text, dev__csv=text)
  config = config_for(vocab, path)
  for key, value in changes.items():
    config.data[key] = value
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    sentences.Data(config)


def test_few_examples_of_each_class_are_chosen_by_the_seed(tmp_path, vocab):
  lines = [f'{i},{"abc"[i % 3]}' for i in range(60)]
  text = 'sentence,label\n' + '\n'.join(lines)
  config = config_for(
      vocab, folder(tmp_path, train__csv=text, dev__csv=text)
  )
  config.data.examples_per_class = 4

  def chosen(seed):
    config.seed = seed
    data = sentences.Data(config)
    assert data.num_examples == 12
    config.batch_size = 12
    batch = next(data.train(config))
    assert np.bincount(batch['label']).tolist() == [4, 4, 4]
    assert len(labels_of(data, config)) == 60
    return {tuple(row) for row in batch['input_ids'].tolist()}

  assert chosen(0) == chosen(0)
  assert chosen(0) != chosen(1)


def test_a_single_file_holds_out_a_tenth_without_repeats(tmp_path):
  # Every sentence is there twice, with another label.
  lines = [f'{i // 2},{i % 2}' for i in range(200)]
  path = tmp_path / 'all.csv'
  path.write_text('sentence,label\n' + '\n'.join(lines))
  train, dev = (labelled_text.read(str(path), s) for s in ('train', 'dev'))
  assert (len(train.first), len(dev.first)) == (180, 20)
  assert not set(train.first) & set(dev.first)
  with pytest.raises(ValueError, match="splits 'train' and 'dev', not 'test'"):
    labelled_text.read(str(path), 'test')


# A header, if there is one, and a row of each file as GLUE distributes them.
OFFICIAL = {
    'cola': ('gj04\t0\t*\tThey "sat.\n', 'They "sat.', None, 0),
    'sst2': ('sentence\tlabel\nso good \t1\n', 'so good ', None, 1),
    'mrpc': (
        'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA "x\tB\n',
        'A "x',
        'B',
        1,
    ),
    'qqp': (
        'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tA?\tB?\t0'
        '\n',
        'A?',
        'B?',
        0,
    ),
    'stsb': (
        'index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\t'
        'sentence2\tscore\n0\tg\tf\t2012\t1\ts\ts\tA\tB\t3.25\n',
        'A',
        'B',
        3.25,
    ),
    'qnli': (
        'index\tquestion\tsentence\tlabel\n0\tWhy?\tSo.\tnot_entailment\n',
        'Why?',
        'So.',
        1,
    ),
    'rte': (
        'index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n',
        'A',
        'B',
        0,
    ),
}


@pytest.mark.parametrize('task', OFFICIAL)
def test_official_layouts(tmp_path, vocab, task):
  text, first, second, label = OFFICIAL[task]
  path = folder(tmp_path, train__tsv=text, dev__tsv=text)
  [(part, rows)] = glue.read(task, 'dev', str(path), None)
  assert (part, rows.first) == ('', [first])
  assert rows.second == (second and [second])
  config = config_for(vocab, path, task)
  data = sentences.Data(config)
  assert labels_of(data, config) == [label]


def test_mnli_is_evaluated_in_two_parts(tmp_path, vocab):
  head = 'index\tsentence1\tsentence2\tlabel1\tgold_label\n'
  path = folder(
      tmp_path,
      train__tsv=head + '0\tA\tB\tneutral\tcontradiction\n',
      dev_matched__tsv=head + '0\tA\tB\tx\tneutral\n1\tA\tB\tx\tentailment\n',
      dev_mismatched__tsv=head + '0\tA\tB\tx\tcontradiction\n',
      test_matched__tsv='index\tsentence1\tsentence2\n0\tA\tB\n',
  )
  config = config_for(vocab, path, 'mnli')
  data = sentences.Data(config)
  references = data.evaluate(config).references
  assert references.labels.tolist() == [1, 0, 2]
  assert references.parts == (('matched', 0, 2), ('mismatched', 2, 3))
  assert labels_of(data, config, 'dev_mismatched') == [2]
  assert labels_of(data, config, 'test_matched') == [-1]
  with pytest.raises(ValueError, match=r"no split 'valid': there is \['train'"):
    data.evaluate(config, 'valid')


def test_short_lines_stop_all_tasks_but_qqp(tmp_path):
  path = folder(
      tmp_path, dev__tsv=OFFICIAL['qqp'][0] + 'continued\t\n',
      train__tsv=OFFICIAL['rte'][0] + 'A\tB\n',
  )
  with pytest.warns(UserWarning, match='left out 1 broken lines, .* line 3'):
    [(_, rows)] = glue.read('qqp', 'dev', str(path), None)
  assert rows.first == ['A?']
  with pytest.raises(ValueError, match=r'train.tsv:3: 2 columns'):
    glue.read('rte', 'train', str(path), None)
  with pytest.raises(ValueError, match="column 'sentence', the first line has"):
    glue.read('sst2', 'train', str(path), None)


def test_tfds(tmp_path, vocab):
  features = tfds.features.FeaturesDict({
      'question': tfds.features.Text(),
      'sentence': tfds.features.Text(),
      'label': tfds.features.ClassLabel(names=glue.TASKS['qnli'].names),
      'idx': np.int32,
  })
  rows = [
      (i, {'question': f'q{i}', 'sentence': 's', 'label': int(i < 2), 'idx': i})
      for i in range(5)
  ]
  tfds.dataset_builders.store_as_tfds_dataset(
      name='glue',
      config='qnli',
      version='2.0.0',
      features=features,
      split_datasets={'train': rows, 'validation': rows[::-1]},
      data_dir=str(tmp_path),
  )
  config = config_for(vocab, None, 'qnli', data_dir=str(tmp_path))
  data = sentences.Data(config)
  assert data.class_names == ('entailment', 'not_entailment')
  # In the order of idx, whatever order they are stored in.
  assert labels_of(data, config) == [1, 1, 0, 0, 0]
  config.data.task = 'rte'
  with pytest.raises(FileNotFoundError, match='glue/rte is not prepared'):
    sentences.Data(config)
