"""The compiled step of each preset: what it sends, how often, and its result.

Bytes and times are those of `hlo.collectives`, on eight CPU devices, and where
the compiler for TPUs goes ways of its own, from that.
"""

import collections
import functools
import importlib.util

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bigtransfer import config as config_lib
from bigtransfer import hlo, program, reduction, sharding, topologies, trees
from bigtransfer import mesh as mesh_lib
from bigtransfer import state as state_lib
from bigtransfer.train_step import make_train_step
from configs import common

ROWS, ACCUM, LAYERS, LENGTH, HIDDEN = 32, 2, 4, 16, 64
MESHES = {
    None: (1, 1, 1),
    'replicate': (8, 1, 1),
    'zero1': (4, 2, 1),
    'fsdp': (2, 4, 1),
    'tensor': (4, 1, 2),
}
CASES = [
    (model, preset)
    for model in ('bert', 'bit')
    for preset in ('replicate', 'zero1', 'fsdp', 'tensor')
    if (model, preset) != ('bit', 'tensor')
]


def bert(c):
  c.task, c.model.name, c.model.variant = 'bert_pretraining', 'bert', 'tiny'
  c.model.layers, c.model.hidden, c.model.heads = LAYERS, HIDDEN, 8
  c.model.ffn, c.model.vocab_size, c.model.max_position = 2 * HIDDEN, 104, 24
  c.optimizer.name, c.optimizer.learning_rate = 'lamb', 0.01
  rng = np.random.default_rng(0)
  ids = rng.integers(5, 104, (ROWS, LENGTH)).astype(np.int32)
  weights = (rng.random((ROWS, 3)) < 0.6).astype(np.float32)
  return {
      'input_ids': ids,
      'input_mask': np.ones_like(ids),
      'segment_ids': np.zeros_like(ids),
      'masked_lm_positions': np.tile(np.int32([1, 3, 5]), (ROWS, 1)),
      'masked_lm_ids': ids[:, [1, 3, 5]],
      'masked_lm_weights': weights,
      'next_sentence_labels': rng.integers(0, 2, ROWS).astype(np.int32),
      'mask': (np.arange(ROWS) != 3).astype(np.float32),
  }


def bit(c, norm='gn'):
  c.model.name, c.model.variant, c.model.blocks = 'bit', 'R26x1', (1,)
  c.model.root_width = c.model.num_groups = 16
  c.model.num_classes, c.model.norm = 16, norm
  c.augment.mixup_alpha = 0.2
  rng = np.random.default_rng(0)
  return {
      'image': rng.normal(size=(ROWS, 8, 8, 3)).astype(np.float32),
      'label': rng.integers(0, 16, ROWS).astype(np.int32),
      'mask': (np.arange(ROWS) != 3).astype(np.float32),
  }


def build(make, preset, dtype='float32', sizes=None, devices=None):
  """Returns the program on this preset's mesh, and a batch."""
  c = common.base()
  batch = make(c)
  c.batch_size, c.total_steps, c.accum_steps = ROWS, 10, ACCUM
  c.eval_every = c.checkpoint.every = 0
  c.sharding.preset, c.sharding.fsdp_min_size = preset, 1024
  c.sharding.reduce_dtype = dtype
  c.mesh.data, c.mesh.fsdp, c.mesh.model = sizes or MESHES[preset]
  [(_, c)] = config_lib.phases(c)
  count = int(np.prod(sizes or MESHES[preset]))
  mesh = mesh_lib.make(c.mesh, devices or jax.devices()[:count])
  c = config_lib.resolve(c, 10**4)
  spec = {k: (v.shape, v.dtype) for k, v in batch.items()}
  return program.build(c, spec, mesh), batch


@functools.cache
def run(model, preset, dtype='float32'):
  """Returns collectives, abstract state; parameters, metrics two steps on."""
  made, batch = build({'bert': bert, 'bit': bit}[model], preset, dtype)
  # Half of the time to compile is spent on code that runs fast.
  step = made.step.lower(made.abstract, made.batch_spec).compile(
      compiler_options={'xla_backend_optimization_level': 0}
  )
  state, batch = made.init(), jax.device_put(batch, made.batch_sharding)
  for _ in range(2):
    state, metrics = step(state, batch)
  metrics = dict(zip(made.metric_names, np.asarray(metrics), strict=True))
  params = dict(trees.flatten(jax.device_get(state.params)))
  # MixUp fetches the partners of its rows.
  sent = hlo.collectives(step.as_text())
  sent = [c for c in sent if c.kind != 'collective-permute']
  return sent, made.abstract, params, metrics


def total(sent, kind, **fields):
  """Bytes per step of one kind, of what has these fields."""
  return sum(
      c.bytes * c.times
      for c in sent
      if c.kind == kind and fields.items() <= c._asdict().items()
  )


def held(tree):
  """{path: bytes} of what a device holds."""
  return {
      path: 4 * int(np.prod(x.sharding.shard_shape(x.shape)))
      for path, x in trees.flatten(tree)
  }


def whole(tree):
  return {path: 4 * x.size for path, x in trees.flatten(tree)}


@pytest.mark.parametrize(('model', 'preset'), CASES)
def test_every_preset_gives_what_one_device_gives(model, preset):
  _, _, want, one = run(model, None)
  _, _, got, other = run(model, preset)
  for name in ('loss', 'grad_norm', 'update_norm'):
    assert other[name] == pytest.approx(one[name], rel=2e-6), name
  for path, x in want.items():
    # The gradient of a key's bias is 0 but for rounding, and LAMB divides it
    # by its own size.
    if not path.endswith('key/bias'):
      error = np.linalg.norm(got[path] - x)
      assert error <= 2e-5 * np.linalg.norm(x) + 1e-6, path


@pytest.mark.parametrize('model', ['bert', 'bit'])
def test_gradients_are_added_up_once_per_step_in_float32(model):
  sent, state, *_ = run(model, 'replicate')
  assert {c.kind for c in sent} == {'all-reduce'}
  assert {(c.dtype, c.times) for c in sent} == {('f32', 1)}
  sums = total(sent, 'all-reduce') - sum(whole(state.params).values())
  assert 0 < sums < 256  # Loss, weights and metrics.


@pytest.mark.parametrize('model', ['bert', 'bit'])
def test_zero1_sends_each_device_the_gradients_of_its_moments(model):
  sent, state, *_ = run(model, 'zero1')
  assert {c.times for c in sent} == {1}
  full = whole(state.params)
  moments = [m for path, m in trees.flatten(state.opt_state) if m.ndim > 1]
  assert moments and not any(
      m.sharding.is_fully_replicated for m in moments if m.size >= 1024
  )
  split = sum(size for size in full.values() if size >= 4 * 1024)
  # Twice where two axes split two dimensions: half of it goes the second way.
  assert split <= total(sent, 'reduce-scatter') <= 1.5 * split
  assert total(sent, 'all-reduce') < sum(full.values()) - split + 1024
  assert split <= total(sent, 'all-gather') <= 1.5 * split


def test_fsdp_gathers_a_layer_at_a_time_forward_and_back():
  sent, state, *_ = run('bert', 'fsdp')
  full, mine = whole(state.params), held(state.params)
  stacked = {
      path: size // LAYERS
      for path, size in full.items()
      if trees.is_stacked(path) and size > mine[path]
  }
  assert len(stacked) == 6  # The kernels of a layer.
  gathers = [c for c in sent if c.kind == 'all-gather']
  assert {c.group_size for c in gathers} == {4}
  loops = collections.defaultdict(list)
  for c in gathers:
    loops[c.times, c.computation].append(c.bytes)
  often = LAYERS * ACCUM
  in_layers = [sorted(v) for (times, _), v in loops.items() if times == often]
  assert in_layers == [sorted(stacked.values())] * 2
  # The way back gathers in the loop that adds up: no stack of whole kernels.
  _, back = [where for times, where in loops if times == often]
  [one] = [c for c in sent if c.computation == back and c.kind == 'all-reduce']
  assert one.bytes >= sum(stacked.values())
  largest = max(s for path, s in full.items() if not trees.is_stacked(path))
  assert max(c.bytes for c in gathers) <= max(largest, *stacked.values())


def test_fsdp_gathers_parameters_and_moves_no_activations():
  for model in ('bert', 'bit'):
    sent, state, *_ = run(model, 'fsdp')
    assert {c.kind for c in sent} == {'all-gather', 'all-reduce'}
    sizes = set(whole(state.params).values()) | {
        size // LAYERS for size in whole(state.params).values()
    }
    assert {c.bytes for c in sent if c.kind == 'all-gather'} <= sizes


@pytest.mark.parametrize(
    ('model', 'preset', 'data'),
    [('bert', 'fsdp', 2), ('bit', 'fsdp', 2), ('bert', 'tensor', 4)],
)
def test_only_parts_are_added_up_over_the_data_axis_and_once(
    model, preset, data
):
  sent, state, *_ = run(model, preset)
  over_data = [c for c in sent if c.group_size == data and c.bytes > 64]
  if preset == 'tensor':
    assert {c.times for c in over_data} == {1}
  sums = total(over_data, 'all-reduce', times=1)
  assert 0 <= sums - sum(held(state.params).values()) < 256
  assert total(over_data, 'all-reduce') == sums


def in_layers(sent):
  """Returns what the loops over layers send, forward and back."""
  layers = collections.defaultdict(list)
  for c in sent:
    if c.times == LAYERS * ACCUM and c.bytes > 64:
      layers[c.computation].append(c)
  return layers.values()


def test_tensor_parallel_layers_add_up_twice_and_move_nothing_else():
  sent, *_ = run('bert', 'tensor')
  loops = in_layers(sent)
  # Random bits are drawn where they are used, so that nothing else is sent.
  assert {c.kind for loop in loops for c in loop} == {'all-reduce'}
  forward, backward = [[c.bytes for c in loop] for loop in loops]
  activations = ROWS // ACCUM // 4 * LENGTH * HIDDEN * 4
  assert forward == [activations] * 2
  # Those of query, key and value go together; a TPU adds them up first.
  assert sorted(backward) == [activations, 3 * activations]


def test_tensor_parallel_logits_stay_split_over_the_vocabulary():
  sent, state, *_ = run('bert', 'tensor')
  table = held(state.params)['embeddings/word/embedding']
  assert table == whole(state.params)['embeddings/word/embedding'] // 2
  logits = ROWS // ACCUM // 4 * 3 * 104 * 4
  # But for the sums of gradients: a bias, the positions, the words' labels.
  gathered = [c.bytes for c in sent if c.kind == 'all-gather']
  assert max(gathered) <= 104 * 4 < logits


def test_a_sum_in_bfloat16_is_close_and_rounded():
  _, _, exact, one = run('bit', 'replicate')
  _, _, rounded, other = run('bit', 'replicate', 'bfloat16')
  assert other['grad_norm'] == pytest.approx(one['grad_norm'], rel=2**-8)
  assert other['grad_norm'] != pytest.approx(one['grad_norm'], rel=1e-6)
  assert other['loss'] == pytest.approx(one['loss'], rel=1e-4)
  assert exact.keys() == rounded.keys()


@pytest.mark.parametrize(
    ('make', 'preset', 'sizes', 'why'),
    [
        (functools.partial(bit, norm='bn'), None, (8, 1, 1), 'statistics of'),
        (bit, 'fsdp', (1, 8, 1), 'split over all axes of the batch'),
    ],
)
def test_a_type_that_the_compiler_chooses_is_not_asked_for(
    make, preset, sizes, why
):
  with pytest.raises(ValueError, match=f"reduce_dtype='bfloat16' with .*{why}"):
    build(make, preset, 'bfloat16', sizes)
  build(make, preset, 'float32', sizes)


class Toy:
  """Four layers of a product in bfloat16, in a loop."""

  def __init__(self):
    class Layer(nn.Module):

      @nn.compact
      def __call__(self, x, _):
        y = nn.Dense(512, dtype=jnp.bfloat16, use_bias=False, name='w')(x)
        return jnp.tanh(y), None

    self.layers = nn.scan(
        nn.remat(Layer, prevent_cse=False), variable_axes={'params': 0},
        split_rngs={'params': True}, length=4,
    )()

  def init(self):
    x = jnp.zeros((1, 512), jnp.bfloat16)
    return {'layers': self.layers.init(jax.random.key(0), x, None)['params']}

  def loss(self, params, model_state, batch, rng, train):
    x, _ = self.layers.apply({'params': params['layers']}, batch['x'], None)
    total = jnp.sum(x.astype(jnp.float32))
    return total, jnp.float32(len(x)), {}, model_state


needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason="libtpu is not installed: pip install 'bigtransfer[plan]'",
)


@needs_compiler
@pytest.mark.usefixtures('no_cache')
def test_on_a_tpu_tensor_parallel_layers_add_up_twice_each_way():
  def make(c):
    batch = bert(c)
    c.model.dtype = 'bfloat16'
    return batch

  devices = topologies.devices(topologies.parse('v5e:2x4'))
  made, _ = build(make, 'tensor', devices=devices)
  lowered = made.step.lower(made.abstract, made.batch_spec)
  sent = hlo.collectives(lowered.compile().as_text())
  activations = ROWS // ACCUM // 4 * LENGTH * HIDDEN * 2
  one = ('all-reduce', 'bf16', activations, 2)
  assert [[c[:4] for c in loop] for loop in in_layers(sent)] == [[one] * 2] * 2
  # Nothing of the size of activations or logits moves around the layers.
  others = [c.bytes for c in sent if c.kind != 'all-reduce']
  assert max(others) < activations // 2


@needs_compiler
@pytest.mark.usefixtures('no_cache')
def test_on_a_tpu_layers_are_gathered_and_gradients_reduced_in_bfloat16():
  toy, tx = Toy(), optax.sgd(0.1, momentum=0.9)
  devices = topologies.devices(topologies.parse('v5e:2x4'))
  c = common.base()
  c.mesh.data, c.mesh.fsdp = 2, 4
  c.sharding.rules = (('.*', 'fsdp'),)
  mesh = mesh_lib.make(c.mesh, devices)
  shapes = jax.eval_shape(lambda: state_lib.create(toy.init(), tx))
  placed = sharding.tree_shardings(shapes, mesh, c.sharding)
  step = make_train_step(
      toy, tx, mesh=mesh, accum_steps=2, state_shardings=placed,
      layout=reduction.Layout(mesh, placed.params, None, 'bfloat16'),
  )
  batch = {'x': jax.ShapeDtypeStruct(
      (2048, 512), jnp.bfloat16, sharding=sharding.batch_sharding(mesh))}
  state = jax.tree.map(lambda x, s: x.update(sharding=s), shapes, placed)
  sent = hlo.collectives(step.lower(state, batch).compile().as_text())
  layer = 512 * 512 * 2  # Bytes of one in bfloat16.
  gathers = [c[1:5] for c in sent if c.kind == 'all-gather']
  assert gathers == [('bf16', layer, 4, 8)] * 2
  # Which of the two the compiler takes depends on its layout of the kernel.
  reductions = ('reduce-scatter', 'all-reduce')
  within = [c[1:5] for c in sent if c.kind in reductions and c.times > 1]
  assert within == [('bf16', layer, 4, 8)]
  over_data = [c[1:5] for c in sent if c.group_size == 2 and c.bytes > 64]
  assert over_data == [('bf16', layer, 2, 1)]  # A quarter of four layers.
