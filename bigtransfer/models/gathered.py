"""Parameters that are split over the devices of a batch, whole where used.

Left to itself, the compiler may carry the split of a parameter on into the
activations, and then moves those from device to device in every layer. A box
around the parameter says where it is put together: where a module asks for it,
in a stack inside the loop over layers, one layer at a time.
"""

from typing import Any

from flax import struct
from flax.core import meta
from jax.sharding import PartitionSpec as P


class Gathered(struct.PyTreeNode, meta.AxisMetadata):
  """A parameter in a box; Flax opens it where a module asks for it.

  Attributes:
    value: the parameter, split as `split` says.
    split: its layout.
    whole: its layout where it is used.
    place: (array, layout) -> array.
  """

  value: Any
  split: P = struct.field(pytree_node=False)
  whole: P = struct.field(pytree_node=False)
  place: Any = struct.field(pytree_node=False)

  def unbox(self):
    return self.place(self.place(self.value, self.split), self.whole)

  def replace_boxed(self, val):
    return self.replace(value=val)

  def add_axis(self, index, params):
    del params
    return self.replace(
        split=P(*self.split[:index], None, *self.split[index:]),
        whole=P(*self.whole[:index], None, *self.whole[index:]),
    )

  def remove_axis(self, index, params):
    """A loop takes a slice along an axis that is never split."""
    del params
    return self.replace(
        split=P(*self.split[:index], *self.split[index + 1 :]),
        whole=P(*self.whole[:index], *self.whole[index + 1 :]),
    )
