"""Tokens per second of the BERT input pipeline, beside its limit.

python -m benchmarks.bert_input

Records of random words as input_pipeline.bert_data writes them are read,
parsed, padded, masked and batched on one core. The limit is tf.data with
nothing but tf.io.parse_example of batches that are in memory already. 'Per
core' counts processor time, so that other load on the machine does not matter;
the ratio is one of these.
"""

import argparse
import functools
import hashlib
import json
import pathlib
import tempfile
import time

import ml_collections
import numpy as np
from array_record.python import array_record_module

from benchmarks import harness
from input_pipeline import pretraining
from input_pipeline.host import tf

BATCH = 256
# Length, predictions, records, steps of a reading.
PHASES = ((128, 20, 8192, 96), (512, 80, 2048, 24))
TOKENS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
WORDS = 30_517
SHARDS = 8
# A v3-8 at 50 % MFU trains BERT-Large on so many sequences of 128 a second.
NEED = 1000


def make_records(length, count):
  """Returns serialized runtime records, nine tenths of them of full length."""
  rng = np.random.default_rng(0)
  for i in range(count):
    size = int(rng.integers(8, length)) if i % 10 == 0 else length
    ids = rng.integers(len(TOKENS), WORDS + len(TOKENS), size)
    ids[[0, size // 2, -1]] = 2, 3, 3
    features = {
        'input_ids': ids,
        'boundary': [size // 2 + 1],
        'next_sentence_labels': [i % 2],
    }
    yield tf.train.Example(
        features=tf.train.Features(
            feature={
                k: tf.train.Feature(int64_list=tf.train.Int64List(value=v))
                for k, v in features.items()
            }
        )
    ).SerializeToString()


def write(folder, container, length, predictions, records):
  """Writes the records in SHARDS files, with what describes them."""
  folder.mkdir(parents=True)
  pieces = [f'##{i}' if i % 3 == 0 else f'w{i}' for i in range(WORDS)]
  vocab = ''.join(f'{token}\n' for token in (*TOKENS, *pieces))
  (folder / 'vocab.txt').write_text(vocab)
  shards = {}
  for shard in range(SHARDS):
    path = folder / f'train-{shard:05d}-of-{SHARDS:05d}.{container}'
    if container == 'tfrecord':
      writer = tf.io.TFRecordWriter(str(path))
    else:
      writer = array_record_module.ArrayRecordWriter(str(path), 'group_size:1')
    for record in records[shard::SHARDS]:
      writer.write(record)
    writer.close()
    shards[path.name] = len(records[shard::SHARDS]), path.stat().st_size
  metadata = {
      'format': 'bigtransfer-bert-1',
      'container': container,
      'masking': 'runtime',
      'max_seq_length': length,
      'max_predictions_per_seq': predictions,
      'masked_lm_prob': 0.15,
      'vocab_sha256': hashlib.sha256(vocab.encode()).hexdigest(),
      'shards': shards,
  }
  (folder / 'metadata.json').write_text(json.dumps(metadata))


def ours(folder, length, predictions, **data):
  """Returns a function that makes training batches."""
  config = ml_collections.ConfigDict({
      'seed': 0,
      'batch_size': BATCH,
      'eval_batch_size': BATCH,
      'data': {
          'path': str(folder),
          'train_split': 'train',
          'eval_split': 'train',
          'seq_length': length,
          'max_predictions': predictions,
          'masked_lm_prob': 0.15,
          'whole_word': False,
          'shuffle_buffer': 4096,
          'lanes': 0,
          'threads': 1,
          'prefetch': 2,
          'eval_examples': 0,
          **data,
      },
  })
  config.data.vocab = None
  opened = pretraining.Data(config)
  return lambda: opened.train(config)


def parsing(records, length):
  """Returns a function that makes batches of parsed, dense features."""

  def parse(batch):
    one = tf.io.FixedLenFeature([], tf.int64)
    example = tf.io.parse_example(
        batch,
        {
            'input_ids': tf.io.RaggedFeature(tf.int64),
            'boundary': one,
            'next_sentence_labels': one,
        },
    )
    ids = example.pop('input_ids')
    return example | {'input_ids': ids.to_tensor(shape=[None, length])}

  def make():
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    data = tf.data.Dataset.from_tensor_slices(np.array(records, object))
    data = data.batch(BATCH).cache().repeat().map(parse, 1).prefetch(2)
    return data.with_options(options).as_numpy_iterator()

  return make


def measure(make, steps, length):
  """Returns tokens per second, and per second of processor time."""
  harness.pin(1)
  batches = make()
  # The limit has its batches in memory after one round.
  for _ in range(steps // 3):
    next(batches)
  start, start_cpu = time.perf_counter(), time.process_time()
  for _ in range(steps):
    next(batches)
  cpu = time.process_time() - start_cpu
  tokens = steps * BATCH * length
  return tokens / (time.perf_counter() - start), tokens / cpu


def compare(root, phase, repeats):
  length, predictions, count, steps = phase
  records = list(make_records(length, count))
  contenders = {'limit: parsing alone': parsing(records, length)}
  for container, name in (
      ('arrayrecord', 'random access (ArrayRecord)'),
      ('tfrecord', 'streaming (TFRecord)'),
  ):
    folder = root / f'{container}-{length}'
    write(folder, container, length, predictions, records)
    contenders[name] = ours(folder, length, predictions)
    contenders[f'{name}, whole words'] = ours(
        folder, length, predictions, whole_word=True
    )
  readings = harness.in_turn(
      {
          name: functools.partial(measure, make, steps, length)
          for name, make in contenders.items()
      },
      repeats,
  )
  limit = [core for _, core in next(iter(readings.values()))]
  rows = []
  for name, values in readings.items():
    wall, core = zip(*values, strict=True)
    rows.append([
        name,
        harness.spread([v / 1e6 for v in wall], '.2f'),
        harness.spread([v / 1e6 for v in core], '.2f'),
        harness.spread([v / length for v in core], ',.0f'),
        harness.spread(harness.ratios(core, limit), '.2f'),
    ])
  header = [
      f'length {length}, batch {BATCH}',
      'million tokens/s',
      'per core',
      'sequences/s per core',
      'of the limit',
  ]
  harness.print_table(header, rows)


def parse_args():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--repeats', type=int, default=5, help='of each reading')
  return parser.parse_args()


def main():
  args = parse_args()
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)
  print(f'a v3-8 at 50 % MFU eats {NEED:,} sequences of 128 per second\n')
  with tempfile.TemporaryDirectory() as root:
    for phase in PHASES:
      compare(pathlib.Path(root), phase, args.repeats)


if __name__ == '__main__':
  main()
