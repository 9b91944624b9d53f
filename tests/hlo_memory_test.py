"""What is alive in a program, and which layer it is of."""

import pytest

from bigtransfer import hlo_memory

NAME = 'metadata={op_name="jit(step)/jvp(Net)/%s/mul"}'
TEXT = f"""HloModule m

%body (p: (s32[], f32[1024])) -> (s32[], f32[1024]) {{
  %p = (s32[], f32[1024]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[1024] get-tuple-element(%p), index=1
  %t = f32[3072] broadcast(%x), {NAME % 'while/body/closed_call/inner'}
  %y = f32[1024] slice(%t), {NAME % 'while/body/closed_call/inner'}
  ROOT %r = (s32[], f32[1024]) tuple(%i, %y)
}}

%condition (q: (s32[], f32[1024])) -> pred[] {{
  %q = (s32[], f32[1024]) parameter(0)
  ROOT %n = pred[] constant(false)
}}

ENTRY %main (a: f32[1024]) -> f32[1024] {{
  %a = f32[1024] parameter(0)
  %b = f32[1024] negate(%a), {NAME % 'block1/unit01/conv1'}
  %c = f32[2048] broadcast(%b), {NAME % 'block2/unit01'}
  %d = f32[1024] slice(%c), {NAME % 'block2/unit01'}
  %z = s32[] constant(0)
  %s = (s32[], f32[1024]) tuple(%z, %d)
  %w = (s32[], f32[1024]) while(%s), condition=%condition, body=%body
  %e = f32[1024] get-tuple-element(%w), index=1
  ROOT %f = f32[1024] add(%e, %b), {NAME % 'head'}
}}
"""


def test_the_peak_is_found_in_the_loop_with_what_waits_outside():
  # In the loop: its own 3072 values, what it carries, and b, needed later. c
  # is dead by then.
  assert hlo_memory.by_layer(TEXT) == {
      'inner': 4 * 3072, 'block2/unit01': 4 * 1024, 'block1/unit01': 4 * 1024,
  }


@pytest.mark.parametrize(
    ('name', 'layer'),
    [
        ('jit(packed_step)/jit(step)/transpose(jvp(_Network))/encoder/while/'
         'body/closed_call/layers/query/dot_general', 'encoder/query'),
        ('jit(step)/jvp(_Network)/block1/unit01/conv2/conv_general_dilated',
         'block1/unit01'),
        ('jit(step)/jvp(_Network)/mlm/bph,vh->bpv/dot_general', 'mlm'),
        ('jit(step)/reduce_sum', 'step'),
    ],
)
def test_a_layer_is_read_from_the_name_of_an_operation(name, layer):
  assert hlo_memory.layer(name) == layer
