"""WordPiece as google-research/bert does it, and vocabularies."""

import hashlib
import json
import pathlib
import random
import subprocess
import sys
import unicodedata

import pytest

from input_pipeline import embedded, text_words, tokenizer

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'google_tokens.json'
VOCAB = f'{embedded.FOLDER}/speeches_vocab.txt'
SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']


def make(tmp_path, tokens, lowercase=True, end='\n'):
  path = tmp_path / 'vocab.txt'
  path.write_bytes(''.join(f'{t}{end}' for t in tokens).encode())
  return tokenizer.WordPieceTokenizer(str(path), lowercase)


@pytest.fixture(scope='module')
def shipped():
  return {c: tokenizer.WordPieceTokenizer(VOCAB, c) for c in (True, False)}


def reference(text, vocab, lowercase):
  """The algorithm as it is described, a character at a time."""
  spaced = ''
  for c in text:
    category, code = unicodedata.category(c), ord(c)
    if c in ' \t\n\r' or category == 'Zs':
      spaced += ' '
    elif category not in ('Cc', 'Cf') and code not in (0, 0xFFFD):
      ideograph = (
          0x4E00 <= code <= 0x9FFF
          or 0x3400 <= code <= 0x4DBF
          or 0x20000 <= code <= 0x2A6DF
          or 0x2A700 <= code <= 0x2CEAF
          or 0xF900 <= code <= 0xFAFF
          or 0x2F800 <= code <= 0x2FA1F
      )
      spaced += f' {c} ' if ideograph else c
  tokens = []
  for chunk in spaced.split():
    if lowercase:
      chunk = unicodedata.normalize('NFD', chunk.lower())
      chunk = ''.join(c for c in chunk if unicodedata.category(c) != 'Mn')
    words = ['']
    for c in chunk:
      sign = c.isascii() and not c.isalnum()
      if sign or unicodedata.category(c)[0] == 'P':
        words += [c, '']
      else:
        words[-1] += c
    for word in filter(None, words):
      tokens += pieces(word, vocab)
  return tokens


def pieces(word, vocab):
  found, rest = [], word
  while rest and len(word) <= 200:
    prefix = '##' if found else ''
    sizes = range(len(rest), 0, -1)
    fit = next((n for n in sizes if prefix + rest[:n] in vocab), 0)
    if not fit:
      break
    found.append(prefix + rest[:fit])
    rest = rest[fit:]
  return ['[UNK]'] if rest else found


def same(own, text):
  """Compares all ways to tokenize `text` with the reference."""
  expected = reference(text, set(own.vocab), own.lowercase)
  assert own.tokenize(text) == expected, ascii(text)
  ids, spans = own.offsets(text)
  assert [own.vocab[i] for i in ids] == expected, ascii(text)
  assert ids == own.encode(text) == own.encode_batch([text])[0]
  assert all(0 <= begin < end <= len(text) for begin, end in spans), spans


@pytest.mark.parametrize('row', json.loads(GOLDEN.read_text()))
def test_golden(shipped, row):
  lowercase, text, tokens = row
  assert shipped[lowercase].tokenize(text) == tokens
  same(shipped[lowercase], text)


@pytest.mark.parametrize('lowercase', [True, False])
def test_every_character_of_the_basic_plane(shipped, lowercase):
  astral = [*range(0x10000, 0x30000, 7), *range(0xE0000, 0x110000, 997)]
  edges = [0x2A6DF, 0x2A6E0, 0x2A700, 0x2CEAF, 0x2CEB0, 0x2F800, 0x2FA1F]
  chars = [chr(c) for c in [*range(0x10000), *astral, *edges]]
  own = shipped[lowercase]
  vocab = set(own.vocab)
  for first in range(0, len(chars), 64):
    part = chars[first : first + 64]
    text = ' '.join(f'The{c}s{c} {c}' for c in part)
    expected = reference(text, vocab, lowercase)
    assert own.tokenize(text) == expected, ascii(text)


@pytest.mark.parametrize('lowercase', [True, False])
def test_random_text(shipped, lowercase):
  rng = random.Random(0)
  words = ['naïve', 'ΑΣΣ', 'İs', '東京tower', '[MASK]', 'x' * 200, "can't", ' ']
  chars = [chr(c) for c in range(0x180)] + [
      chr(rng.randrange(0x110000)) for _ in range(200)
  ]
  chars += '\u0301\u0327\u0345\u2028\x85\x1c\u200b\ufffdΣςẞﬁ\u302e\U0001d165'
  for _ in range(600):
    parts = [rng.choice(rng.choice([words, chars])) for _ in range(10)]
    same(shipped[lowercase], ''.join(parts))


@pytest.mark.parametrize(
    ('text', 'lower', 'cased'),
    [
        ('naïve', ['naive'], ['naïve']),
        ('nai\u0308ve', ['naive'], ['nai\u0308ve']),
        ('Kantō', ['kanto'], ['Kantō']),
        ('lǜshi', ['lushi'], ['lǜshi']),
        ('İstanbul', ['istanbul'], ['İstanbul']),
        ('が', ['か'], ['が']),
        ('한', ['\u1112\u1161\u11ab'], ['한']),
        ('東京tower', ['東', '京', 'tower'], ['東', '京', 'tower']),
        ('x\U00020000y', ['x', '\U00020000', 'y'], ['x', '\U00020000', 'y']),
        ('カナ', ['カナ'], ['カナ']),
        ('a\x1cb c\u2028d', ['ab', 'c', 'd'], ['ab', 'c', 'd']),
    ],
)
def test_words(text, lower, cased):
  assert text_words.split(text, True) == lower
  assert text_words.split(text, False) == cased


def test_a_word_is_known_as_a_whole_or_not_at_all(tmp_path):
  own = make(tmp_path, [*SPECIALS, 'un', '##want', '##ed'])
  assert own.tokenize('unwanted') == ['un', '##want', '##ed']
  assert own.tokenize('unwantedx UNWANTED') == ['[UNK]', 'un', '##want', '##ed']
  assert own.encode('[MASK]') == [1, 1, 1]
  assert own.special_ids == (0, 1, 2, 3, 4)
  assert (own.pad_id, own.unk_id, own.cls_id, own.sep_id) == (0, 1, 2, 3)
  assert own.is_continuation.tolist() == [False] * 6 + [True] * 2


def test_memory_has_an_end(tmp_path, monkeypatch):
  monkeypatch.setattr(tokenizer, '_REMEMBERED', 10)
  own = make(tmp_path, [*SPECIALS, *'abc', '##a'])
  texts = [f'{c}{"a" * n}' for n in range(20) for c in 'abc']
  assert own.encode(' '.join(texts)) == [
      i for n in range(20) for c in (5, 6, 7) for i in (c, *[8] * n)
  ]
  assert len(own._words) <= 10 and len(own._stretches) <= 10


def test_offsets(tmp_path):
  own = make(tmp_path, [*SPECIALS, 'na', '##ive', 'is', '##tan', '!', '京'])
  text = ' Nai\u0308ve!\u200bIstan 京x'
  ids, spans = own.offsets(text)
  assert [own.vocab[i] for i in ids] == own.tokenize(text)
  assert [text[b:e] for b, e in spans] == [
      'Na', 'i\u0308ve', '!', 'Is', 'tan', '京', 'x'
  ]  # fmt: skip


@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_ids_are_lines(tmp_path, end):
  tokens = [*SPECIALS, 'a\x85b', '\u2028', ' c ', '\x0b', 'e\rf', 'd']
  own = make(tmp_path, tokens, end=end)
  assert own.vocab[5:] == ['a\x85b', '', 'c', '', 'e\rf', 'd']
  assert own.encode('c d') == [7, 10]
  text = ''.join(f'{token}\n' for token in tokens)
  assert own.sha256 == hashlib.sha256(text.encode()).hexdigest()
  path = tmp_path / 'vocab.txt'
  path.write_bytes(path.read_bytes().removesuffix(end.encode()))
  again = tokenizer.WordPieceTokenizer(str(path))
  assert (again.vocab, again.sha256) == (own.vocab, own.sha256)


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (b'', 'vocab.txt is empty'),
        (b'[UNK]\na\nb\na \n', "line 4: 'a' is on line 2 too"),
        (b'[UNK]\n\nb\n', 'line 2 is empty'),
        (b'[UNK]\n\xff\n', 'line 2 is not UTF-8'),
        (b'\xef\xbb\xbf[UNK]\na\n', 'line 1 begins with a byte-order mark'),
        (b'[PAD]\na\n', r'vocab.txt: no line is \[UNK\]'),
    ],
)
def test_faulty_vocabularies(tmp_path, data, message):
  path = tmp_path / 'vocab.txt'
  path.write_bytes(data)
  with pytest.raises(ValueError, match=message):
    tokenizer.WordPieceTokenizer(str(path))


def test_missing_vocabularies_and_tokens(tmp_path):
  with pytest.raises(FileNotFoundError, match='there is no vocabulary /none'):
    tokenizer.WordPieceTokenizer('/none')
  own = make(tmp_path, ['[UNK]', 'a'])
  with pytest.raises(ValueError, match=r'no line is \[MASK\]'):
    _ = own.mask_id


def test_a_vocabulary_is_learned(tmp_path):
  path = tmp_path / 'text.txt'
  path.write_text('Hug hugs pug pun bun, hug.\n' * 20, encoding='utf-8')
  vocab = tokenizer.train_vocab([str(path)], 28)
  letters = sorted('hugspnb,.')
  assert vocab[:5] == SPECIALS
  assert vocab[5:23] == letters + [f'##{c}' for c in letters]
  assert {'hug', 'pu'} & set(vocab[23:]) and len(set(vocab)) == len(vocab)


def test_a_vocabulary_does_not_depend_on_the_process(tmp_path):
  """Ties are broken by numbers that the library gives out in some order."""
  path = tmp_path / 'text.txt'
  path.write_text('\n'.join(embedded.speeches()[:3]), encoding='utf-8')
  made = []
  for name in ('a', 'b', 'c'):
    command = f'{sys.executable} -m input_pipeline.tokenizer --size 600'
    command += f' --input {path} --output {tmp_path / name}'
    subprocess.run(command.split(), check=True, capture_output=True)
    made.append((tmp_path / name).read_bytes())
  assert made[0] == made[1] == made[2] and made[0].count(b'\n') == 600


@pytest.mark.parametrize(
    ('size', 'text', 'message'),
    [
        (30, ' \n', 'no words'),
        (10, 'hug', '5 special tokens and 3 characters'),
        (99, 'hug', 'the text gives 1. tokens only'),
    ],
)
def test_text_that_gives_no_vocabulary(tmp_path, size, text, message):
  path = tmp_path / 'text.txt'
  path.write_text(text, encoding='utf-8')
  with pytest.raises(ValueError, match=message):
    tokenizer.train_vocab([str(path)], size)


def test_mistakes_on_the_command_line(tmp_path, capsys):
  command = ['--input', f'{tmp_path}/*', '--output', f'{tmp_path}/v']
  assert tokenizer.main(command) == 2
  assert capsys.readouterr().err == f'error: no file matches {tmp_path}/*\n'


def test_what_ships(shipped):
  speeches = embedded.speeches(years=True)
  years = [year for year, _ in speeches]
  assert (len(years), years[0], years[-1]) == (249, 1790, 2026)
  assert years == sorted(years)
  assert [text for _, text in speeches] == embedded.speeches()
  own = shipped[True]
  assert own.vocab_size == 8000 and own.vocab[:5] == SPECIALS
  ids = own.encode(speeches[0][1])
  assert ids.count(own.unk_id) == 0 and len(ids) > 1000
