"""Writes google_tokens.json: what google-research/bert makes of hard text.

    git clone https://github.com/google-research/bert
    python tests/golden/make_google_tokens.py bert

Its tokenization.py runs with the embedded vocabulary. Nothing but tf.gfile is
used of TensorFlow 1. What a character is comes from Python's unicodedata, so
the text has only characters that were in Unicode long before.
"""

import json
import os
import pathlib
import sys
import types

from input_pipeline import embedded

PATH = pathlib.Path(__file__).with_name('google_tokens.json')
TEXTS = (
    'The State of the Union, 1862: "unalienable"   rights.',
    'naïve naïve Kantō lǜshi İstanbul ẞtraße ΣΊΣΥΦΟΣ',
    'が 한국어 ไทย カナ 東京tower \U00020000\U0002a6d6 \u3400x\uf900',
    '[MASK] [CLS] [unused1] ##ing # ing',
    f'{"a" * 200} {"a" * 201} {"é" * 200} {"é" * 201}',
    'zero\u200bwidth soft\xadhy \ufeffbom a\x00b c\x7fd e\x85f',
    'g\x1ch \ufffdi',
    'private \ue000use \U000f0000 unassigned \u0378 half ½ degree°',
    'no\xa0break thin\u2009space li\u2028ne pa\u2029ra o\u1680 id\u3000x',
    'tab\tline\nreturn\rvertical\x0bform\x0c',
    "can't co-op U.S.A. a+b=c $5 5% ^~`|<> _under_ “curly” — dash… ¿qué? ¡no!",
    '\u0301lone accent \u0345 a\u0327\u0301 \u1e9b\u0323 \ufb01 fullwidthＡ！',
    '\u0915\u094d\u0937 \u05d0\u05b8 \u0e33 \u302e\uac00 \U0001d15e \U00016ff0',
    '',
    ' \u2003\n',
)


def main(folder):
  fake = types.ModuleType('tensorflow')
  fake.gfile = types.SimpleNamespace(
      GFile=lambda path, mode: open(path, encoding='utf-8', newline='\n')
  )
  sys.modules['tensorflow'] = fake
  sys.path.append(folder)
  import tokenization

  vocab = os.path.join(embedded.FOLDER, 'speeches_vocab.txt')
  rows = []
  for lowercase in (True, False):
    tokenizer = tokenization.FullTokenizer(vocab, lowercase)
    rows += [[lowercase, text, tokenizer.tokenize(text)] for text in TEXTS]
  PATH.write_text(json.dumps(rows, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
  main(sys.argv[1])
