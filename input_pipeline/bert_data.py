"""Makes BERT pretraining data of text: records, metadata.json and vocab.txt.

python -m input_pipeline.bert_data --input 'corpus/*.txt' --output data/
    --vocab vocab.txt

makes records of 128 tokens in data/ and of 512 in data/512, for both phases of
pretraining; --max_seq_length 128 makes the former alone.

The text has one sentence a line and a blank line between documents; with
--split_sentences a line may be a paragraph. Files in .gz or .xz will do. With
--masking runtime, the default, records hold whole sequences and training hides
other tokens in each epoch; with --masking static they have the seven features
of google-research/bert, and --dupe_factor copies of the text differ in pairs
and masks.

The output is the same for any number of workers. A command that was
interrupted goes on with the first shard that is not finished when it is given
again. Exit codes: 0 done, 1 failed, 2 wrong use.
"""

import argparse
import math
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent import futures

from input_pipeline import (
    bert_folder,
    bert_options,
    bert_records,
    bert_workers,
    corpus,
    tokenizer,
)

# Of google-research/bert and NVIDIA, by length.
_PREDICTIONS = {128: 20, 512: 80}
# Of text so large, in bytes, so much is held out where nothing else is said:
# it has documents enough for both.
_LARGE, _HELD_OUT = 100_000_000, 0.01
_MANY_OF_ONE = 0.5  # documents of one sentence
_MANY_UNKNOWN = 0.1  # tokens; English text under an English vocabulary has 1 %
# Google's default for masks that are fixed; others come anew each epoch.
_COPIES = {'runtime': 1, 'static': 10}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
      'python -m input_pipeline.bert_data',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  add = parser.add_argument
  add('--input', required=True, nargs='+', help='files of text or globs')
  add('--output', required=True, help='folder to write')
  add('--vocab', required=True, help='WordPiece vocabulary, a token a line')
  add(
      '--max_seq_length',
      type=int,
      nargs='+',
      default=[128, 512],
      help='in tokens; of several, all but the first have a folder of their'
      ' own in the output (128 512)',
  )
  add(
      '--max_predictions_per_seq',
      type=int,
      nargs='+',
      default=[],
      help='the most masked tokens, for each length (20 for 128, 80 for 512,'
      ' else length times masked_lm_prob, rounded up)',
  )
  add('--masking', choices=('runtime', 'static'), default='runtime')
  add(
      '--dupe_factor',
      type=int,
      help='copies of the text (1, with static masks 10)',
  )
  add('--masked_lm_prob', type=float, default=0.15, help='(0.15)')
  add('--short_seq_prob', type=float, default=0.1, help='(0.1)')
  for name, default, text in (
      ('whole_word_mask', False, 'mask all pieces of a word or none'),
      ('lowercase', True, 'for uncased vocabularies; also removes accents'),
      ('split_sentences', False, 'lines are paragraphs'),
  ):
    add(
        f'--{name}',
        type=corpus.boolean,
        nargs='?',
        const=True,
        default=default,
        metavar='true|false',
        help=f'{text} ({str(default).lower()})',
    )
  add('--seed', type=int, default=12345, help='(12345)')
  add('--workers', type=int, default=0, help='processes (0: one a core)')
  add('--shards', type=int, default=8, help='files for each split (8)')
  add(
      '--test_fraction',
      type=float,
      help='share of the documents that go to test-* files (0.01 where the'
      ' files have 100 MB or more, else 0)',
  )
  add('--container', choices=bert_records.SUFFIXES, default='tfrecord')
  return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
  try:
    args = parse_args(argv)
  except SystemExit as e:
    return e.code
  lengths, most = args.max_seq_length, args.max_predictions_per_seq
  if most and len(most) != len(lengths):
    return _fail(
        f'--max_predictions_per_seq has {len(most)} values, and'
        f' --max_seq_length {len(lengths)}',
        2,
    )
  parts = []
  for i, length in enumerate(lengths):
    one = argparse.Namespace(**vars(args))
    one.max_seq_length = length
    one.max_predictions_per_seq = most[i] if most else None
    if i:
      one.output = os.path.join(args.output, str(length))
    try:
      _check(one)
    except ValueError as e:
      return _fail(e, 2)
    parts.append(one)
  # Before the first of them is written, all are known to be possible.
  return next(filter(None, map(_run, parts)), 0)


def _run(args):
  """Makes the records of one length; returns the exit code."""
  try:
    paths = corpus.files(args.input)
    if args.test_fraction is None:
      size = sum(map(os.path.getsize, paths))
      args.test_fraction = _HELD_OUT if size >= _LARGE else 0.0
    own = tokenizer.WordPieceTokenizer(args.vocab, args.lowercase)
    for token in ('cls_id', 'sep_id', 'mask_id'):
      getattr(own, token)  # Raises if there is none.
    made_of = bert_folder.settings(args, paths, own)
    if bert_folder.is_complete(args.output, made_of):
      print(f'{args.output} is complete already')
      return 0
    bert_folder.prepare(args.output, made_of)
  except (ValueError, OSError) as e:
    return _fail(e, 2)
  try:
    metadata = _make(args, paths, made_of)
  except (ValueError, OSError, futures.BrokenExecutor) as e:
    return _fail(e, 1)
  counts = ', '.join(f'{n:,} {s}' for s, n in metadata['num_examples'].items())
  print(f'{args.output}: {counts} examples of {len(paths)} files of text')
  return 0


def _check(args):
  """Fills in defaults; raises ValueError for what is out of range."""
  most = args.max_seq_length - 3
  if args.dupe_factor is None:
    args.dupe_factor = _COPIES[args.masking]
  if args.max_predictions_per_seq is None:
    # Without the last bits: 20 * 0.15 is 3.0000000000000004.
    wanted = round(args.max_seq_length * args.masked_lm_prob, 6)
    wanted = _PREDICTIONS.get(args.max_seq_length, math.ceil(wanted))
    args.max_predictions_per_seq = min(max(wanted, 1), most)
  for name, low, high in (
      ('max_seq_length', 5, math.inf),  # Three special tokens and two others.
      ('max_predictions_per_seq', 1, most),
      ('masked_lm_prob', 0, 1),
      ('short_seq_prob', 0, 1),
      ('dupe_factor', 1, math.inf),
      ('shards', 1, 99999),
      ('workers', 0, math.inf),
  ):
    value = getattr(args, name)
    if not low <= value <= high:
      raise ValueError(
          f'--{name} {value} is not between {low} and {high}'
          + (' (max_seq_length - 3)' if high == most else '')
      )
  if not 0 <= (args.test_fraction or 0) < 1:
    raise ValueError(f'--test_fraction {args.test_fraction} is not in [0, 1)')


def _make(args, paths, made_of):
  """Writes the shards, then the metadata, which it returns."""
  parts = os.path.join(args.output, bert_options.PARTS)
  texts = [_plain(path, parts, i) for i, path in enumerate(paths)]
  vocab = os.path.join(args.output, 'vocab.txt')
  shutil.copyfile(args.vocab, vocab)
  options = bert_options.Options(
      paths=tuple(texts),
      sizes=tuple(os.path.getsize(text) for text in texts),
      vocab=vocab,
      vocab_sha256=made_of['vocab_sha256'],
      **{
          name: value
          for name, value in vars(args).items()
          if name in bert_options.Options._fields and name != 'vocab'
      },
  )
  try:
    made = bert_workers.run(options, args.workers)
    metadata = bert_folder.finish(options, made_of, made)
  except ValueError:  # The text has to change, and with it all of the data.
    bert_folder.clear(options)
    raise
  share = metadata['share_one_sentence_documents']
  if share >= _MANY_OF_ONE:
    print(
        f'warning: {share:.0%} of documents have one sentence; their pairs are'
        ' all random, with label 1. Sentences are lines, and a blank line ends'
        ' a document (for paragraphs on a line: --split_sentences)',
        file=sys.stderr,
    )
  unknown = metadata['share_unknown_tokens']
  if unknown >= _MANY_UNKNOWN:
    print(
        f'warning: {unknown:.0%} of tokens are [UNK]: is {args.vocab} the'
        ' vocabulary of this text?',
        file=sys.stderr,
    )
  return metadata


def _plain(path, folder, number):
  """Returns `path`, or that of what it holds if it is compressed."""
  if not corpus.is_compressed(path):
    return path
  text = os.path.join(folder, f'text-{number}')
  if not os.path.exists(text):
    corpus.expand(path, f'{text}.unfinished')
    os.replace(f'{text}.unfinished', text)
  return text


def _fail(error, code):
  print(f'error: {error}', file=sys.stderr)
  return code


if __name__ == '__main__':
  sys.exit(main())
