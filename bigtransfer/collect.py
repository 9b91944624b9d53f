"""Runs a model over a split and brings its outputs to the host, in order."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Collector:
  """Collects outputs of every example of a split; compiles once."""

  def __init__(
      self,
      predict: Callable[[Any, Any, Any], Any],
      batches: Callable[[], Iterable[Any]],
      names: Sequence[str],
  ):
    """`predict` and `batches` as in evaluators; `names` of float outputs."""
    self._predict, self._batches, self._names = predict, batches, names
    self._forward = None

  def run(
      self, params: Any, model_state: Any, num_examples: int
  ) -> dict[str, np.ndarray]:
    """Returns float32 [num_examples, ...] of each output, on every process.

    Raises:
      ValueError: the batches do not hold `num_examples` examples first and
        padding after them.
    """
    parts, ahead = [], []
    for batch in self._batches():
      if self._forward is None:
        self._forward = self._compile(batch['mask'].sharding)
      # Fetched one batch late, so that the devices never wait for the host.
      ahead.append(self._forward(params, model_state, batch))
      if len(ahead) > 1:
        parts.append(jax.device_get(ahead.pop(0)))
    parts += jax.device_get(ahead)
    outputs = {
        k: np.concatenate([part[k] for part in parts])
        for k in (*self._names, 'mask')
    }
    mask = outputs.pop('mask') > 0
    if not np.array_equal(mask, np.arange(len(mask)) < num_examples):
      raise ValueError(
          f'the batches have {mask.sum()} examples in {len(mask)} rows,'
          f' expected {num_examples} and then padding'
      )
    return {k: v[:num_examples] for k, v in outputs.items()}

  def _compile(self, sharding):
    def forward(params, model_state, batch):
      outputs = self._predict(params, model_state, batch)
      kept = {k: outputs[k].astype(jnp.float32) for k in self._names}
      return kept | {'mask': batch['mask']}

    everywhere = None
    if isinstance(sharding, jax.sharding.NamedSharding):
      everywhere = jax.sharding.NamedSharding(
          sharding.mesh, jax.sharding.PartitionSpec()
      )
    return jax.jit(forward, out_shardings=everywhere)
