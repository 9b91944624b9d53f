"""Predicts classes of image files, or of some examples of the evaluation split.

python -m bigtransfer.predict --workdir runs/photos cat.jpg dog.png
python -m bigtransfer.predict --workdir runs/photos
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from bigtransfer import distributed, files, models, saved
from bigtransfer import workdir as workdir_lib

# Examples shown where no image is named.
SHOWN = 10


def probabilities(run: Any, batches: Any) -> Iterator[tuple[Any, np.ndarray]]:
  """Yields (host batch, class probabilities [b, k]) of a run's model."""
  config = run['config']
  model = models.load(config.model.name).build(config.model)
  to_probability = {'softmax': jax.nn.softmax, 'sigmoid': jax.nn.sigmoid}

  @jax.jit
  def predict(params, model_state, image):
    outputs, _ = model.apply(
        params, model_state, {'image': image}, train=False, rng=None
    )
    return to_probability[config.loss.name](outputs['logits'])

  for batch in batches:
    yield batch, np.asarray(
        predict(run['params'], run['model_state'], batch['image'])
    )


def open_run(path: str, step: int | None = None) -> dict[str, Any]:
  """Returns config, class names, parameters and step of a workdir.

  Raises:
    FileNotFoundError: no workdir, or no such checkpoint in it.
  """
  run = workdir_lib.load(path)
  folder = os.path.join(path, 'checkpoints')
  params, step = saved.restore_params(folder, step)
  state = saved.restore_part(folder, step, 'model_state')
  return run | {'params': params, 'model_state': state, 'step': step}


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      'python -m bigtransfer.predict',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--workdir', required=True, help='of the run')
  parser.add_argument('--step', type=int, help='default: the newest')
  parser.add_argument('--top', type=int, default=3, help='classes per image')
  parser.add_argument('--csv', help='also write all probabilities to this file')
  parser.add_argument('images', nargs='*', metavar='IMAGE')
  args = parser.parse_args(argv)
  logging.set_verbosity(logging.ERROR)
  distributed.hush_libtpu()
  try:
    missing = [path for path in args.images if not os.path.isfile(path)]
    if missing:
      raise FileNotFoundError(f'there is no image {missing[0]!r}')
    files.check(args.workdir, '--workdir')
    run = open_run(args.workdir, args.step)
    if run['config'].data.kind != 'images':
      raise ValueError(
          f'{args.workdir} was trained on {run["config"].data.kind}: only runs'
          ' on images predict here; evaluation leaves predictions of text'
      )
    names, batches = _batches(run, args.images)
  except (ValueError, OSError) as e:
    print(f'error: {e}', file=sys.stderr)
    return 2
  classes = run['class_names'] or []
  classes += [
      str(i) for i in range(len(classes), run['config'].model.num_classes)
  ]
  rows, unread = [], 0
  for batch, scores in probabilities(run, batches):
    for i in np.flatnonzero(batch['id'] >= 0):
      name, label = names[batch['id'][i]], batch['label'][i]
      if batch['mask'][i] == 0:
        unread += 1
        print(f'{name}: cannot be read as an image')
        continue
      best = np.argsort(-scores[i], kind='stable')[: args.top]
      text = ', '.join(f'{classes[k]} {scores[i][k]:.3f}' for k in best)
      truth = f'  (is {classes[label]})' if label >= 0 else ''
      print(f'{name}: {text}{truth}')
      rows.append([name, *(f'{p:.6g}' for p in scores[i])])
  if args.csv:
    with open(args.csv, 'w', newline='') as f:
      csv.writer(f).writerows([['path', *classes], *rows])
  return 1 if unread else 0


def _batches(run, images):
  """Returns names by id, and batches of the images or of examples.

  For images of one's own the training data need not be there any more.
  """
  from input_pipeline import pipeline, sources

  config = run['config']
  data, ops = config.data, config.data.eval_ops
  if images:
    source = sources.Files(
        images, [-1] * len(images), config.model.num_classes
    )
    ops = as_trained_on(run['image_shape']) + ops
    names = list(images)
  else:
    train = sources.make(data, data.train_split)
    source = sources.make(data, data.eval_split, train).first(SHOWN)
    names = [source.where(i) for i in range(len(source))]
  return names, pipeline.eval_batches(
      source, batch_size=min(len(names), 32), ops=ops, bad_images='skip'
  )


def as_trained_on(shape: Sequence[int] | None) -> str:
  """Operations that bring an image file to the form of array examples.

  A model trained on encoded images needs none: its operations decode. One
  trained on arrays (h, w, c) gets files decoded, resized to (h, w), and made
  grey where c is 1.
  """
  if shape is None:
    return ''
  height, width, channels = shape
  grey = 'grey|' if channels == 1 else ''
  return f'decode|resize(({height}, {width}))|{grey}'


if __name__ == '__main__':
  sys.exit(main())
