"""Makes one shard of BERT pretraining data: what a worker of bert_data does.

A shard is a function of the text, the options and its number alone, which is
why any number of workers writes the same and an interrupted one is made again.
The text is cut into blocks of some megabytes and shard s of S has the blocks
s, s + S, ... The other half of a random pair comes from a document of the same
block or, where a block has few, of the blocks after it. Each duplicate goes
through all blocks before the next one begins, in an order of its own inside of
each; memory is that of one block whatever the corpus and the duplicates.
"""

import itertools
import json
import os
from collections.abc import Callable

import numpy as np

from input_pipeline import (
    bert_examples,
    bert_options,
    bert_records,
    corpus,
    sentence_split,
)

# Fewer would make random pairs the same ones again and again.
_FEWEST_DOCUMENTS = 8


def finished(options: bert_options.Options, shard: int) -> dict | None:
  """Returns what `write` returned, if the shard and its files are there."""
  try:
    with open(options.part(shard)) as file:
      made = json.load(file)
    for name, (_, size) in made['files'].items():
      if os.path.getsize(os.path.join(options.output, name)) != size:
        return None
  except FileNotFoundError:
    return None
  return made


def write(
    options: bert_options.Options, shard: int, advance: Callable[[int], None]
) -> dict:
  """Writes the files of a shard and returns what is in them.

  Args:
    options: of the data.
    shard: its number.
    advance: called with the bytes of text that were done.

  Returns:
    {'files': {name: [records, bytes]}, 'documents', 'one_sentence', 'tokens',
    'unknown'}: documents, their WordPiece tokens and those of them that are
    [UNK] counted once, whatever the duplicates.

  Raises ValueError for a split of a single document.
  """
  made = {'files': {}, 'documents': 0, 'one_sentence': 0}
  made |= {'tokens': 0, 'unknown': 0}
  files = {s: options.file(s, shard) for s in options.splits}
  writers = {
      s: bert_records.Writer(f, options.container) for s, f in files.items()
  }
  blocks = range(shard, options.blocks, options.shards)
  for copy in range(options.dupe_factor):
    for block in blocks:
      if copy == 0 or len(blocks) > 1:
        documents = {s: [] for s in options.splits}
        for split, document in _read(options, block):
          documents[split].append(document)
        others = {
            split: _others(options, block, split, own)
            for split, own in documents.items()
        }
      if copy == 0:
        everything = [d for own in documents.values() for d in own]
        _count(made, everything, options.tokenizer().unk_id)
      for split, own in documents.items():
        if not own:
          continue
        examples = bert_examples.make(
            options, own, others[split], copy, block
        )
        first_id = (block << 32) + (split == 'test') * (1 << 31)
        writers[split].write(
            bert_examples.records(options, examples, copy, first_id)
        )
      begin, end = _span(options, block)
      advance(end - begin)
  for split, writer in writers.items():
    name = os.path.basename(files[split])
    made['files'][name] = [writer.count, writer.close()]
  _save(options.part(shard), made)
  return made


def _span(options, block):
  size = sum(options.sizes)
  return tuple(size * b // options.blocks for b in (block, block + 1))


def _read(options, block, split=None):
  """Yields (split, document) of a block, of one split if `split` is given."""
  own = options.tokenizer()
  for found in corpus.documents(
      options.paths, options.sizes, *_span(options, block)
  ):
    key = found.file, found.begin
    of_split = 'train'
    if options.test_fraction:
      chance = options.random('split', *key).random()
      of_split = 'test' if chance < options.test_fraction else 'train'
    if split not in (None, of_split):
      continue
    lines = found.lines
    if options.split_sentences:
      lines = [s for line in lines for s in sentence_split.split(line)]
    sentences = [ids for ids in own.encode_batch(lines) if ids]
    if sentences:
      tokens = np.array(list(itertools.chain(*sentences)), np.int32)
      bounds = np.cumsum([0, *map(len, sentences)])
      yield of_split, bert_examples.Document(key, tokens, bounds)


def _others(options, block, split, own):
  """Returns documents to draw from besides those of the block itself."""
  found = []
  if not own:
    return found
  for i in range(1, options.blocks):
    if len(own) + len(found) >= _FEWEST_DOCUMENTS:
      break
    for _, document in _read(options, (block + i) % options.blocks, split):
      found.append(document)
      if len(own) + len(found) >= _FEWEST_DOCUMENTS:
        break
  if len(own) + len(found) == 1:
    place = 'the text has'
    if options.test_fraction:
      place = f'with test_fraction={options.test_fraction} the {split} data has'
    raise ValueError(
        f'{place} one document: half of the pairs take their second segment'
        ' from another one, so there must be 2 or more documents, with a blank'
        ' line between them'
    )
  return found


def _count(made, documents, unk_id):
  made['documents'] += len(documents)
  for document in documents:
    made['one_sentence'] += len(document.bounds) == 2
    made['tokens'] += len(document.tokens)
    made['unknown'] += int((document.tokens == unk_id).sum())


def _save(path, made):
  with open(f'{path}.unfinished', 'w') as file:
    json.dump(made, file)
  os.replace(f'{path}.unfinished', path)
