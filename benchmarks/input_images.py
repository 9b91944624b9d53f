"""Images per second of the input pipeline, beside its limit and its peers.

python -m benchmarks.input_images --images DIR --big_vision DIR

Photos (four of scikit-image, and those in --images) are written in the sizes
to measure, and 32x32 tiles of them. Every contender makes normalized batches
of the same files on one core. 'Per core' counts processor time, so that other
load on the machine does not matter; the ratio is one of these.
"""

import argparse
import functools
import itertools
import pathlib
import sys
import tempfile
import time

import numpy as np
import skimage.data
from PIL import Image

from benchmarks import harness
from input_pipeline import pipeline, sources
from input_pipeline.host import tf

BATCH = 64
SIZE = 224
AREA, ASPECT = (0.05, 1.0), (3 / 4, 4 / 3)
# Title, width and height, progressive.
FORMATS = (
    ('512x512 progressive', (512, 512), True),
    ('512x512 baseline', (512, 512), False),
    ('500x375 baseline', (500, 375), False),
    ('2048x1536 baseline (enlarged)', (2048, 1536), False),
)
QUALITY = 90
TILES = 4096
FINISH = 'flip_lr|value_range(-1, 1)'
PHOTO_OPS = f'decode_inception_crop({SIZE})|{FINISH}'
REDUCED_OPS = f'decode_inception_crop({SIZE}, reduced=True)|{FINISH}'
BIG_VISION_OPS = f'decode_jpeg_and_inception_crop({SIZE})|{FINISH}'
TILE_OPS = f'resize(40)|random_crop(32)|{FINISH}'


def load_photos(folder):
  """Returns four photos of scikit-image, and the large JPEGs in `folder`."""
  names = ('astronaut', 'coffee', 'chelsea', 'rocket')
  found = [Image.fromarray(getattr(skimage.data, name)()) for name in names]
  for path in sorted(pathlib.Path(folder).glob('*.jpg')) if folder else ():
    image = Image.open(path)
    if min(image.size) >= 375:
      found.append(image.convert('RGB'))
  return found


def write_photos(photos, folder, size, progressive):
  """Writes each photo, cropped to the aspect of `size`, as a JPEG of it."""
  (folder / 'class').mkdir(parents=True)
  for i, photo in enumerate(photos):
    scale = min(photo.width / size[0], photo.height / size[1])
    width, height = size[0] * scale, size[1] * scale
    left, top = (photo.width - width) / 2, (photo.height - height) / 2
    box = (left, top, left + width, top + height)
    photo.resize(size, Image.Resampling.LANCZOS, box).save(
        folder / 'class' / f'{i}.jpg', quality=QUALITY, progressive=progressive
    )


def make_tiles(photos):
  """Returns uint8 [TILES, 32, 32, 3], cut out of the photos at random."""
  rng = np.random.default_rng(0)
  tiles = np.zeros((TILES, 32, 32, 3), np.uint8)
  for i in range(TILES):
    photo = np.asarray(photos[i % len(photos)])
    top, left = (rng.integers(n - 32) for n in photo.shape[:2])
    tiles[i] = photo[top : top + 32, left : left + 32]
  return tiles


def write_tiles(tiles, folder):
  (folder / 'class').mkdir(parents=True)
  for i, tile in enumerate(tiles):
    Image.fromarray(tile).save(
        folder / 'class' / f'{i}.jpg', quality=QUALITY, subsampling=0
    )


def tf_batches(data, function):
  """Returns batches of a plain tf.data map with one thread."""
  options = tf.data.Options()
  options.autotune.enabled = False
  options.threading.private_threadpool_size = 1
  options.threading.max_intra_op_parallelism = 1
  data = data.repeat().map(function, 1).batch(BATCH).prefetch(2)
  return data.with_options(options).as_numpy_iterator()


def limit_photos(paths):
  """Decodes and resizes encoded photos in memory, the windows being drawn."""
  encoded = [pathlib.Path(path).read_bytes() for path in paths] * 8
  windows = []
  for i, photo in enumerate(encoded):
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(photo),
        tf.zeros([0, 0, 4]),
        (0, i),
        min_object_covered=0.0,
        area_range=AREA,
        aspect_ratio_range=ASPECT,
        use_image_if_no_bounding_boxes=True,
    )
    windows.append(tf.concat([begin[:2], size[:2]], 0))

  def decode(photo, window):
    image = tf.io.decode_and_crop_jpeg(photo, window, channels=3)
    return tf.image.resize(image, (SIZE, SIZE))

  slices = tf.data.Dataset.from_tensor_slices((encoded, tf.stack(windows)))
  return functools.partial(tf_batches, slices, decode)


def limit_tiles(images):
  """Reads and decodes files, or only resizes arrays."""

  def read(image):
    if image.dtype == tf.string:
      return tf.io.decode_jpeg(tf.io.read_file(image), channels=3)
    return tf.image.resize(image, (40, 40))

  slices = tf.data.Dataset.from_tensor_slices(images)
  return functools.partial(tf_batches, slices, read)


def ours(source, ops, threads=1):
  return lambda: pipeline.train_batches(
      source, batch_size=BATCH, ops=ops, seed=0, threads=threads
  )


def big_vision(folder, images, ops):
  """Returns its operations on files or arrays; None without a checkout."""
  if folder is None:
    return None
  sys.path.append(folder)
  from big_vision.pp import builder, ops_general, ops_image  # noqa: F401

  preprocess = builder.get_preprocess_fn(ops, log_data=False)

  def read(image):
    image = tf.io.read_file(image) if image.dtype == tf.string else image
    return preprocess({'image': image})['image']

  slices = tf.data.Dataset.from_tensor_slices(images)
  return functools.partial(tf_batches, slices, read)


def pil(paths, crop):
  """Returns a loader of PIL and NumPy alone; `crop` is of an open image."""
  rng = np.random.default_rng(0)

  def load(path):
    image = np.asarray(crop(Image.open(path), rng))
    image = image[:, ::-1] if rng.integers(2) else image
    return image.astype(np.float32) * (2 / 255) - 1

  def batches():
    endless = itertools.cycle(paths)
    while True:
      yield np.stack([load(path) for path in itertools.islice(endless, BATCH)])

  return batches


def pil_inception_crop(image, rng):
  while True:
    area = rng.uniform(*AREA) * image.width * image.height
    aspect = rng.uniform(*ASPECT)
    width, height = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
    if width <= image.width and height <= image.height:
      break
  left = rng.integers(image.width - width + 1)
  top = rng.integers(image.height - height + 1)
  return image.convert('RGB').resize(
      (SIZE, SIZE),
      Image.Resampling.BILINEAR,
      (left, top, left + width, top + height),
  )


def pil_random_crop(image, rng):
  left, top = rng.integers(9, size=2)
  image = image.convert('RGB').resize((40, 40), Image.Resampling.BILINEAR)
  return image.crop((left, top, left + 32, top + 32))


def measure(make, cores, seconds):
  """Returns images per second, and per second of processor time."""
  harness.pin(cores)
  batches = make()
  next(batches)
  images, start, start_cpu = 0, time.perf_counter(), time.process_time()
  while time.perf_counter() - start < seconds:
    batch = next(batches)
    images += len(batch['image'] if isinstance(batch, dict) else batch)
  cpu = time.process_time() - start_cpu
  return images / (time.perf_counter() - start), images / cpu


def compare(title, limit, entries, args):
  """Measures `entries`, {name: (make or None, cores)}, and prints a table."""
  read = {
      name: make and functools.partial(measure, make, cores, args.seconds)
      for name, (make, cores) in {'limit': (limit, 1), **entries}.items()
  }
  readings = harness.in_turn(read, args.repeats)
  rows = []
  for name, values in readings.items():
    wall, core = zip(*values, strict=True) if values else ((), ())
    ratios = harness.ratios(
        core, [c for _, c in readings['limit']][: len(core)]
    )
    rows.append(
        [
            name,
            harness.spread(wall, ',.0f'),
            harness.spread(core, ',.0f'),
            harness.spread(ratios, '.2f'),
        ]
    )
  harness.print_table(
      [title, 'images/s', 'images/s per core', 'of the limit'], rows
  )


def compare_photos(title, folder, args):
  source = sources.ImageFolder(str(folder))
  paths = source.paths
  peer = big_vision(args.big_vision, paths, BIG_VISION_OPS)
  entries = {
      'bigtransfer': (ours(source, PHOTO_OPS), 1),
      'bigtransfer, reduced=True': (ours(source, REDUCED_OPS), 1),
      'big_vision': (peer, 1),
      'PIL and NumPy': (pil(paths, pil_inception_crop), 1),
      'bigtransfer, two cores': (ours(source, PHOTO_OPS, 2), 2),
  }
  compare(title, limit_photos(paths), entries, args)


def compare_tiles(title, source, images, decode, args):
  ops = decode + TILE_OPS
  entries = {
      'bigtransfer': (ours(source, ops), 1),
      'big_vision': (big_vision(args.big_vision, images, ops), 1),
  }
  if decode:
    entries['PIL and NumPy'] = (pil(images, pil_random_crop), 1)
  entries['bigtransfer, two cores'] = (ours(source, ops, 2), 2)
  compare(title, limit_tiles(images), entries, args)


def parse_args():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--images', metavar='DIR', help='more photos, as .jpg')
  parser.add_argument('--big_vision', metavar='DIR', help='a checkout of it')
  parser.add_argument('--repeats', type=int, default=5, help='of each reading')
  parser.add_argument('--seconds', type=float, default=2, help='per reading')
  return parser.parse_args()


def main():
  args = parse_args()
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  photos = load_photos(args.images)
  print(f'{len(photos)} photos, {TILES:,} tiles, {args.repeats} rounds\n')
  with tempfile.TemporaryDirectory() as root:
    root = pathlib.Path(root)
    for title, size, progressive in FORMATS:
      write_photos(photos, root / title, size, progressive)
      compare_photos(title, root / title, args)
    tiles = make_tiles(photos)
    labels = np.zeros(TILES, np.int32)
    source = sources.ArraySource({'image': tiles, 'label': labels})
    compare_tiles('32x32 in memory', source, tiles, '', args)
    write_tiles(tiles, root / 'tiles')
    source = sources.ImageFolder(str(root / 'tiles'))
    compare_tiles('32x32 in files', source, source.paths, 'decode|', args)


if __name__ == '__main__':
  main()
