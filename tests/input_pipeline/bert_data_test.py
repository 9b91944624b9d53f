"""bert_data: what it writes, the same however it is run, and its refusals."""

import glob
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from array_record.python import array_record_module

from input_pipeline import bert_data, bert_options, bert_shards, text_ops
from input_pipeline.host import tf

SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
PAD, UNK, CLS, SEP, MASK = range(5)
WORDS = 200  # of documents d: a word says which document it is from.


@pytest.fixture
def vocab(tmp_path):
  path = tmp_path / 'vocab.txt'
  words = [f'w{d}x' for d in range(WORDS)]
  path.write_text('\n'.join([*SPECIALS, *words, '##s', 'a', 'b']) + '\n')
  return str(path)


def write_documents(path, count, sentences=20):
  """Document d holds its own word alone; sentence s has 3 to 9 of them."""
  rng = random.Random(0)
  documents = []
  for d in range(count):
    lengths = [rng.randint(3, 9) for _ in range(sentences)]
    documents.append('\n'.join(' '.join([f'w{d}x'] * n) for n in lengths))
  path.write_text('\n\n'.join(documents) + '\n')
  return str(path)


def run(text, vocab, output, *options):
  command = ['--input', str(text), '--vocab', vocab, '--output', str(output)]
  return bert_data.main([*command, '--max_seq_length', '32', *options])


def examples(folder, split='train'):
  found = []
  paths = sorted(glob.glob(f'{folder}/{split}-*'))
  for record in tf.data.TFRecordDataset(paths).as_numpy_iterator():
    features = tf.train.Example.FromString(record).features.feature
    found.append({
        k: np.array(f.int64_list.value or f.float_list.value)
        for k, f in features.items()
    })
  return found


def files(folder):
  return {
      path: open(os.path.join(folder, path), 'rb').read()
      for path in sorted(os.listdir(folder))
  }


def metadata(folder):
  with open(os.path.join(folder, 'metadata.json')) as file:
    return json.load(file)


def error(capsys):
  lines = capsys.readouterr().err.splitlines()
  assert lines[-1].startswith('error: ') or ': error: ' in lines[-1], lines
  return lines[-1]


def test_runtime_records(tmp_path, vocab):
  text = write_documents(tmp_path / 't.txt', 30)
  assert run(text, vocab, tmp_path / 'out', '--shards', '3') == 0
  found = examples(tmp_path / 'out')
  for example in found:
    ids, boundary = example['input_ids'], example['boundary'][0]
    assert len(ids) <= 32
    assert ids[0] == CLS and ids[boundary - 1] == SEP and ids[-1] == SEP
    first, second = ids[1 : boundary - 1], ids[boundary:-1]
    assert len(set(first)) == len(set(second)) == 1
    # T04: a segment called random is from another document.
    assert (first[0] != second[0]) == example['next_sentence_labels'][0]
  data = metadata(tmp_path / 'out')
  assert data['num_examples'] == {'train': len(found)}
  assert data['num_documents'] == 30
  words = open(text).read().split()
  assert data['num_tokens'] == len(words)
  assert list(data['shards']) == [
      f'train-0000{i}-of-00003.tfrecord' for i in range(3)
  ]
  assert sorted(os.listdir(tmp_path / 'out')) == [
      'metadata.json', *data['shards'], 'vocab.txt'
  ]  # fmt: skip


def test_two_short_sentences(tmp_path, vocab):
  """[CLS] a a [SEP] b b b [SEP], padded to 12: T13."""
  (tmp_path / 't.txt').write_text('a a\nb b b\n\nw1x\n')
  options = ('--masking', 'static', '--dupe_factor', '9', '--workers', '1')
  options += ('--max_predictions_per_seq', '4', '--short_seq_prob', '0')
  command = ['--input', f'{tmp_path}/t.txt', '--vocab', vocab, *options]
  command += ['--output', f'{tmp_path}/out', '--max_seq_length', '12']
  assert bert_data.main(command) == 0
  a, b = 206, 207
  pairs = [
      e for e in examples(tmp_path / 'out') if not e['next_sentence_labels'][0]
  ]
  assert pairs
  for e in pairs:
    count = int(e['masked_lm_weights'].sum())
    assert count == 1  # 8 * 0.15 is 1.2.
    ids = e['input_ids'].copy()
    ids[e['masked_lm_positions'][:count]] = e['masked_lm_ids'][:count]
    assert ids.tolist() == [CLS, a, a, SEP, b, b, b, SEP, 0, 0, 0, 0]
    assert e['input_mask'].tolist() == [1] * 8 + [0] * 4
    assert e['segment_ids'].tolist() == [0] * 4 + [1] * 4 + [0] * 4
    assert e['masked_lm_positions'][1:].tolist() == [0, 0, 0]
    assert e['masked_lm_ids'].dtype == np.int64


@pytest.mark.parametrize('whole_word', ['true', 'false'])
def test_static_masks_are_those_of_mask_tokens(tmp_path, vocab, whole_word):
  """Unmasked and masked again, with the id that the record has."""
  text = tmp_path / 't.txt'
  rng = random.Random(1)
  words = [rng.choice(['w1xsss', 'w2x', 'as']) for _ in range(1600)]
  lines = [' '.join(words[i : i + 20]) for i in range(0, 1600, 20)]
  documents = ('\n'.join(lines[i : i + 50]) for i in range(0, 80, 20))
  text.write_text('\n\n'.join(documents))
  options = ('--masking', 'static', '--dupe_factor', '2', '--shards', '1')
  options += ('--whole_word_mask', whole_word)
  assert run(text, vocab, tmp_path / 'out', *options) == 0
  found = examples(tmp_path / 'out')
  assert len(found) > 60
  size = 5 + WORDS + 3

  def is_masked(e, copy, number):
    count, length = int(e['masked_lm_weights'].sum()), e['input_mask'].sum()
    ids = e['input_ids'][:length].copy()
    ids[e['masked_lm_positions'][:count]] = e['masked_lm_ids'][:count]
    expected = text_ops.mask_tokens(
        ids,
        vocab_size=size,
        special_ids=range(5),
        mask_id=MASK,
        seed=12345,
        epoch=copy,
        example_id=number,
        fraction=0.15,
        max_predictions=5,
        whole_word=whole_word == 'true',
        is_continuation=np.arange(size) == 5 + WORDS,
    )
    expected['input_ids'] = np.pad(expected['input_ids'], (0, 32 - length))
    return all(np.array_equal(v, e[k]) for k, v in expected.items())

  (second,) = (n for n, e in enumerate(found) if is_masked(e, 1, 0))
  assert second > 30
  assert all(is_masked(e, 0, n) for n, e in enumerate(found[:second]))
  assert all(is_masked(e, 1, n) for n, e in enumerate(found[second:]))


@pytest.mark.parametrize('container', ['tfrecord', 'arrayrecord'])
def test_workers_do_not_matter(tmp_path, vocab, container, monkeypatch):
  text = write_documents(tmp_path / 't.txt', 60)
  options = ('--container', container, '--dupe_factor', '3')
  options += ('--test_fraction', '0.2')
  made = []
  for workers in ('1', '3'):
    output = tmp_path / workers
    assert run(text, vocab, output, *options, '--workers', workers) == 0
    made.append(files(output))
  assert made[0] == made[1] and len(made[0]) == 18
  if container == 'arrayrecord':
    for name, (count, _) in metadata(output)['shards'].items():
      reader = array_record_module.ArrayRecordReader(str(output / name))
      assert reader.num_records() == count
      reader.close()


def test_the_seed_matters(tmp_path, vocab):
  text = write_documents(tmp_path / 't.txt', 20)
  for seed in '12':
    assert run(text, vocab, tmp_path / seed, '--seed', seed) == 0
  name = 'train-00000-of-00008.tfrecord'
  assert files(tmp_path / '1')[name] != files(tmp_path / '2')[name]


def test_blocks_do_not_lose_documents(tmp_path, vocab, monkeypatch):
  """Each document comes once, wherever the text is cut."""
  text = write_documents(tmp_path / 't.txt', 50, sentences=3)
  for size in (100, 333, 1000):
    monkeypatch.setattr(bert_options, 'BLOCK_BYTES', size)
    options = ('--workers', '1', '--shards', '2')
    assert run(text, vocab, tmp_path / str(size), *options) == 0
    data = metadata(tmp_path / str(size))
    assert data['num_documents'] == 50
    assert data['num_tokens'] == len(open(text).read().split())


def test_an_interrupted_run_goes_on(tmp_path, vocab, monkeypatch, capsys):
  text = write_documents(tmp_path / 't.txt', 60)
  options = ('--workers', '1', '--shards', '4', '--masking', 'runtime')
  assert run(text, vocab, tmp_path / 'whole', *options) == 0
  write, output = bert_shards.write, tmp_path / 'out'

  def interrupted(options, shard, advance):
    if shard == 2:
      raise OSError('disk full')
    return write(options, shard, advance)

  monkeypatch.setattr(bert_shards, 'write', interrupted)
  assert run(text, vocab, output, *options) == 1
  assert error(capsys) == 'error: disk full'
  assert not (output / 'metadata.json').exists()
  before = os.stat(output / 'train-00001-of-00004.tfrecord')
  # Of other options it is not gone on with.
  assert run(text, vocab, output, *options, '--seed', '7') == 2
  assert 'seed=12345 and not 7' in error(capsys)
  calls = []
  monkeypatch.setattr(
      bert_shards, 'write', lambda *args: calls.append(args[1]) or write(*args)
  )
  # A file that is not whole is made again.
  os.truncate(output / 'train-00000-of-00004.tfrecord', 100)
  assert run(text, vocab, output, *options) == 0
  assert calls == [0, 2, 3]
  assert os.stat(output / 'train-00001-of-00004.tfrecord') == before
  assert files(output) == files(tmp_path / 'whole')
  # Once more does nothing; other text is refused.
  assert run(text, vocab, output, *options) == 0 and calls == [0, 2, 3]
  write_documents(tmp_path / 't.txt', 61)
  assert run(text, vocab, output, *options) == 2
  assert 'text that is other' in error(capsys)


def test_held_out_documents(tmp_path, vocab):
  text = write_documents(tmp_path / 't.txt', 100)
  options = ('--test_fraction', '0.2', '--shards', '2', '--workers', '1')
  assert run(text, vocab, tmp_path / 'out', *options) == 0
  words = {}
  for split in ('train', 'test'):
    found = examples(tmp_path / 'out', split)
    words[split] = {i for e in found for i in e['input_ids']}
  assert words['train'] & words['test'] == {CLS, SEP}
  assert len(words['train'] | words['test']) == 102
  assert 10 < len(words['test']) < 35


@pytest.mark.parametrize(
    'data',
    [
        b'a a\nb\n\na b\nb\n',
        b'a a\r\nb\r\n\r\na b\r\nb\r\n',
        b'\n \na a\nb\n \t\xe3\x80\x80\n\x0b\na b\n\x00\nb',
    ],
)
def test_line_ends_and_blank_lines(tmp_path, vocab, data):
  (tmp_path / 't.txt').write_bytes(data)
  assert run(tmp_path / 't.txt', vocab, tmp_path / 'out') == 0
  found = metadata(tmp_path / 'out')
  assert (found['num_documents'], found['num_tokens']) == (2, 6)
  assert found['share_one_sentence_documents'] == 0


def test_documents_of_one_sentence_are_warned_of(tmp_path, vocab, capsys):
  (tmp_path / 't.txt').write_text('\n\n'.join(['a b'] * 20))
  assert run(tmp_path / 't.txt', vocab, tmp_path / 'out') == 0
  assert 'warning: 100% of documents have one sentence' in (
      capsys.readouterr().err
  )
  labels = [e['next_sentence_labels'][0] for e in examples(tmp_path / 'out')]
  assert labels == [1] * 20


def test_paragraphs_are_split(tmp_path, vocab):
  (tmp_path / 't.txt').write_text('A b. B a.\n\nB b. A a.\n')
  options = ('--split_sentences', '--shards', '1')
  assert run(tmp_path / 't.txt', vocab, tmp_path / 'out', *options) == 0
  assert metadata(tmp_path / 'out')['share_one_sentence_documents'] == 0


@pytest.mark.parametrize('masking', ['runtime', 'static'])
def test_a_vocabulary_of_one_word(tmp_path, masking):
  (tmp_path / 'v.txt').write_text('\n'.join([*SPECIALS, 'a']))
  (tmp_path / 't.txt').write_text('a a a\na a\n\na\nb\n')
  options = ('--masking', masking, '--workers', '1')
  vocab = str(tmp_path / 'v.txt')
  assert run(tmp_path / 't.txt', vocab, tmp_path / 'out', *options) == 0


TWO = 'a\nb\n\na\nb\n'


@pytest.mark.parametrize(
    ('text', 'options', 'code', 'message'),
    [
        (TWO, ['--input', '/none/*'], 2, 'no file matches /none/*'),
        ('', [], 1, 'nothing was written: there is no text in t.txt'),
        (' \n\n\t\n', [], 1, 'nothing was written: there is no text in t.txt'),
        ('a\nb\na\n', [], 1, 'the text has one document'),
        (TWO, ['--test_fraction', '0.0001'], 1, 'no document was drawn'),
        (TWO, ['--test_fraction', '1'], 2, 'is not in [0, 1)'),
        (TWO, ['--max_seq_length', '4'], 2, '--max_seq_length 4 is not'),
        (TWO, ['--max_predictions_per_seq', '30'], 2, 'between 1 and 29'),
        (TWO, ['--shards', '0'], 2, '--shards 0 is not between 1'),
        (TWO, ['--vocab', '/none'], 2, 'there is no vocabulary /none'),
        (TWO, ['--lowercase=maybe'], 2, "'maybe' is neither true nor false"),
        (TWO, ['--masking', 'no'], 2, "invalid choice: 'no'"),
        (TWO, ['--dupe', '3'], 2, 'unrecognized arguments: --dupe 3'),
        (b'a\n\xff\n\nb', [], 1, "t.txt is not UTF-8: 'utf-8' codec"),
    ],
)
def test_mistakes(tmp_path, vocab, capsys, text, options, code, message):
  data = text if isinstance(text, bytes) else text.encode()
  (tmp_path / 't.txt').write_bytes(data)
  output = tmp_path / 'out'
  assert run(tmp_path / 't.txt', vocab, output, *options) == code
  assert message in error(capsys)
  # The same command is not in its own way once the text is right.
  if code == 1:
    assert not os.listdir(output)


def test_vocabularies_and_folders_that_do_not_do(tmp_path, vocab, capsys):
  (tmp_path / 't.txt').write_text(TWO)
  (tmp_path / 'v.txt').write_text('[UNK]\n[CLS]\n[SEP]\na\n')
  other = str(tmp_path / 'v.txt')
  assert run(tmp_path / 't.txt', other, tmp_path / 'out') == 2
  assert 'v.txt: no line is [MASK]' in error(capsys)
  (tmp_path / 'full').mkdir()
  (tmp_path / 'full' / 'mine').touch()
  assert run(tmp_path / 't.txt', vocab, tmp_path / 'full') == 2
  assert 'full is not empty: it has mine' in error(capsys)


@pytest.mark.parametrize('suffix', ['xz', 'gz'])
def test_damaged_compressed_files(tmp_path, vocab, capsys, suffix):
  path = tmp_path / f't.txt.{suffix}'
  path.write_bytes(b'no such thing')
  assert run(path, vocab, tmp_path / 'out') == 1
  assert f't.txt.{suffix} cannot be expanded' in error(capsys)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_copies(tmp_path, vocab):
  """T01: 50,000 lines, four workers with 1 GiB of address space each."""
  text = write_documents(tmp_path / 't.txt', 100, sentences=500)
  peaks = []
  code = (
      'import resource, sys; from input_pipeline import bert_data\n'
      'resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n'
      'if __name__ == "__main__":\n'
      '  code = bert_data.main(sys.argv[1:])\n'
      '  print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n'
      '  sys.exit(code)\n'
  )
  (tmp_path / 'limited.py').write_text(code)
  for copies in ('1', '10'):
    command = [sys.executable, str(tmp_path / 'limited.py'), '--input', text]
    command += ['--output', str(tmp_path / copies), '--vocab', vocab]
    command += ['--dupe_factor', copies, '--workers', '4']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks.append(int(done.stdout.split()[-1]) * 1024)
  assert peaks[1] < 1.1 * peaks[0] < 300e6, peaks
  counts = [metadata(tmp_path / c)['num_examples'] for c in ('1', '10')]
  assert 8 < counts[1]['train'] / counts[0]['train'] < 12


def test_a_second_length_has_a_folder_of_its_own(tmp_path, vocab):
  text, out = write_documents(tmp_path / 'text.txt', 4), tmp_path / 'out'
  options = ('--workers', '1', '--max_seq_length', '16', '32')
  assert run(text, vocab, out, *options) == 0
  for folder, length in ((out, 16), (out / '32', 32)):
    assert max(len(e['input_ids']) for e in examples(folder)) == length
  most = ('--max_predictions_per_seq', '3')
  assert run(text, vocab, out, *options, *most) == 2


def test_a_vocabulary_of_another_text_is_told(tmp_path, vocab, capfd):
  text = tmp_path / 'text.txt'
  text.write_text('w0x other other\nw0x a\n\nw1x b\nother w1x\n')
  assert run(text, vocab, tmp_path / 'some', '--workers', '1') == 0
  assert '33% of tokens are [UNK]' in capfd.readouterr().err
  text.write_text('other words\n\nand more\n')
  assert run(text, vocab, tmp_path / 'none', '--workers', '1') == 1
  assert 'all tokens are [UNK]' in capfd.readouterr().err
