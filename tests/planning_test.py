"""What follows from a compiled program, by hand."""

import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from bigtransfer import config as config_lib
from bigtransfer import model_flops, plan_data, planning, topologies
from bigtransfer.models import bert
from configs import bit_pretrain, common

KIB = 2**10


def leaf(shape, spec):
  mesh = jax.make_mesh((8,), ('data',))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
  return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


class State(NamedTuple):
  params: dict


@pytest.fixture
def built():
  """R50x1 at 4,096 on 8 cores of v3, with a state of one split matrix."""
  config = config_lib.phases(bit_pretrain.get_config('R50x1'))[0][1]
  job = planning.Job('train', config, plan_data.fill(config, plan_data.Asked()))
  state = State({'kernel': leaf((64, 64), ('data',))})
  program = types.SimpleNamespace(abstract=state, parts=8)
  resolved = config_lib.resolve(config, job.num_examples)
  return planning.Built(job, resolved, topologies.parse('v3-8'), program)


MEASURED = {
    'compile_seconds': 1.0,
    'argument_bytes': 3 * KIB,
    'temporary_bytes': 4 * KIB,
    'peak_bytes': 7 * KIB,
    'hbm_bytes': 45e9,
    'executed_flops': 61.5e12,
    'collectives': [
        {'kind': 'all-reduce', 'bytes': 1e9, 'group_size': 8, 'times': 2},
    ],
    'layers': {},
}


def test_the_longest_of_three_bounds_is_the_step(built):
  plan = planning.derive(built, MEASURED)
  # A core of v3 has 61.5e12 FLOP/s and 450 GB/s; the links of a chip 328 GB/s,
  # over which 3 of 4 chips' share goes twice.
  links = 2 * (2 * 1e9 * 3 / 4) / 328e9
  assert plan['seconds'] == pytest.approx(
      {'compute': 1.0, 'hbm': 0.1, 'ici': links}
  )
  assert (plan['step_seconds'], plan['bound']) == (1.0, 'compute')
  assert plan['collective_bytes'] == 2e9
  assert plan['activation_bytes'] == 4 * KIB
  assert plan['per_device'] == 512 and plan['fits']


def test_memory_can_be_the_bound(built):
  plan = planning.derive(built, MEASURED | {'hbm_bytes': 900e9})
  assert (plan['step_seconds'], plan['bound']) == (2.0, 'hbm')


def test_what_a_run_costs_and_the_utilization_follow(built):
  plan = planning.derive(built, MEASURED)
  # 3 * 2 operations for each of 4.1e9 multiplications of an image of 224.
  assert plan['model_flops'] == pytest.approx(4096 * 24.6e9, rel=0.02)
  assert plan['mfu_bound'] == pytest.approx(
      plan['model_flops'] / (4 * 123e12 * 1.0)
  )
  # 90 epochs of 1,268,355 images, on four chips.
  assert plan['steps'] == round(90 * 1_268_355 / 4096)
  assert plan['hours'] == pytest.approx(plan['steps'] / 3600)
  assert plan['chip_hours'] == pytest.approx(4 * plan['hours'])
  assert plan['examples_per_second'] == 4096


def test_a_device_holds_its_part_of_a_split_state(built):
  plan = planning.derive(built, MEASURED)
  assert plan['parameters'] == 64 * 64
  assert plan['state_bytes'] == 4 * 64 * 64 // 8
  assert planning.held({'a': leaf((8, 3), ())}) == 4 * 8 * 3


def test_of_what_does_not_fit_no_times_are_known(built):
  plan = planning.derive(
      built, {'needed_bytes': 32 * KIB, 'available_bytes': 16 * KIB}
  )
  assert not plan['fits'] and plan['per_device'] == 512
  assert not plan.keys() & {'step_seconds', 'mfu_bound', 'chip_hours'}


@pytest.mark.parametrize(
    ('topology', 'kind', 'group', 'passes', 'chips', 'rate'),
    [
        ('v5litepod-256', 'all-reduce', 256, 2, 256, 4 * 45e9),
        ('v5litepod-256', 'all-gather', 16, 1, 16, 4 * 45e9),
        # Two cores of a chip do not need its links.
        ('v3-2048', 'all-reduce', 2, 2, 1, 4 * 82e9),
        ('v3-2048', 'reduce-scatter', 2048, 1, 1024, 4 * 82e9),
        ('v4-512', 'all-reduce', 256, 2, 256, 6 * 45e9),
    ],
)
def test_links_carry_what_a_ring_sends(
    topology, kind, group, passes, chips, rate
):
  collective = {'kind': kind, 'bytes': 3e9, 'group_size': group, 'times': 5}
  seconds = planning.link_seconds(collective, topologies.parse(topology))
  assert seconds == pytest.approx(
      5 * passes * 3e9 * (chips - 1) / chips / rate
  )


def test_model_flops_of_bert_are_those_of_an_unrolled_program():
  """XLA counts a loop once, so the layers are no loop here."""
  c = common.base()
  c.model.name = 'bert'
  c.model.variant, c.model.scan = 'tiny', False
  c.model.layers, c.model.hidden, c.model.heads, c.model.ffn = 2, 128, 2, 512
  c.model.vocab_size = 1000
  c.data.kind = 'pretraining'
  c.data.seq_length, c.data.max_predictions = 128, 20
  c.batch_size = 2
  batch = {
      name: jax.ShapeDtypeStruct(shape, dtype)
      for name, (shape, dtype) in plan_data.batch_spec(c).items()
  }
  model = bert.build(c.model)
  params, state = jax.eval_shape(model.init, jax.random.key(0), batch)

  def loss(params, batch):
    outputs, _ = model.apply(params, state, batch, train=False)
    return sum(jnp.sum(outputs[k]) for k in ('mlm_logits', 'nsp_logits'))

  compiled = jax.jit(jax.grad(loss)).lower(params, batch).compile()
  counted = compiled.cost_analysis()['flops']
  by_hand = 2 * model_flops.train_flops(c)
  # The rest are sums, GELU, softmax and norms, some per cent at this width.
  assert 0.9 < by_hand / counted < 1.0
