"""Was a paragraph spoken before 1900? The labelled example that ships.

Paragraphs of the State of the Union addresses. A speech is in one split only,
so that its words and its subjects cannot give the answer away.
"""

import os

from input_pipeline import embedded, labelled_text
from input_pipeline.labelled_text import Rows

VOCAB = os.path.join(embedded.FOLDER, 'speeches_vocab.txt')
CLASSES = ('before_1900', 'since_1900')
YEAR = 1900
# "Fellow-Citizens of the Senate:" says when, too, and would be too easy.
MIN_WORDS = 20
# (begin, share) of the speeches in the order of held_out().
SHARES = {'dev': (0.0, 0.1), 'test': (0.1, 0.1), 'train': (0.2, 0.8)}


def read(split: str) -> Rows:
  """Returns the paragraphs of 'train', 'dev' or 'test'; lines are speeches.

  Raises ValueError for another split.
  """
  if split not in SHARES:
    raise ValueError(f'speeches have no split {split!r}: {list(SHARES)}')
  speeches = embedded.speeches(years=True)
  begin, share = SHARES[split]
  chosen = labelled_text.held_out(len(speeches), share, begin)
  texts, labels, numbers = [], [], []
  for number in sorted(chosen):
    year, text = speeches[number]
    for paragraph in text.split('\n'):
      if len(paragraph.split()) >= MIN_WORDS:
        texts.append(paragraph)
        labels.append(CLASSES[year >= YEAR])
        numbers.append(number)
  return Rows(f'speeches {split}', texts, None, labels, numbers)
