"""SQuAD files, windows and answers, on paragraphs of the first addresses.

Washington 1790 and Roosevelt 1941; the questions are made up.
"""

import copy
import json

import numpy as np
import pytest

from configs import common
from input_pipeline import squad, squad_json, text_words, tokenizer

WASHINGTON = (
    'Among the many interesting objects which will engage your attention that'
    ' of providing for the common defense will merit particular regard. To be'
    ' prepared for war is one of the most effectual means of preserving peace.'
)
ROOSEVELT = (
    'In like fashion from 1815 to 1914— ninety-nine years— no single war in'
    ' Europe or in Asia constituted a real threat against our future.'
)


def question(name, text, *answers):
  context = WASHINGTON if name.startswith('w') else ROOSEVELT
  begins = [(a, context.index(a)) for a in answers]
  return {
      'id': name,
      'question': text,
      'answers': [{'text': a, 'answer_start': i} for a, i in begins],
      'is_impossible': not answers,
  }


def dataset():
  washington = [
      question('w1', 'What merits regard?', 'the common defense', 'defense'),
      question('w2', 'What does being prepared for war preserve?', 'peace'),
  ]
  roosevelt = [
      question('r1', 'How long was there no such war?', 'ninety-nine years'),
      question('r2', 'Who threatened Asia in 1950?'),
  ]
  paragraphs = [
      {'context': WASHINGTON, 'qas': washington},
      {'context': ROOSEVELT, 'qas': roosevelt},
  ]
  return {'version': 'v2.0', 'data': [{'title': 'a', 'paragraphs': paragraphs}]}


@pytest.fixture(scope='module')
def vocab(tmp_path_factory):
  path = tmp_path_factory.mktemp('vocab') / 'vocab.txt'
  words = set()
  for text in (WASHINGTON, ROOSEVELT, *'?—-.'):
    words |= set(text_words.split(text))
  # Cut in two, so that pieces are tested too.
  words -= {'defense', 'ninety'}
  words |= {'def', '##ense', 'nine', '##ty', 'what', 'who', 'how'}
  specials = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
  path.write_text('\n'.join(specials + sorted(words)) + '\n')
  return str(path)


def config_for(vocab, path, **data):
  config = common.base()
  config.batch_size = config.eval_batch_size = 4
  config.squad.version = '2.0'
  config.data.kind = 'squad'
  config.data.path = str(path)
  config.data.vocab = vocab
  config.data.eval_split = 'dev'
  config.data.seq_length = 80
  config.data.max_query_length = 12
  config.data.doc_stride = 8
  for key, value in data.items():
    config.data[key] = value
  return config


def written(tmp_path, tree, version='2.0'):
  for split in ('train', 'dev'):
    path = tmp_path / f'{split}-v{version}.json'
    path.write_text(json.dumps(tree), encoding='utf-8')
  return tmp_path


def rows(batches):
  parts = list(batches)
  joined = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
  return {k: v[joined['id'] >= 0] for k, v in joined.items()}


def all_training_rows(data, config, count):
  config.batch_size = count
  batch = next(data.train(config))
  order = np.argsort(batch['id'])
  return {k: v[order] for k, v in batch.items()}


def test_answers_are_at_their_tokens(tmp_path, vocab):
  config = config_for(vocab, written(tmp_path, dataset()))
  data = squad.Data(config)
  assert data.num_examples == 4  # One window each.
  batch = all_training_rows(data, config, 4)
  tokens = tokenizer.WordPieceTokenizer(vocab).vocab
  found = [
      [tokens[i] for i in ids[start : end + 1]]
      for ids, start, end in zip(
          batch['input_ids'],
          batch['start_positions'],
          batch['end_positions'],
          strict=True,
      )
  ]
  assert found == [
      ['the', 'common', 'def', '##ense'],
      ['peace'],
      ['nine', '##ty', '-', 'nine', 'years'],
      ['[CLS]'],
  ]
  first = [tokens[i] for i in batch['input_ids'][0]]
  assert first[:7] == [
      '[CLS]', 'what', '[UNK]', 'regard', '?', '[SEP]', 'among'
  ]
  assert batch['segment_ids'][0][:7].tolist() == [0] * 6 + [1]


def test_windows_cover_the_paragraph_and_know_their_characters(tmp_path, vocab):
  path = written(tmp_path, dataset())
  config = config_for(vocab, path, seq_length=32)
  data = squad.Data(config)
  evaluated = data.evaluate(config)
  references = evaluated.references
  batch = rows(evaluated)
  assert len(references.windows) == len(batch['id']) > 8
  tokens = tokenizer.WordPieceTokenizer(vocab).vocab
  texts = {}
  for window, ids in zip(references.windows, batch['input_ids'], strict=True):
    q = references.questions[window.question]
    for i, (begin, end) in enumerate(window.offsets):
      text = q.context[begin:end].lower()
      assert tokens[ids[window.prefix + i]].removeprefix('##') == text
    best = window.offsets[window.max_context]
    texts.setdefault(q.id, []).extend(map(tuple, best))
  for q in references.questions:
    # Each token has most context in exactly one window.
    _, offsets = tokenizer.WordPieceTokenizer(vocab).offsets(q.context)
    assert sorted(texts[q.id]) == sorted(offsets)


def test_an_answer_outside_the_window_points_to_cls(tmp_path, vocab):
  path = written(tmp_path, dataset())
  config = config_for(vocab, path, seq_length=32)
  data = squad.Data(config)
  windows = data.evaluate(config).references.windows
  batch = all_training_rows(data, config, len(windows))
  tokens = tokenizer.WordPieceTokenizer(vocab).vocab
  found = {}
  for window, ids, start, end in zip(
      windows,
      batch['input_ids'],
      batch['start_positions'],
      batch['end_positions'],
      strict=True,
  ):
    text = ' '.join(tokens[i] for i in ids[start : end + 1])
    found.setdefault(window.question, set()).add(text)
  assert found == {
      0: {'the common def ##ense', '[CLS]'},
      1: {'peace', '[CLS]'},
      2: {'nine ##ty - nine years', '[CLS]'},
      3: {'[CLS]'},
  }


def test_windows_follow_run_squad():
  assert squad.cut(10, 20, 4) == [(0, 10)]
  assert squad.cut(20, 20, 4) == [(0, 20)]
  assert squad.cut(25, 10, 4) == [(0, 10), (4, 14), (8, 18), (12, 22), (16, 25)]
  # A stride beyond the room leaves no gap.
  assert squad.cut(7, 3, 9) == [(0, 3), (3, 6), (6, 7)]


def test_max_context_of_the_example_in_run_squad():
  # the man went to the | to the store and bought | and bought a gallon of
  best = squad.max_context([(0, 5), (3, 8), (6, 11)])
  assert not best[1][7 - 3] and best[2][7 - 6]  # 'bought'
  # Where the smaller sides are equal the longer window wins, then the first.
  assert squad.max_context([(0, 3), (2, 6)])[1].tolist() == [True] * 4
  assert squad.max_context([(0, 3), (2, 5)])[0].tolist() == [True] * 3


def damaged(change):
  tree = copy.deepcopy(dataset())
  change(tree['data'][0]['paragraphs'][0], tree)
  return tree


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda p, t: t.pop('data'), r"json: the key 'data' is missing"),
        (lambda p, t: t.update(data=[]), r'has no questions'),
        (lambda p, t: t.update(data={}), r'data: must be a list, found an obj'),
        (
            lambda p, t: p.pop('context'),
            r"data\[0\].paragraphs\[0\]: the key 'context'",
        ),
        (lambda p, t: p.update(context=' '), r'paragraphs\[0\]: context is bl'),
        (
            lambda p, t: p['qas'][1].pop('id'),
            r"paragraphs\[0\].qas\[1\]: the key 'id'",
        ),
        (lambda p, t: p['qas'][1].update(id='w1'), r"qas\[1\]: id 'w1' is"),
        (
            lambda p, t: p['qas'][0]['answers'][1].update(answer_start='3'),
            r'answers\[1\].answer_start: must be an integer, found a string',
        ),
        (
            lambda p, t: p['qas'][0]['answers'][0].update(answer_start=3),
            r"qas\[0\]: the answer 'the common defense' is not at character 3",
        ),
        (lambda p, t: p['qas'][0].update(answers=[]), r'qas\[0\]: no answer'),
        (
            lambda p, t: p['qas'][0].update(is_impossible=True),
            r'qas\[0\]: is_impossible, but',
        ),
    ],
)
def test_malformed_files_are_named_with_the_place(
    tmp_path, vocab, change, message
):
  path = written(tmp_path, damaged(change))
  with pytest.raises(ValueError, match=message):
    squad.Data(config_for(vocab, path))


def test_no_json_and_the_wrong_version(tmp_path):
  path = tmp_path / 'train-v1.1.json'
  with pytest.raises(FileNotFoundError, match='no SQuAD file'):
    squad_json.read(str(path), '1.1')
  path.write_text('{"data":\n[}')
  with pytest.raises(ValueError, match=r'json:2: no valid JSON: .*column 2'):
    squad_json.read(str(path), '1.1')
  path.write_text(json.dumps(dataset()))
  with pytest.raises(ValueError, match=r"qas\[1\]: no answer .*version='2.0'"):
    squad_json.read(str(path), '1.1')


def test_sizes_that_do_not_fit_are_refused(tmp_path, vocab):
  path = written(tmp_path, dataset())
  with pytest.raises(ValueError, match='seq_length=15 leaves no room'):
    squad.Data(config_for(vocab, path, seq_length=15))
