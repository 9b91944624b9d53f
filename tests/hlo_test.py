"""Collectives are counted as often as they run, in bytes of the whole value."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bigtransfer import hlo

MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ('a', 'b'))


def found(f, shape, *, spec=None, out=None, dtype=jnp.float32):
  """Returns the collectives of f on each device's part of an array."""
  spec = P(('a', 'b')) if spec is None else spec
  mapped = jax.shard_map(
      f, mesh=MESH, in_specs=spec, out_specs=spec if out is None else out,
      check_vma=False,
  )
  x = jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, spec))
  return hlo.collectives(jax.jit(mapped).lower(x).compile().as_text())


def test_a_sum_in_a_loop_counts_as_often_as_the_loop_runs():
  def body(x, _):
    return jnp.sin(lax.psum(x, 'a')), None

  [one] = found(lambda x: lax.scan(body, x, length=5)[0], (8, 3))
  assert one[:5] == ('all-reduce', 'f32', 3 * 4, 4, 5)


def test_loops_within_loops_multiply():
  def inner(x, _):
    return jnp.sin(lax.psum(x, 'b')), None

  def outer(x, _):
    x, _ = lax.scan(inner, x, length=3)
    return jnp.cos(lax.psum(x, 'a')), None

  def f(x):
    return lax.psum(lax.scan(outer, x, length=7)[0], ('a', 'b'))

  every = [c[3:5] for c in found(f, (8, 3))]
  assert sorted(every) == [(2, 21), (4, 7), (8, 1)]


@pytest.mark.parametrize(
    ('kind', 'f', 'size', 'group'),
    [
        # A device holds [6, 5] float32, 120 bytes.
        ('all-gather', lambda x: lax.all_gather(x, 'a'), 480, 4),
        (
            'reduce-scatter',
            lambda x: lax.psum_scatter(x, 'b', scatter_dimension=0, tiled=True),
            120, 2,
        ),
        ('all-to-all', lambda x: lax.all_to_all(x, 'b', 0, 0), 120, 2),
        (
            'collective-permute',
            lambda x: lax.ppermute(x, 'a', [(0, 1), (1, 0)]), 120, 2,
        ),
    ],
)
def test_bytes_are_of_the_whole_value(kind, f, size, group):
  shape = (8 * 2, 3, 5) if kind == 'all-to-all' else (8 * 6, 5)
  [one] = found(f, shape)
  assert one[:5] == (kind, 'f32', size, group, 1)


def test_a_branch_counts_as_taken_and_says_where_it_is():
  def f(x):
    return lax.cond(
        x[0, 0] > 0, lambda: lax.psum(x, 'a'), lambda: lax.psum(2 * x, 'b'))

  first, second = found(f, (8, 3))
  assert {first.group_size, second.group_size} == {2, 4}
  assert first.computation != second.computation


def test_several_values_in_one_operation_and_groups_of_one():
  def f(x):
    return lax.psum(x, 'a'), lax.psum(jnp.sin(x[:, :2]), 'a')

  both = found(f, (8, 3), out=(P('b'), P('b')))
  assert sum(c.bytes for c in both) == 4 * (3 + 2)
  alone = Mesh(np.array(jax.devices()[:1]), ('a',))
  one = jax.jit(jax.shard_map(
      functools.partial(lax.psum, axis_name='a'), mesh=alone, in_specs=P('a'),
      out_specs=P()))
  text = one.lower(jnp.ones(3)).compile().as_text()
  assert hlo.collectives(text) == ()


def test_a_loop_that_sends_nothing_may_run_as_long_as_it_likes():
  def f(x):
    x = lax.while_loop(lambda x: jnp.any(x < 9), lambda x: 2 * x, x)
    return lax.psum(x, 'a')

  [one] = found(f, (8, 3))
  assert one.times == 1


TPU = '''HloModule jit_f, is_scheduled=true, num_partitions=8

%started (p: bf16[1,16]) -> (bf16[1,16], bf16[1,128], s32[2]) {
  %p = bf16[1,16]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %g = bf16[1,128]{1,0:T(8,128)} all-gather(%p), channel_id=8, \
replica_groups=mesh['x'=8,'y'=1] {'x'}, dimensions={1}, \
backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}
  ROOT %c = (bf16[1,16]{1,0}, bf16[1,128]{1,0}, s32[2]{0:S(4)}) \
custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%done (q: bf16[1,16], r: f32[4]) -> bf16[1,128] {
  %q = bf16[1,16]{1,0} parameter(0)
  %r = f32[4]{0} parameter(1)
  %h = bf16[1,128]{1,0} all-gather(%q), channel_id=8, \
replica_groups=mesh['x'=8,'y'=1] {'x'}, dimensions={1}, \
backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
  ROOT %d = bf16[1,128]{1,0} custom-call(%q, %r, %h), \
custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter.1 (i: f32[128,4]) -> f32[16,4] {
  %i = f32[128,4]{1,0} parameter(0)
  %s = f32[128,4]{1,0} all-reduce(%i), channel_id=6, \
replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %z = s32[] constant(0)
  ROOT %t = f32[16,4]{1,0} dynamic-slice(%s, %z, %z), dynamic_slice_sizes={16,4}
}

%body (b: (s32[], bf16[1,16], f32[128,4])) -> (s32[], bf16[1,16], f32[128,4]) {
  %b = (s32[]{:T(128)}, bf16[1,16]{1,0}, /*index=2*/f32[128,4]{1,0}) \
parameter(0)
  %k = s32[] get-tuple-element(%b), index=0
  %v = bf16[1,16]{1,0} get-tuple-element(%b), index=1
  %w = f32[128,4]{1,0} get-tuple-element(%b), index=2
  %f = (bf16[1,16]{1,0}, bf16[1,128]{1,0}, s32[2]{0}) fusion(%v), \
kind=kOutput, calls=%started
  %e = bf16[1,128]{1,0} fusion(%v, %v), kind=kOutput, calls=%done
  %m = f32[16,4]{1,0} fusion(%w), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %o = (s32[], bf16[1,16]{1,0}, f32[128,4]{1,0}) tuple(%k, %v, %w)
}

%condition (a: (s32[], bf16[1,16], f32[128,4])) -> pred[] {
  %n = s32[]{:T(128)} constant(6)
  %a = (s32[], bf16[1,16]{1,0}, f32[128,4]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%a), index=0
  ROOT %l = pred[]{:T(512)} compare(%j, %n), direction=LT
}

ENTRY %main (x: (s32[], bf16[1,16], f32[128,4]), y: f32[9]) -> f32[9] {
  %x = (s32[], bf16[1,16]{1,0}, f32[128,4]{1,0}) parameter(0)
  %y = f32[9]{0} parameter(1)
  %while = (s32[], bf16[1,16]{1,0}, f32[128,4]{1,0}) while(%x), \
condition=%condition, body=%body
  %u = f32[9]{0} all-reduce-start(%y), replica_groups=[2,4]<=[4,2]T(1,0), \
to_apply=%add
  %uu = f32[9]{0} all-reduce-done(%u)
  %aa = ((f32[9]{0}), f32[72]{0}) all-gather-start(%uu), replica_groups={}
  %bb = f32[72]{0} all-gather-done(%aa)
  ROOT %end = f32[9]{0} slice(%bb), slice={[0:9]}
}
'''


def test_what_a_tpu_fuses_counts_once_and_as_what_it_is():
  assert [c[:5] for c in hlo.collectives(TPU)] == [
      ('all-gather', 'bf16', 256, 8, 6),
      ('reduce-scatter', 'f32', 2048, 4, 6),
      ('all-reduce', 'f32', 36, 4, 1),
      ('all-gather', 'f32', 288, 8, 1),
  ]


@pytest.mark.parametrize(
    ('before', 'after', 'message'),
    [
        ('constant(6)', 'iota()', r'a loop with the bounds \[\]'),
        ('replica_groups={}', 'replica_groups=?', "unknown groups: '\\?"),
    ],
)
def test_what_the_text_does_not_tell_is_an_error(before, after, message):
  with pytest.raises(ValueError, match=message):
    hlo.collectives(TPU.replace(before, after))
