"""Which example is at which position: stateless, so that seeking is free.

Position p of a run is row p % B of step p // B, for the global batch size B.
Epoch p // N visits each of the N examples once, in an order of its own; a
batch may span two epochs and nothing is dropped. No reader has a state to
save, and no answer depends on how many processes share the rows.
"""

import numpy as np

from input_pipeline import noise
from input_pipeline.host import tf

# With the four rounds of tf.random.experimental.index_shuffle the distances
# between neighbours of 100 shuffled ids repeat more than chance allows.
_ROUNDS = 8
# Tells the key of the order from the keys of the examples, whose ids are >= 0.
_ORDER = -2


def ids_at(
    step: int,
    *,
    num_examples: int,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> np.ndarray:
  """Returns int64 ids [batch_size // process_count]: this process's rows.

  Process p of P has rows [p * B / P, (p + 1) * B / P) of the global batch of
  the 0-based `step`. Raises ValueError for sizes that do not fit.
  """
  local = local_size(batch_size, process_index, process_count)
  if step < 0 or num_examples < 1:
    raise ValueError(
        f'step={step} must be >= 0 and num_examples={num_examples} >= 1'
    )
  first = step * batch_size + process_index * local
  positions = tf.range(first, first + local, dtype=tf.int64)
  ids, _ = shuffled(positions, num_examples=num_examples, seed=seed)
  return ids.numpy().astype(np.int64)


def local_size(batch_size: int, process_index: int, process_count: int) -> int:
  """Returns the rows per process; raises ValueError if they are not equal."""
  if not 0 <= process_index < process_count:
    raise ValueError(
        f'process_index={process_index} is not in [0, {process_count})'
    )
  if batch_size < 1 or batch_size % process_count:
    below = batch_size // process_count * process_count
    raise ValueError(
        f'batch_size={batch_size} is not a positive multiple of the'
        f' {process_count} processes; nearest: {below or process_count} and'
        f' {below + process_count}'
    )
  return batch_size // process_count


def shuffled(
    positions: tf.Tensor, *, num_examples: int, seed: int
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns ids and epochs, both int64 [n], for `positions` int64 [n].

  Runs eagerly and in a graph, with the same result.
  """
  num_examples = tf.constant(num_examples, tf.int64)
  epochs = positions // num_examples
  ids = tf.raw_ops.RandomIndexShuffle(
      index=positions % num_examples,
      seed=_words(noise.fold(noise.epoch_key(seed, epochs), _ORDER)),
      max_index=num_examples - 1,
      rounds=_ROUNDS,
  )
  return ids, epochs


def _words(keys):
  """Splits uint64 keys [n] into the int64 words [n, 3] of the cipher.

  The cipher reads only as many low bits of a word as half an index has, 8 for
  a small set: a plain epoch number there would repeat after 256 epochs.
  """
  parts = [keys, noise.shift_right(keys, 21), noise.shift_right(keys, 42)]
  return tf.cast(tf.stack(parts, axis=1) % (1 << 21), tf.int64)
