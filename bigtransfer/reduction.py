"""How the gradient of a global batch comes together from the devices.

Left to itself, the compiler adds up each gradient over devices where it comes
about: in the loop over layers inside the loop over micro-batches, in the type
of the product. Along those axes of the batch over which every parameter is
whole, the loops here run on each device by itself (`jax.shard_map`), and their
sums are added up once, in the type asked for. Where the optimizer's moments are
split (ZeRO-1), each device gets the sum of its part only.

Along 'fsdp', where parameters are split over it, each layer is gathered where
it is used, forward and back, and each gradient is added up into its parts per
layer and micro-batch, in the type of the product: to wait with that would take
a whole gradient on every device. Without `model.remat` what was gathered on the
way forward is kept for the way back.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from bigtransfer import sharding, trees
from bigtransfer.mesh import BATCH_AXES
from bigtransfer.models.gathered import Gathered


class Layout:
  """Which axes are reduced by hand, and where gradients lie.

  Args:
    mesh: as `mesh.make` makes it.
    params: tree of NamedShardings of the parameters; None = whole everywhere.
    grads: the same of gradients as the optimizer gets them; None = as `params`.
    dtype: 'float32' or 'bfloat16', of the sums over devices.
  """

  def __init__(self, mesh, params=None, grads=None, dtype='float32'):
    self._mesh, self._params, self._dtype = mesh, params, jnp.dtype(dtype)
    self._grads = params if grads is None else grads
    split = set() if params is None else sharding.axes_of(params)
    self._manual = tuple(
        a for a in BATCH_AXES if mesh.shape[a] > 1 and a not in split
    )

  def sum_over_devices(self, sums_of, params, model_state, batch, rng):
    """Runs `sums_of`, which sees its part of the batch, and adds up.

    Args:
      sums_of: (params, model_state, batch, rng) -> (model_state, (grads,
        sums)), both sums over the rows of `batch`.
      params: the parameters.
      model_state: if there is any, it is statistics of the whole batch, and all
        is left to the compiler.
      batch: the global batch.
      rng: a key, the same for all.

    Returns:
      What `sums_of` returns, of the global batch.

    Raises:
      ValueError: a type asked for where the compiler adds up.
    """
    manual = () if model_state else self._manual
    if not manual:
      self._check_dtype(model_state)
      with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
        return sums_of(params, model_state, batch, rng)
    specs = self._manual_specs(params, manual)

    def reduced(params, batch, rng):
      _, (grads, sums) = sums_of(params, model_state, batch, rng)
      reduce = functools.partial(self._reduce, axes=manual)
      return jax.tree.map(reduce, grads, specs), lax.psum(sums, manual)

    # Unchecked: a model may mix what differs between devices with what does
    # not, in a loop of its own, without saying so.
    grads, sums = jax.shard_map(
        reduced,
        mesh=self._mesh,
        in_specs=(P(), P(manual), P()),
        out_specs=(specs, P()),
        axis_names=set(manual),
        check_vma=False,
    )(params, batch, rng)
    return model_state, (grads, sums)

  def with_gathers(self, loss, params):
    """Makes `loss` put together where used what axes of the batch split.

    What is split otherwise, or not, lies there as it does outside.

    Args:
      loss: (params, ...) -> anything.
      params: of their shapes.
    """
    gathers = self._gathers(params)
    if not gathers:
      return loss

    def box(path, value):
      return Gathered(value, *gathers[path])

    def gathering(params, *args):
      return loss(trees.map_with_path(box, params), *args)

    return gathering

  def _gathers(self, params):
    """Returns {path: (layout, layout where used)}, if anything is split."""
    result = {}
    if self._params is None or not sharding.axes_of(self._params):
      return result
    ranks = {path: leaf.ndim for path, leaf in trees.flatten(params)}
    for path, where in trees.flatten(self._params):
      # An entry per dimension, for a loop over layers takes one away.
      entries = [sharding.axes_in(entry) for entry in where.spec]
      entries += [()] * (ranks[path] - len(entries))
      whole = [tuple(a for a in e if a not in BATCH_AXES) for e in entries]
      result[path] = (_spec(entries), _spec(whole))
    return result

  def place_partial(self, grads):
    """Places the gradients of a micro-batch as their parameters."""
    if self._params is None:
      return grads
    return jax.tree.map(
        lambda x, where: lax.with_sharding_constraint(x, where.spec),
        grads, self._params,
    )

  def place_micro_batches(self, x):
    """Splits [accum_steps, b, ...] along b, where the compiler does."""
    manual = jax.sharding.get_abstract_mesh().manual_axes
    axes = tuple(a for a in BATCH_AXES if a not in manual)
    return lax.with_sharding_constraint(x, P(None, axes))

  def _manual_specs(self, params, manual):
    """Returns where gradients are split over axes that go by hand."""
    if self._grads is None:
      return jax.tree.map(lambda _: P(), params)

    return jax.tree.map(
        lambda where: _spec(
            tuple(a for a in sharding.axes_in(entry) if a in manual)
            for entry in where.spec
        ),
        self._grads,
    )

  def _check_dtype(self, model_state):
    parts = math.prod(self._mesh.shape[a] for a in BATCH_AXES)
    if self._dtype == jnp.float32 or parts == 1:
      return
    why = (
        'a model with statistics of the batch' if model_state
        else 'parameters split over all axes of the batch'
    )
    raise ValueError(
        f"config.sharding.reduce_dtype='{self._dtype}' with {why}: the compiler"
        " adds up gradients in a type of its own; accepted: 'float32'"
    )

  def _reduce(self, grad, spec, axes):
    """Adds up a gradient over `axes`, into its part where `spec` splits it."""
    total, kept = self._narrow(grad), grad.dtype
    left = set(axes)
    for dimension, entry in enumerate(spec):
      over = sharding.axes_in(entry)
      if over:
        total = lax.psum_scatter(
            total, over, scatter_dimension=dimension, tiled=True
        )
        left -= set(over)
    if left:
      total = lax.psum(total, tuple(a for a in axes if a in left))
    return self._narrow(total).astype(kept)

  def _narrow(self, x):
    if self._dtype == x.dtype:
      return x
    if self._mesh.devices.flat[0].platform == 'cpu':
      # There XLA would carry the sum in float32 too, and can fail to rewrite
      # it: "Invalid binary instruction opcode copy", which ends the process.
      kind = jnp.finfo(self._dtype)
      return lax.reduce_precision(x, kind.nexp, kind.nmant)
    return x.astype(self._dtype)


def _spec(entries):
  """Makes a layout of tuples of axes, one per dimension."""
  return P(*(axes or None for axes in entries))
