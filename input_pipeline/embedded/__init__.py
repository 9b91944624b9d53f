"""Data that ships with the project; NOTICE beside says whose it is."""

import csv
import lzma
import os

import numpy as np

FOLDER = os.path.dirname(__file__)
CLASS_NAMES = {
    'fashion_mnist': (
        'T-shirt/top',
        'Trouser',
        'Pullover',
        'Dress',
        'Coat',
        'Sandal',
        'Shirt',
        'Sneaker',
        'Bag',
        'Ankle boot',
    ),
}


def load(name: str, split: str) -> dict[str, np.ndarray]:
  """Returns {'image': uint8 [n, h, w], 'label': uint8 [n]}.

  fashion_mnist: 10,000 of 28x28 in 'train', 2,000 in 'test'. Raises ValueError
  for another name or split.
  """
  if name not in CLASS_NAMES:
    raise ValueError(f'embedded data {name!r}: there is {list(CLASS_NAMES)}')
  if split not in ('train', 'test'):
    raise ValueError(f"split {split!r} of {name}: there is 'train', 'test'")
  path = os.path.join(FOLDER, f'{name}.npz')
  with np.load(path) as data:
    return {'image': data[f'x_{split}'], 'label': data[f'y_{split}']}


def speeches(years: bool = False) -> list[str] | list[tuple[int, str]]:
  """Returns the 249 State of the Union addresses, 1790 to 2026, by date.

  Each is a text of one paragraph a line; with `years` a tuple (year, text).
  The file speeches.txt.xz is the same, with a blank line between addresses, as
  bert_data takes it: with --split_sentences, for it wants a sentence a line.
  """
  with lzma.open(os.path.join(FOLDER, 'speeches.txt.xz')) as file:
    texts = file.read().decode().rstrip('\n').split('\n\n')
  if not years:
    return texts
  with open(os.path.join(FOLDER, 'speeches.csv'), encoding='utf-8') as file:
    dates = [row['date'] for row in csv.DictReader(file)]
  return [
      (int(date[:4]), text) for date, text in zip(dates, texts, strict=True)
  ]
