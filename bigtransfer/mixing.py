"""MixUp and CutMix on the devices, over the whole global batch.

One draw per step serves the whole batch, and the partner of row i is row
b - 1 - i, as in the released BiT code (`input_pipeline_tf2_or_jax.py`). Rows
and draws are those of the global array under `jax.jit`, so the result does not
depend on the number of devices; call these before a batch is split into
microbatches, so that it does not depend on accumulation either.

A padded or bad row (mask 0) is nobody's partner: the row that would have got
it keeps its own image and label. That is exact, also where the padding holds
NaN, and a batch without padding is mixed as by the reference.

Shapes: images [b, h, w, c], soft labels [b, k] of the same float type as the
loss takes, mask [b] with 1 for real rows.
"""

import jax
import jax.numpy as jnp


def mix(rng, images, labels, mask, config):
  """Applies what `config.augment` asks for; one of the two if both.

  Args:
    rng: a key, used for this step only.
    images: [b, h, w, c].
    labels: soft labels [b, k].
    mask: [b], 1 for real rows.
    config: section with `mixup_alpha` and `cutmix_alpha`, 0 meaning off. With
      both on, each step uses one of them, with probability 1/2.

  Returns:
    Mixed images and labels.
  """
  batch = (images, labels, mask)
  mixup_alpha, cutmix_alpha = config.mixup_alpha, config.cutmix_alpha
  if mixup_alpha and cutmix_alpha:
    choice, rng = jax.random.split(rng)
    return jax.lax.cond(
      jax.random.bernoulli(choice),
      lambda: mixup(rng, *batch, mixup_alpha),
      lambda: cutmix(rng, *batch, cutmix_alpha),
    )
  if mixup_alpha:
    return mixup(rng, *batch, mixup_alpha)
  if cutmix_alpha:
    return cutmix(rng, *batch, cutmix_alpha)
  return images, labels


def mixup(rng, images, labels, mask, alpha):
  """Blends every row with its partner (Zhang et al., arXiv 1710.09412).

  lambda ~ Beta(alpha, alpha) weighs the row itself, 1 - lambda its partner, in
  image and label alike.
  """
  share = jax.random.beta(rng, alpha, alpha)
  return (
    _with_partner(_blend(images, share), images, mask),
    _with_partner(_blend(labels, share), labels, mask),
  )


def cutmix(rng, images, labels, mask, alpha):
  """Pastes a box of the partner into every row (Yun et al., arXiv 1905.04899).

  The box covers 1 - lambda of the image, lambda ~ Beta(alpha, alpha), around a
  uniform centre, and is cut off at the borders. The partner's share of the
  label is the exact area of what was pasted.
  """
  share_rng, y_rng, x_rng = jax.random.split(rng, 3)
  height, width = images.shape[1:3]
  side = jnp.sqrt(1.0 - jax.random.beta(share_rng, alpha, alpha))
  rows = _interval(y_rng, height, side)
  columns = _interval(x_rng, width, side)
  box = (rows[:, None] & columns[None, :])[None, :, :, None]
  share = 1.0 - jnp.mean(box, dtype=jnp.float32)
  return (
    _with_partner(jnp.where(box, images[::-1], images), images, mask),
    _with_partner(_blend(labels, share), labels, mask),
  )


def _interval(rng, size, side):
  """Returns bool [size], true on about `side` * size around a random centre."""
  half = jnp.floor(size * side).astype(jnp.int32) // 2
  centre = jax.random.randint(rng, (), 0, size)
  position = jnp.arange(size)
  return (centre - half <= position) & (position < centre + half)


def _blend(values, share):
  share = share.astype(values.dtype)
  return share * values + (1 - share) * values[::-1]


def _with_partner(mixed, values, mask):
  partner_is_real = mask[::-1] > 0
  shape = (-1,) + (1,) * (values.ndim - 1)
  return jnp.where(partner_is_real.reshape(shape), mixed, values)
