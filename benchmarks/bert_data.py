"""Megabytes of text per second of making BERT data, and of tokenizing alone.

python -m benchmarks.bert_data --google BERT

The text is the first part of the embedded speeches, a sentence a line. Rates
count processor time, so that other load on the machine does not matter, and
the text once, also where it is copied ten times. Tokenizers start without
having seen a word.
"""

import argparse
import contextlib
import functools
import importlib.util
import io
import itertools
import os
import pathlib
import random
import sys
import tempfile
import time

# Read by the library when it is loaded.
os.environ['TOKENIZERS_PARALLELISM'] = 'false'

import tokenizers  # noqa: E402
from tokenizers import models, normalizers, pre_tokenizers  # noqa: E402

from benchmarks import harness  # noqa: E402
from input_pipeline import (  # noqa: E402
    bert_data,
    embedded,
    sentence_split,
    tokenizer,
)
from input_pipeline.host import tf  # noqa: E402

VOCABULARY = os.path.join(embedded.FOLDER, 'speeches_vocab.txt')
LENGTH, PREDICTIONS = 128, 20


def write_text(path, size):
  """Writes whole speeches of about `size` bytes, spread over the years."""
  speeches = embedded.speeches()
  step = max(1, round(sum(map(len, speeches)) / size))
  documents = []
  for speech in speeches[::step]:
    paragraphs = map(sentence_split.split, speech.split('\n'))
    documents.append('\n'.join(itertools.chain.from_iterable(paragraphs)))
  path.write_text('\n\n'.join(documents) + '\n', encoding='utf-8')


def ours(text, *options):
  with tempfile.TemporaryDirectory() as folder:
    command = ['--input', str(text), '--output', f'{folder}/data']
    command += ['--vocab', VOCABULARY, '--max_seq_length', str(LENGTH)]
    command += ['--max_predictions_per_seq', str(PREDICTIONS), *options]
    with contextlib.redirect_stdout(io.StringIO()):
      if bert_data.main([*command, '--workers', '1', '--shards', '1']):
        raise ValueError('bert_data gave up')


def load_google(folder):
  """Returns create_pretraining_data and tokenization, as modules."""
  for name in ('tokenization', 'create_pretraining_data'):
    path = pathlib.Path(folder) / f'{name}.py'
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
  # They are written for TensorFlow 1.
  now, sys.modules['tensorflow'] = sys.modules['tensorflow'], tf.compat.v1
  try:
    for name in ('tokenization', 'create_pretraining_data'):
      sys.modules[name].__spec__.loader.exec_module(sys.modules[name])
  finally:
    sys.modules['tensorflow'] = now
  module = sys.modules['create_pretraining_data']
  module.FLAGS(['', '--input_file=', '--output_file=', '--vocab_file='])
  return module, sys.modules['tokenization']


def google(modules, text, copies):
  """What main() of its script does."""
  module, tokenization = modules
  own = tokenization.FullTokenizer(VOCABULARY, do_lower_case=True)
  with tempfile.TemporaryDirectory() as folder:
    instances = module.create_training_instances(
        [str(text)],
        own,
        LENGTH,
        copies,
        0.1,
        0.15,
        PREDICTIONS,
        random.Random(12345),
    )
    module.write_instance_to_example_files(
        instances, own, LENGTH, PREDICTIONS, [f'{folder}/data']
    )


def our_tokenizer(lines):
  tokenizer.WordPieceTokenizer(VOCABULARY).encode_batch(lines)


def raw_tokenizer(lines):
  own = tokenizers.Tokenizer(
      models.WordPiece.from_file(VOCABULARY, unk_token='[UNK]')
  )
  own.normalizer = normalizers.BertNormalizer()
  own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  own.encode_batch_fast(lines)


def google_tokenizer(modules, lines):
  own = modules[1].FullTokenizer(VOCABULARY, do_lower_case=True)
  for line in lines:
    own.convert_tokens_to_ids(own.tokenize(line))


def fast_bert_tokenizer():
  """Returns that of tensorflow-text as a function, or None without it."""
  if importlib.util.find_spec('tensorflow_text') is None:
    return None
  import tensorflow_text

  own = tensorflow_text.FastBertTokenizer(
      pathlib.Path(VOCABULARY).read_text(encoding='utf-8').splitlines(),
      lower_case_nfd_strip_accents=True,
  )
  return lambda lines: own.tokenize(tf.constant(lines))


def measure(function, size):
  """Returns megabytes per second of processor time."""
  start = time.process_time()
  function()
  return size / 1e6 / (time.process_time() - start)


def compare(title, entries, limit, size, repeats):
  """Measures {name: function or None} in turn and prints a table."""
  readings = harness.in_turn(
      {
          name: function and functools.partial(measure, function, size)
          for name, function in entries.items()
      },
      repeats,
  )
  rows = []
  for name, values in readings.items():
    base = readings[limit][: len(values)]
    ratios = harness.ratios(values, base) if base else ()
    rows.append(
        [name, harness.spread(values, '.2f'), harness.spread(ratios, '.2f')]
    )
  harness.print_table([title, 'MB/s per core', f'of {limit}'], rows)


def parse_args():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument(
      '--google', metavar='DIR', help='a checkout of google-research/bert'
  )
  parser.add_argument('--repeats', type=int, default=3, help='of each reading')
  parser.add_argument('--megabytes', type=float, default=2, help='of text')
  return parser.parse_args()


def main():
  args = parse_args()
  harness.pin(1)
  modules = args.google and load_google(args.google)
  with tempfile.TemporaryDirectory() as root:
    text = pathlib.Path(root) / 'text.txt'
    write_text(text, args.megabytes * 1e6)
    size = text.stat().st_size
    lines = text.read_text(encoding='utf-8').split('\n')
    print(f'{size / 1e6:.2f} MB of text, {args.repeats} rounds\n')
    part = functools.partial
    fast = fast_bert_tokenizer()
    compare(
        'tokenizing',
        {
            'tokenizers, one thread': part(raw_tokenizer, lines),
            'bigtransfer': part(our_tokenizer, lines),
            'FastBertTokenizer': fast and part(fast, lines),
            'google-research/bert': modules
            and part(google_tokenizer, modules, lines),
        },
        'tokenizers, one thread',
        size,
        args.repeats,
    )
    for copies, title in ((1, 'one copy'), (10, 'ten copies')):
      static = ('--masking', 'static', '--dupe_factor', str(copies))
      compare(
          title,
          {
              'google-research/bert': modules
              and part(google, modules, text, copies),
              'bigtransfer, masks at run time': part(ours, text),
              'bigtransfer, static masks': part(ours, text, *static),
          },
          'google-research/bert',
          size,
          args.repeats if copies == 1 else 1,
      )


if __name__ == '__main__':
  main()
