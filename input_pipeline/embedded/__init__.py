"""Data that ships with the project; NOTICE beside says whose it is."""

import os

import numpy as np

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
  path = os.path.join(os.path.dirname(__file__), f'{name}.npz')
  with np.load(path) as data:
    return {'image': data[f'x_{split}'], 'label': data[f'y_{split}']}
