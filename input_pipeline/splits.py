"""Lists the splits of a data set and how many examples each has.

python -m input_pipeline.splits --source folder --path data/flowers
python -m input_pipeline.splits --source tfds --name cifar10

Prints one line of JSON, {"where": ..., "splits": {name: count}}. Reads what
describes the data, and never the examples. Exit code 1: it is not there or
does not fit; the last line on stderr says what was looked for.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

from input_pipeline import embedded, listing, records, sources
from input_pipeline.host import tf

SOURCES = ('embedded', 'folder', 'csv', 'tfds', 'tfrecord')


def count(
    source: str, path: str | None = None, name: str | None = None
) -> tuple[str, dict[str, int]]:
  """Returns where the data is and {split: number of examples}.

  Args:
    source: one of SOURCES, as config.data.source.
    path: as config.data.path, local or gs://.
    name: of an embedded set or of a TFDS builder.

  Raises:
    FileNotFoundError: there is no such data.
    ValueError: it does not fit its description, or an argument is missing.
  """
  if source == 'tfds':
    return _tfds(_given('name', name), path)
  if source == 'embedded':
    name = _given('name', name)
    splits = ('train', 'test')
    return name, {s: len(embedded.load(name, s)['label']) for s in splits}
  path = _given('path', path)
  if not tf.io.gfile.isdir(path):
    raise FileNotFoundError(f'there is no folder {path}')
  splits = {'folder': _folder, 'csv': _csv, 'tfrecord': _tfrecord}[source](path)
  if not splits:
    raise FileNotFoundError(
        f'{path} has no splits of the source {source!r}; it holds'
        f' {_entries(path)}'
    )
  return path, splits


def _given(key, value):
  if value is None:
    raise ValueError(f'--{key} is missing')
  return value


def _entries(path):
  """Returns in words what a folder holds."""
  if not tf.io.gfile.isdir(path):
    return 'no folder of that name'
  names = sorted(name.rstrip('/') for name in tf.io.gfile.listdir(path))
  more = f' and {len(names) - 8} more' if len(names) > 8 else ''
  return ', '.join(names[:8]) + more or 'nothing'


def _folder(path):
  names = [name.rstrip('/') for name in tf.io.gfile.listdir(path)]
  folders = {
      name: os.path.join(path, name)
      for name in sorted(names)
      if not name.startswith('.')
      and tf.io.gfile.isdir(os.path.join(path, name))
  }
  nested = {
      name: folder
      for name, folder in folders.items()
      if any(
          tf.io.gfile.isdir(os.path.join(folder, entry))
          for entry in tf.io.gfile.listdir(folder)
          if not entry.startswith('.')
      )
  }
  if folders and not nested:  # class folders without splits
    nested = {'all': path}
  return {
      name: len(listing.class_folders(folder)[0])
      for name, folder in nested.items()
  }


def _csv(path):
  files = sorted(tf.io.gfile.glob(os.path.join(path, '*.csv')))
  return {
      os.path.basename(file).removesuffix('.csv'): len(sources.CsvSource(file))
      for file in files
  }


def _tfrecord(path):
  metadata = os.path.join(path, 'metadata.json')
  if tf.io.gfile.exists(metadata):  # of bert_data
    with tf.io.gfile.GFile(metadata) as file:
      shards = json.load(file)['shards']
    for shard, (_, size) in shards.items():
      records.check_size(os.path.join(path, shard), size, metadata)
    counts = {shard: number for shard, (number, _) in shards.items()}
  else:
    files = sorted(tf.io.gfile.glob(os.path.join(path, '*')))
    files = [
        file
        for file in files
        if re.search(r'tfrecord|-of-\d', os.path.basename(file))
    ]
    found = records.shard_counts(files)
    counts = {os.path.basename(file): found[file] for file in files}
  splits = {}
  for shard, number in counts.items():
    split = re.split(r'-\d+-of-\d+|\.', shard)[0]
    splits[split] = splits.get(split, 0) + number
  return splits


def _tfds(name, path):
  # TFDS takes seconds to import.
  import tensorflow_datasets as tfds

  from input_pipeline import tfds_source

  where, data_dir = '--path', path
  if data_dir is None:
    where, data_dir = 'TFDS_DATA_DIR', os.environ.get('TFDS_DATA_DIR')
  if data_dir is None:
    where, data_dir = 'the default', '~/tensorflow_datasets'
  data_dir = os.path.expanduser(data_dir)
  try:
    folder = tfds_source.prepared(name, data_dir)
  except FileNotFoundError as e:
    raise FileNotFoundError(
        f'{e}. The data dir seen is {data_dir}, from {where}: it holds'
        f' {_entries(data_dir)}'
    ) from e
  splits = tfds.builder_from_directory(folder).info.splits
  there = set(tf.io.gfile.listdir(folder))
  for split in splits.values():
    for file in split.filepaths:
      if file.name not in there:
        raise FileNotFoundError(f'{file} is missing, of the split {split.name}')
  counts = {key: split.num_examples for key, split in splits.items()}
  return f'{folder} (from {where})', counts


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
      'python -m input_pipeline.splits',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  parser.add_argument('--source', choices=SOURCES, required=True)
  parser.add_argument('--path', help='as config.data.path')
  parser.add_argument('--name', help='of the embedded set or TFDS builder')
  args = parser.parse_args(argv)
  try:
    where, splits = count(args.source, args.path, args.name)
  except (OSError, ValueError, KeyError, tf.errors.OpError) as e:
    text = str(e).replace('\n', ' ')
    print(f'error: {text}', file=sys.stderr)
    return 1
  print(json.dumps({'where': where, 'splits': splits}))
  return 0


if __name__ == '__main__':
  sys.exit(main())
