r"""What a training step moves and needs on a TPU, by the TPU's compiler.

python -m benchmarks.tpu_compiled resnet --jobs 2
python -m benchmarks.tpu_compiled bert
python -m benchmarks.tpu_compiled resnet --only bn ours --sizes 32@v3:2x2

Needs libtpu and no TPU. A size is examples per device and a slice; a step is
compiled for one device of it, or for all where the row says so. HBM bytes are
the compiler's `bytes accessed` without what stays in VMEM, loops counted as
often as they run; the peak has the state in it. Each step is compiled in a
process of its own: R50x1 takes minutes.
"""

import argparse
import concurrent.futures
import functools
import importlib.metadata
import json
import subprocess
import sys

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from benchmarks import harness, plain_nets
from bigtransfer import config as config_lib
from bigtransfer import hlo_cost, plan_data, planning, program, topologies
from bigtransfer import mesh as mesh_lib
from bigtransfer.models import bit
from configs import common

CLASSES, WORDS = 1000, 30_522
LAMB = 'configs/bert_pretrain.py:large,recipe=lamb_64k_32k'
_F32, _I32 = np.float32, np.int32


def ours(batch, devices, args, **model):
  """The real step on R50x1."""
  c = _resnet_config(model)
  c.batch_size, c.total_steps = batch * len(devices), 1000
  return _lower_ours(c, _image_spec(c.batch_size, args.image), devices)


def ours_plainly(batch, devices, args, **model):
  """The step of `plain` on R50x1 of this project: the layers alone."""
  network = bit.build(_resnet_config(model).model)

  def apply(params, state, batch):
    outputs, state = network.apply(params, state, batch, train=True)
    return outputs['logits'], state

  step = plain_nets.momentum_step(network.init, apply)
  return _lower_plain(*step, _image_spec(batch, args.image), devices[0])


def _resnet_config(model):
  c = common.base()
  c.model.num_classes, c.model.dtype = CLASSES, 'bfloat16'
  for key, value in model.items():
    c.model[key] = value
  return c


def plain(batch, devices, args, kind='none', standardize=False):
  """A step on `plain_nets.ResNet`."""
  spec = _image_spec(batch, args.image)
  network = plain_nets.resnet(kind, standardize, CLASSES)
  step = plain_nets.momentum_step(*network)
  return _lower_plain(*step, spec, devices[0])


def ours_bert(
    batch, devices, args, remat='none', preset=None, scan=True
):
  """The real step on BERT-Large in the first phase of the LAMB recipe."""
  config = config_lib.load(LAMB)
  config.sharding.preset = preset
  c = planning.jobs(config, plan_data.Asked(vocab_size=WORDS))[0].config
  c.batch_size = batch * len(devices)
  c.data.seq_length = args.length
  c.model.remat, c.model.scan = remat, scan
  c.model.dropout = c.model.attention_dropout = 0.0
  return _lower_ours(c, None, devices)


def plain_bert(batch, devices, args):
  """A step on `plain_nets.Bert`."""
  step = plain_nets.bert_step(24, 1024, WORDS)
  return _lower_plain(*step, _text_spec(batch, args.length), devices[0])


def _lower_ours(config, spec, devices):
  mesh = mesh_lib.make(config.mesh, devices)
  resolved = config_lib.resolve(config, 1000)
  spec = spec or plan_data.batch_spec(resolved)
  built = program.build(resolved, spec, mesh)
  return built.step.lower(built.abstract, built.batch_spec)


def _lower_plain(init, step, spec, device):
  batch = {k: jax.ShapeDtypeStruct(*v) for k, v in spec.items()}
  place = functools.partial(
      jax.tree.map, lambda x: x.update(sharding=SingleDeviceSharding(device))
  )
  state = jax.eval_shape(init, batch)
  return jax.jit(step, donate_argnums=0).lower(place(state), place(batch))


def _image_spec(batch, size):
  return {
      'image': ((batch, size, size, 3), _F32),
      'label': ((batch,), _I32),
      'mask': ((batch,), _F32),
  }


def _text_spec(batch, length):
  words = ('input_ids', 'input_mask', 'segment_ids')
  masked = ('masked_lm_positions', 'masked_lm_ids')
  return (
      {name: ((batch, length), _I32) for name in words}
      | {name: ((batch, 20), _I32) for name in masked}
      | {'masked_lm_weights': ((batch, 20), _F32),
         'next_sentence_labels': ((batch, 1), _I32)}
  )


_BN = {'norm': 'bn', 'weight_standardization': False}
# What a row is called, how its step is made, and whether on all devices.
RESNET = {
    'none': ('no norm, plain Flax', plain, {}, False),
    'bn': ('BatchNorm, plain Flax', plain, {'kind': 'bn'}, False),
    'gn': ('GroupNorm + WS, plain Flax', plain,
           {'kind': 'gn', 'standardize': True}, False),
    'ours': ('GroupNorm + WS, bigtransfer', ours_plainly, {}, False),
    'ours_bn': ('BatchNorm, bigtransfer', ours_plainly, _BN, False),
    'step': ("GroupNorm + WS, bigtransfer's own step", ours, {}, False),
    'step_bn': ("BatchNorm, bigtransfer's own step", ours, _BN, False),
}
BERT = {
    'plain': ('plain Flax, optax.lamb', plain_bert, {}, False),
    'ours': ('bigtransfer', ours_bert, {}, False),
    'unrolled': ('bigtransfer, layers not scanned', ours_bert,
                 {'scan': False}, False),
    'dots': ('bigtransfer, remat dots', ours_bert, {'remat': 'dots'}, False),
    'replicate': ('bigtransfer, remat dots, all devices', ours_bert,
                  {'remat': 'dots'}, True),
    'zero1': ('the same with ZeRO-1', ours_bert,
              {'remat': 'dots', 'preset': 'zero1'}, True),
}
MODELS = {
    'resnet': (RESNET, ('8@v3:2x2', '32@v3:2x2', '128@v5e:2x2')),
    'bert': (BERT, ('32@v3:4x4',)),
}


def measure(args, row, size):
  """Compiles a step here; returns numbers per example, and the peak."""
  _, make, options, everywhere = MODELS[args.model][0][row]
  batch, topology = _size(size)
  devices = topologies.devices(topology)
  devices = devices if everywhere else devices[:1]
  try:
    compiled = make(batch, devices, args, **options).compile()
  except jax.errors.JaxRuntimeError as e:
    sizes = planning.out_of_memory(str(e))
    if sizes is None:
      raise
    return {'needs': sizes[0] / 2**30}
  cost = hlo_cost.cost(compiled.as_text())
  peak = compiled.memory_analysis().peak_memory_in_bytes
  return {
      'gigabytes': cost.bytes / batch / 1e9,
      'gigaflops': cost.flops / batch / 1e9,
      'peak': peak / 2**30,
  }


def _size(text):
  batch, at, topology = text.partition('@')
  if not at or not batch.isdigit():
    raise ValueError(f'--sizes {text!r}; accepted: such as 32@v3:2x2')
  return int(batch), topologies.parse(topology)


def measured(args, row, size):
  """`measure` in a process of its own; text instead if it fails."""
  child = subprocess.run(
      [sys.executable, '-m', 'benchmarks.tpu_compiled', args.model,
       '--image', str(args.image), '--length', str(args.length),
       '--one', row, size],
      capture_output=True, text=True, check=False,
  )
  print(row, size, child.stdout[-200:].strip() or f'exit {child.returncode}',
        file=sys.stderr, flush=True)
  if child.returncode:
    last = child.stderr.strip().splitlines() or ['no message']
    return f'failed: {last[-1]}'
  return json.loads(child.stdout.splitlines()[-1])


def cells(result, base):
  """Bytes, how often those of the base, operations and peak."""
  if isinstance(result, str):
    return [result, '', '', '']
  if 'needs' in result:
    return [f'does not fit: {result["needs"]:.1f} GiB', '', '', '']
  known = isinstance(base, dict) and 'gigabytes' in base
  times = result['gigabytes'] / base['gigabytes'] if known else None
  return [
      f'{result["gigabytes"]:.4f}',
      f'{times:.3f}' if times else '',
      f'{result["gigaflops"]:.1f}',
      f'{result["peak"]:.2f}',
  ]


def main():
  parser = argparse.ArgumentParser(
      'python -m benchmarks.tpu_compiled', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('model', choices=MODELS)
  parser.add_argument('--sizes', nargs='+', metavar='N@SLICE',
                      help='examples per device, and a slice')
  parser.add_argument('--only', nargs='+', metavar='ROW',
                      help='rows: ' + '; '.join(
                          f'{m}: {" ".join(r)}' for m, (r, _) in MODELS.items()
                      ))
  parser.add_argument('--image', type=int, default=224, help='pixels')
  parser.add_argument('--length', type=int, default=128, help='tokens')
  parser.add_argument('--jobs', type=int, default=1, help='at a time')
  parser.add_argument('--one', nargs=2, metavar=('ROW', 'SIZE'),
                      help='compile here and print JSON')
  args = parser.parse_args()
  if args.one:
    print(json.dumps(measure(args, *args.one)))
    return
  rows, sizes = MODELS[args.model]
  unknown = set(args.only or ()) - set(rows)
  if unknown:
    parser.error(f'--only {" ".join(unknown)}; accepted: {" ".join(rows)}')
  sizes, only = args.sizes or sizes, args.only or list(rows)
  with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
    found = {
        (row, size): pool.submit(measured, args, row, size)
        for size in sizes for row in only
    }
    found = {key: future.result() for key, future in found.items()}
  base = 'bn' if args.model == 'resnet' else 'plain'
  print(f'libtpu {importlib.metadata.version("libtpu")},'
        f' jax {importlib.metadata.version("jax")}\n')
  for size in sizes:
    print(f'{size}\n')
    harness.print_table(
        ['step', 'HBM GB per example', f'times {base}', 'GFLOP per example',
         'peak GiB'],
        [[rows[row][0], *cells(found[row, size], found.get((base, size)))]
         for row in only],
    )
  if any(isinstance(result, str) for result in found.values()):
    sys.exit(1)


if __name__ == '__main__':
  main()
