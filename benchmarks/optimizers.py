"""Seconds per optimizer update on the parameters of BERT-base, on the CPU.

python -m benchmarks.optimizers --torch_python PYTHON --topology v4:2x2x1

float32, gradients at hand, parameters and state donated. `pass` reads and
writes what any Adam must: the gradient, both moments and the parameters. timm
runs in a process of PYTHON, which has torch and timm, and has a parameter for
each layer. Contenders take turns, so ratios are those of the same minutes.

With --topology, what the updates read and write of the memory of such a TPU is
taken from programs compiled for it, which needs the package libtpu that goes
with the installed jax, and no TPU.
"""

import argparse
import ast
import json
import os
import pathlib
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies

from benchmarks import harness
from bigtransfer import trees
from bigtransfer.optim import lamb, lars

PARAMETERS = pathlib.Path(__file__).parents[1].joinpath(
    'tests', 'golden', 'bert_base_params.txt')
# libtpu asks the cloud where it is unless told.
OFFLINE = {
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
}


def shapes() -> dict[str, tuple[int, ...]]:
  """Returns path -> shape of the parameters of BERT-base."""
  lines = PARAMETERS.read_text(encoding='utf-8').splitlines()
  return {
      path: ast.literal_eval(rest.rpartition(' ')[0])
      for path, _, rest in (line.partition(' ') for line in lines)
  }


def layer_shapes():
  """Returns the shapes with a parameter for each layer."""
  result = []
  for path, shape in shapes().items():
    if trees.is_stacked(path):
      result += shape[0] * [shape[1:]]
    else:
      result.append(shape)
  return result


def normal(seed, scale):
  rng = np.random.default_rng(seed)
  return {
      path: jnp.asarray(scale * rng.standard_normal(shape, np.float32))
      for path, shape in shapes().items()
  }


def read_write():
  """Moves 7 times the parameters: one tree read, three read and written."""

  def init(params):
    return tuple(jax.tree.map(jnp.zeros_like, params) for _ in range(2))

  def update(grads, state, params):
    mu = jax.tree.map(jnp.add, state[0], grads)
    nu = jax.tree.map(lambda v: 0.999 * v, state[1])
    return jax.tree.map(lambda w: -0.001 * w, params), (mu, nu)

  return optax.GradientTransformation(init, update)


def optimizers():
  return {
      'bigtransfer lamb': lamb.lamb(1e-3),
      'optax.lamb': optax.lamb(1e-3, weight_decay=0.01),
      'bigtransfer lars': lars.lars(1e-3, 0.01),
      'optax.lars': optax.lars(1e-3, 0.01),
      'optax.adamw': optax.adamw(1e-3),
      'pass': read_write(),
  }


def jitted(tx):
  def step(params, state, grads):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  return jax.jit(step, donate_argnums=(0, 1))


def on_cpu(tx, params, grads):
  """Returns (a function that makes an update and returns its seconds, MB)."""
  params = jax.tree.map(jnp.copy, params)
  state = jax.jit(tx.init)(params)
  step = jitted(tx).lower(params, state, grads).compile()

  def read():
    nonlocal params, state
    begin = time.perf_counter()
    params, state = step(params, state, grads)
    jax.block_until_ready((params, state))
    return time.perf_counter() - begin

  read()
  read()
  return read, step.memory_analysis().temp_size_in_bytes / 1e6


def timm(python):
  child = subprocess.Popen(
      [python, pathlib.Path(__file__).with_name('timm_lamb.py'),
       json.dumps(layer_shapes())],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
  )

  def read():
    child.stdin.write('update\n')
    return float(child.stdout.readline())

  read()
  read()
  return read


def time_updates(python, repeats):
  params, grads = normal(0, 0.02), normal(1, 1e-3)
  built = {k: on_cpu(tx, params, grads) for k, tx in optimizers().items()}
  contenders = {name: read for name, (read, _) in built.items()}
  contenders['timm Lamb'] = python and timm(python)
  readings = harness.in_turn(contenders, repeats)
  base = readings['optax.lamb']
  harness.print_table(
      ['optimizer', 'seconds per update', 'of optax.lamb', 'temporary MB'],
      [
          [name, harness.spread(seconds, '.3f'),
           harness.spread(harness.ratios(seconds, base), '.2f')
           if seconds else 'not given',
           f'{built[name][1]:.0f}' if name in built else '']
          for name, seconds in readings.items()
      ],
  )


def compile_for_tpu(name):
  os.environ.update(OFFLINE)
  device = topologies.get_topology_desc(name, 'tpu').devices[0]
  one = jax.sharding.SingleDeviceSharding(device)

  def place(tree):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), tree)

  params = place({
      path: jax.ShapeDtypeStruct(shape, jnp.float32)
      for path, shape in shapes().items()
  })
  size = 4 * sum(x.size for x in params.values())
  rows = []
  for optimizer, tx in optimizers().items():
    state = place(jax.eval_shape(tx.init, params))
    step = jitted(tx).lower(params, state, params).compile()
    moved = step.cost_analysis()['bytes accessed']
    rows.append([optimizer, f'{moved / 1e9:.2f}', f'{moved / size:.1f}',
                 f'{step.memory_analysis().temp_size_in_bytes / 1e6:.0f}'])
  print(f'Compiled for {name}\n')
  harness.print_table(
      ['optimizer', 'GB accessed', 'times the parameters', 'temporary MB'],
      rows)


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--torch_python', metavar='PYTHON')
  parser.add_argument('--topology', metavar='NAME', help='such as v4:2x2x1')
  parser.add_argument('--repeats', type=int, default=9)
  args = parser.parse_args()
  if args.repeats:
    time_updates(args.torch_python, args.repeats)
  if args.topology:
    compile_for_tpu(args.topology)


if __name__ == '__main__':
  main()
