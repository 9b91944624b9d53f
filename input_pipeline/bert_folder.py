"""The folder that bert_data writes: what it is of, whether it is complete.

Shards come first and metadata.json last. Until then `.parts` holds what the
data is a function of, and a note for each shard that is finished.
"""

import argparse
import json
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from input_pipeline import bert_options, bert_records, tokenizer

FORMAT = 'bigtransfer-bert-1'
_METADATA, _SETTINGS = 'metadata.json', 'settings.json'
_ENDS = 1 << 16  # bytes of a file by which it is known again


def settings(
    args: argparse.Namespace,
    paths: Sequence[str],
    own: tokenizer.WordPieceTokenizer,
) -> dict[str, Any]:
  """Returns what the shards are a function of, as metadata.json has it."""
  return {
      'format': FORMAT,
      'container': args.container,
      'masking': args.masking,
      'max_seq_length': args.max_seq_length,
      'max_predictions_per_seq': args.max_predictions_per_seq,
      'masked_lm_prob': args.masked_lm_prob,
      'vocab_sha256': own.sha256,
      'vocab_size': own.vocab_size,
      'lowercase': args.lowercase,
      'whole_word_mask': args.whole_word_mask,
      'dupe_factor': args.dupe_factor,
      'short_seq_prob': args.short_seq_prob,
      'seed': args.seed,
      'test_fraction': args.test_fraction,
      'split_sentences': args.split_sentences,
      'num_shards': args.shards,
      'inputs': [_identity(path) for path in paths],
  }


def _identity(path):
  """Returns name, size, and a checksum of the beginning and the end."""
  size = os.path.getsize(path)
  with open(path, 'rb') as file:
    crc = zlib.crc32(file.read(_ENDS))
    file.seek(max(size - _ENDS, 0))
    crc = zlib.crc32(file.read(), crc)
  return [os.path.basename(path), size, crc]


def is_complete(output: str, made_of: Mapping[str, Any]) -> bool:
  """Says whether all is there; raises ValueError if it is other data."""
  path = os.path.join(output, _METADATA)
  if not os.path.exists(path):
    return False
  with open(path) as file:
    metadata = json.load(file)
  _compare(output, metadata, made_of)
  for name, (_, size) in metadata['shards'].items():
    file = os.path.join(output, name)
    if not os.path.exists(file) or os.path.getsize(file) != size:
      raise ValueError(
          f'{file} is not there with {size} bytes, as {_METADATA} has it:'
          f' remove {output} and give the command again'
      )
  return True


def prepare(output: str, made_of: Mapping[str, Any]):
  """Makes the folder, or finds it as an interrupted command left it.

  Raises ValueError if it has anything else in it.
  """
  parts = os.path.join(output, bert_options.PARTS)
  path = os.path.join(parts, _SETTINGS)
  if os.path.exists(path):
    with open(path) as file:
      _compare(output, json.load(file), made_of)
    return
  if os.path.isdir(output) and (found := sorted(os.listdir(output))):
    if found != [bert_options.PARTS]:
      raise ValueError(f'{output} is not empty: it has {found[0]}')
  os.makedirs(parts, exist_ok=True)
  _write_json(path, made_of)


def _compare(output, found, made_of):
  for name, value in made_of.items():
    if (other := found.get(name)) == value:
      continue
    if name == 'inputs':
      raise ValueError(
          f'{output} has data of text that is other or has changed: choose'
          ' another --output, or remove it'
      )
    raise ValueError(
        f'{output} has data with {name}={other!r} and not {value!r}: choose'
        ' another --output, or remove it'
    )


def finish(
    options: bert_options.Options,
    made_of: Mapping[str, Any],
    made: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
  """Writes and returns the metadata; `made` is of each shard.

  Raises ValueError if a split has no examples.
  """
  metadata = {**made_of, **_summary(made, options.splits)}
  if problem := _missing(metadata):
    raise ValueError(problem)
  _write_json(os.path.join(options.output, _METADATA), metadata)
  shutil.rmtree(os.path.join(options.output, bert_options.PARTS))
  return metadata


def clear(options: bert_options.Options):
  """Removes what was written of text that cannot be used."""
  for shard in range(options.shards):
    for split in options.splits:
      path = options.file(split, shard)
      for file in (path, bert_records.unfinished(path)):
        if os.path.exists(file):
          os.remove(file)
  os.remove(options.vocab)
  shutil.rmtree(os.path.join(options.output, bert_options.PARTS))


def _summary(made, splits):
  shards = {k: v for m in made for k, v in m['files'].items()}
  documents = sum(m['documents'] for m in made)
  one = sum(m['one_sentence'] for m in made)
  tokens, unknown = (sum(m[k] for m in made) for k in ('tokens', 'unknown'))
  return {
      'num_examples': {
          split: sum(n for k, (n, _) in shards.items() if k.startswith(split))
          for split in splits
      },
      'num_documents': documents,
      'num_tokens': tokens,
      'share_one_sentence_documents': one / max(documents, 1),
      'share_unknown_tokens': unknown / max(tokens, 1),
      'shards': dict(sorted(shards.items())),
  }


def _missing(metadata):
  """Returns what is wrong with data that has no examples, or None."""
  if not metadata['num_documents']:
    names = [name for name, _, _ in metadata['inputs']]
    few = ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')
    return f'nothing was written: there is no text in {few}'
  if metadata['share_unknown_tokens'] == 1:
    return (
        'nothing was written: all tokens are [UNK]; the vocabulary has no word'
        ' of this text'
    )
  for split, count in metadata['num_examples'].items():
    if not count:
      return (
          f'no document was drawn for the {split} data: of'
          f' {metadata["num_documents"]} documents,'
          f' test_fraction={metadata["test_fraction"]} are for testing'
      )
  return None


def _write_json(path, value):
  with open(f'{path}.unfinished', 'w') as file:
    json.dump(value, file, indent=1)
  os.replace(f'{path}.unfinished', path)
