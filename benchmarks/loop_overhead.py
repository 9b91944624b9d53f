"""Steps per second of a tiny model: the whole loop beside bare ones.

python -m benchmarks.loop_overhead

The loop is `bigtransfer.train.train` with the metrics of every step on disk,
its progress line and the real pipeline; the bare loop is a `jax.jit` step of
the same model fed by a tf.data pipeline that does nothing else; the last has
no input at all.
"""

import argparse
import json
import pathlib
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import harness
from bigtransfer import config as config_lib
from bigtransfer import mesh as mesh_lib
from bigtransfer import program, train
from configs import common
from input_pipeline import pipeline, sources
from input_pipeline.host import tf

BATCH, SIDE, CLASSES, EXAMPLES = 16, 8, 10, 4096
LOG_EVERY = 500
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (EXAMPLES, SIDE, SIDE, 1)).astype(np.uint8)
LABELS = RNG.integers(0, CLASSES, EXAMPLES).astype(np.int32)


class Data:
  """The arrays through the real pipeline, as the loop asks for them."""

  class_names = None

  def train(self, config, step=0):
    return pipeline.train_batches(
        sources.ArraySource({'image': IMAGES, 'label': LABELS}),
        batch_size=config.batch_size,
        ops='value_range(-1, 1)',
        seed=config.seed,
        start_step=step,
    )

  def evaluate(self, config):
    """No evaluator reads it, but the loop opens it."""
    return pipeline.eval_batches(
        sources.ArraySource({'image': IMAGES, 'label': LABELS}),
        batch_size=config.batch_size,
        ops='value_range(-1, 1)',
    )


def whole_loop(steps):
  """Returns a function that trains and returns its steps per second."""
  config = common.base()
  config.batch_size = BATCH
  config.total_steps = steps
  config.log_every = LOG_EVERY
  config.eval_every = 0
  config.checkpoint.every = 0
  config.evaluators = ()
  config.model.name = 'linear'
  config.model.num_classes = CLASSES
  config = config_lib.resolve(config, EXAMPLES)
  mesh = mesh_lib.make(config.mesh, jax.devices()[:1])
  built = program.build(config, Data().train(config).spec, mesh)
  phase = program.Phase('train', config, Data(), 0, built)

  def read():
    with tempfile.TemporaryDirectory() as workdir:
      train.train([phase], workdir, say=lambda text: None)
      lines = (pathlib.Path(workdir) / 'timing.jsonl').read_text().splitlines()
    rates = [json.loads(line)['examples_per_second'] for line in lines]
    # Of equal intervals; the first holds the compilation.
    return (len(rates) - 1) / sum(BATCH / rate for rate in rates[1:])

  return read


def bare_step():
  tx = optax.sgd(0.03, momentum=0.9)
  params = {'kernel': jnp.zeros((SIDE * SIDE, CLASSES)),
            'bias': jnp.zeros(CLASSES)}

  def loss(params, image, label):
    logits = image.reshape(BATCH, -1) @ params['kernel'] + params['bias']
    return jnp.mean(
        optax.softmax_cross_entropy_with_integer_labels(logits, label))

  @jax.jit
  def step(params, opt_state, image, label):
    value, grads = jax.value_and_grad(loss)(params, image, label)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, value

  return step, params, tx.init(params)


def bare_loop(steps, with_input):
  """The same with nothing around it; `with_input` feeds it by tf.data."""
  step, params, opt_state = bare_step()
  data = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).repeat()
  data = data.batch(BATCH, drop_remainder=True).map(
      lambda image, label: (tf.cast(image, tf.float32) / 127.5 - 1, label))
  one = next(data.as_numpy_iterator())

  def read():
    state = params, opt_state
    batches = data.prefetch(2).as_numpy_iterator() if with_input else None
    state = step(*state, *one)[:2]
    begin = time.perf_counter()
    for _ in range(steps):
      *state, value = step(*state, *(next(batches) if with_input else one))
    value.block_until_ready()
    return steps / (time.perf_counter() - begin)

  return read


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--steps', type=int, default=5000)
  parser.add_argument('--repeats', type=int, default=7)
  args = parser.parse_args()
  contenders = {
      'the whole loop': whole_loop(args.steps),
      'bare loop fed by tf.data': bare_loop(args.steps, True),
      'bare loop without input': bare_loop(args.steps, False),
  }
  readings = harness.in_turn(contenders, args.repeats)
  base = readings['bare loop fed by tf.data']
  print(f'softmax regression, batch {BATCH}\n')
  harness.print_table(
      ['loop', 'steps per second', 'of the bare loop with input'],
      [
          [name, harness.spread(values, ',.0f'),
           harness.spread(harness.ratios(values, base), '.2f')]
          for name, values in readings.items()
      ],
  )


if __name__ == '__main__':
  main()
