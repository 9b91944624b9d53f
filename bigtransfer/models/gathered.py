"""Where split parameters are put together, and what is never split.

Left to itself, the compiler may carry the split of a parameter on into the
activations, and then moves those from device to device in every layer. That of
TPUs goes further: it makes all zeros of one shape one value, and from there any
two gradients, or two stacks of activations, of equal shape get one split.

So a box around each parameter says how it lies where a module asks for it, and
its gradient with it: over the devices of a batch it is put together there, in a
stack inside the loop over layers, one layer at a time. `whole` says the same of
activations.
"""

from typing import Any

import jax
from flax import struct
from flax.core import meta
from jax import lax
from jax.sharding import PartitionSpec as P


def whole(x: jax.Array) -> jax.Array:
  """Keeps each row of x [b, ...] whole on every device that shares it.

  Follows the mesh that the caller has set, and changes nothing where there is
  none or where no axis is left to the compiler.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if all(mesh.shape[axis] == 1 for axis in mesh.auto_axes):
    return x
  rest = (None,) * (x.ndim - 1)
  return lax.with_sharding_constraint(x, P(P.UNCONSTRAINED, *rest))


class Gathered(struct.PyTreeNode, meta.AxisMetadata):
  """A parameter in a box; Flax opens it where a module asks for it.

  Attributes:
    value: the parameter, split as `split` says.
    split: its layout.
    whole: its layout where it is used.
  """

  value: Any
  split: P = struct.field(pytree_node=False)
  whole: P = struct.field(pytree_node=False)

  def unbox(self):
    split = lax.with_sharding_constraint(self.value, self.split)
    return lax.with_sharding_constraint(split, self.whole)

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
