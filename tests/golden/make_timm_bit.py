"""Writes timm_bit.npz: what timm's resnetv2_50x1_bit makes of known weights.

    pip install torch torchvision timm
    python tests/golden/make_timm_bit.py

The weights are drawn anew here and in the test, each from its own name, so
that only images and answers are kept. Answers are computed in float64.
"""

import pathlib
import re
import zlib

import numpy as np

PATH = pathlib.Path(__file__).with_name('timm_bit.npz')


def weight(path: str, shape: tuple[int, ...]) -> np.ndarray:
  """A parameter of bigtransfer's name and shape, [h, w, i, o] if a kernel.

  Kernels have a variance of 0.25: timm adds 1e-8 to it and BiT 1e-10, which
  is then a relative difference of 2e-8 in the standardized kernel.
  """
  values = np.random.default_rng(zlib.crc32(path.encode())).normal(size=shape)
  if path == 'head/kernel':
    return values * shape[0] ** -0.5
  if path.endswith('kernel'):
    return values * 0.5 + 0.1
  return values * 0.2 + (1 if path.endswith('scale') else 0)


def images() -> np.ndarray:
  """Two images with odd sides, in [-1, 1]."""
  return np.random.default_rng(0).uniform(-1, 1, size=(2, 65, 79, 3))


def our_path(key: str) -> str:
  """'stages.0.blocks.1.norm2.weight' -> 'block1/unit02/gn2/scale'."""
  *module, kind = key.split('.')
  module = '.'.join(module)
  norm = 'norm' in module
  leaf = 'bias' if kind == 'bias' else 'scale' if norm else 'kernel'
  match = re.fullmatch(r'stages\.(\d)\.blocks\.(\d+)\.(.+)', module)
  if not match:
    names = {'stem.conv': 'root_block/conv_root', 'norm': 'norm-pre-head'}
    return f'{names.get(module, "head")}/{leaf}'
  name = match[3].replace('norm', 'gn').replace('downsample.conv', 'conv_proj')
  return f'block{int(match[1]) + 1}/unit{int(match[2]) + 1:02d}/{name}/{leaf}'


def timm_weight(key: str, shape: tuple[int, ...]) -> np.ndarray:
  """The same parameter as timm has it: kernels are [o, i, h, w]."""
  path = our_path(key)
  if path == 'head/kernel':
    return weight(path, (shape[1], shape[0])).T[..., None, None]
  if len(shape) == 4:
    o, i, h, w = shape
    return weight(path, (h, w, i, o)).transpose(3, 2, 0, 1)
  return weight(path, shape)


def answers() -> dict[str, np.ndarray]:
  """pre_logits [b, 2048] and logits [b, 1000] by timm."""
  import timm
  import torch

  model = timm.create_model('resnetv2_50x1_bit', num_classes=1000)
  model = model.double().eval()
  model.load_state_dict({
      key: torch.from_numpy(timm_weight(key, tuple(value.shape)).copy())
      for key, value in model.state_dict().items()
  })
  with torch.no_grad():
    features = model.forward_features(
        torch.from_numpy(images().transpose(0, 3, 1, 2).copy())
    )
    return {
        'pre_logits': model.forward_head(features, pre_logits=True).numpy(),
        'logits': model.forward_head(features).numpy(),
    }


if __name__ == '__main__':
  np.savez_compressed(PATH, **answers())
