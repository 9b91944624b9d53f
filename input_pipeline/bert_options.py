"""What BERT pretraining data is a function of."""

import functools
import hashlib
import os
import random
from typing import NamedTuple

from input_pipeline import tokenizer

PARTS = '.parts'
BLOCK_BYTES = 4 << 20


class Options(NamedTuple):
  """What makes the data: the flags of bert_data, and the files they name."""

  paths: tuple[str, ...]
  sizes: tuple[int, ...]
  vocab: str
  vocab_sha256: str
  output: str
  shards: int
  container: str
  masking: str
  max_seq_length: int
  max_predictions_per_seq: int
  masked_lm_prob: float
  short_seq_prob: float
  whole_word_mask: bool
  lowercase: bool
  dupe_factor: int
  test_fraction: float
  split_sentences: bool
  seed: int

  @property
  def splits(self) -> tuple[str, ...]:
    return ('train', 'test') if self.test_fraction else ('train',)

  @property
  def blocks(self) -> int:
    """How many blocks: as many for every shard."""
    per_shard = -(-sum(self.sizes) // (self.shards * BLOCK_BYTES))
    return self.shards * max(per_shard, 1)

  def tokenizer(self) -> tokenizer.WordPieceTokenizer:
    return _tokenizer(self.vocab, self.vocab_sha256, self.lowercase)

  def random(self, *key: str | int) -> random.Random:
    """Returns a generator for what `key` names."""
    text = ' '.join(map(str, (self.seed, *key)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, 'little'))

  def file(self, split: str, shard: int) -> str:
    name = f'{split}-{shard:05d}-of-{self.shards:05d}.{self.container}'
    return os.path.join(self.output, name)

  def part(self, shard: int) -> str:
    """The file that says that a shard is finished."""
    return os.path.join(self.output, PARTS, f'{shard:05d}.json')


@functools.lru_cache(1)
def _tokenizer(path, sha256, lowercase):
  del sha256  # Tells apart what was at the same path before.
  return tokenizer.WordPieceTokenizer(path, lowercase)
