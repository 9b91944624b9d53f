"""The mini-language of operations: 'decode|resize(256)|central_crop(224)'.

Names are separated by |, arguments are Python literals. Parsed once, before
any data is read.
"""

import ast
import difflib
import inspect

from input_pipeline import decode, image_ops, randaugment
from input_pipeline.host import tf

REGISTRY = {
    make.__name__: make
    for make in (
        decode.decode,
        decode.decode_inception_crop,
        image_ops.central_crop,
        image_ops.flip_lr,
        image_ops.grey,
        image_ops.inception_crop,
        image_ops.pad,
        image_ops.random_crop,
        image_ops.resize,
        image_ops.resize_small,
        image_ops.value_range,
        randaugment.randaugment,
    )
}


class Chain:
  """The parsed operations, run one after the other.

  Attributes:
    text: what was parsed.
    draws: how many random bits per example `one` and `many` take.
    batched: whether `many` exists.
    decodes: whether the first operation takes encoded images.
  """

  def __init__(self, text: str):
    """Raises ValueError naming an unknown operation or a wrong argument."""
    self.text = text
    self._ops = [_parse(item) for item in text.split('|') if text]
    # At least one: TensorFlow 2.21 crashes when it unbatches rows of no bits.
    self.draws = max(1, sum(op.draws for op in self._ops))
    self.batched = all(op.many for op in self._ops)
    self.decodes = any(op.decodes for op in self._ops[:1])

  def one(self, image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Returns float32 [h, w, c] from one image or encoded string."""
    return tf.cast(self.head(image, bits, len(self._ops)), tf.float32)

  def many(self, images: tf.Tensor, bits: tf.Tensor, begin: int = 0):
    """Returns float32 [b, h, w, c] from images [b, h, w, c].

    `begin` operations have been run on each of them by `head`.
    """
    draws = sum(op.draws for op in self._ops[:begin])
    functions = [(op.many, op.draws) for op in self._ops[begin:]]
    return tf.cast(_run(functions, images, bits[..., draws:]), tf.float32)

  def head(self, image: tf.Tensor, bits: tf.Tensor, end: int) -> tf.Tensor:
    """Returns one image after the first `end` operations."""
    functions = [(op.one, op.draws) for op in self._ops[:end]]
    return _run(functions, image, bits)

  def joint(self) -> int | None:
    """After how many operations images have one size and the rest `many`."""
    for i, op in enumerate(self._ops[:-1]):
      if op.sizes and all(later.many for later in self._ops[i + 1 :]):
        return i + 1
    return None


def _run(functions, image, bits):
  at = 0
  for function, draws in functions:
    image = function(image, bits[..., at : at + draws])
    at += draws
  return image


def _parse(item):
  try:
    call = ast.parse(item.strip(), mode='eval').body
    if isinstance(call, ast.Name):
      call = ast.Call(call, [], [])
    name = call.func.id
    args = [ast.literal_eval(arg) for arg in call.args]
    kwargs = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
  except (SyntaxError, ValueError, AttributeError):
    raise ValueError(
        f'cannot read the operation {item!r}: expected a name or name(literals)'
    ) from None
  if name not in REGISTRY:
    near = difflib.get_close_matches(name, REGISTRY, n=1, cutoff=0)[0]
    raise ValueError(
        f'unknown operation {name!r}; did you mean {near!r}? There is'
        f' {", ".join(sorted(REGISTRY))}'
    )
  make = REGISTRY[name]
  signature = inspect.signature(make)
  try:
    signature.bind(*args, **kwargs)
    return make(*args, **kwargs)
  except (TypeError, ValueError) as error:
    expected = signature.replace(return_annotation=signature.empty)
    raise ValueError(f'{item!r}: {error}; expected {name}{expected}') from None
