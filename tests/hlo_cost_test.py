"""Bytes and operations of a compiled program, loops included."""

import jax
import jax.numpy as jnp
import pytest

from bigtransfer import hlo_cost

N, TIMES = 64, 5


def product_chain(x, w):
  return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=TIMES)[0]


def test_a_loop_counts_as_often_as_it_runs():
  shape = jax.ShapeDtypeStruct((N, N), jnp.float32)
  text = jax.jit(product_chain).lower(shape, shape).compile().as_text()
  assert 'while(' in text
  cost = hlo_cost.cost(text)
  assert cost.flops == TIMES * 2 * N**3
  # Each product reads two matrices and writes one.
  assert cost.bytes >= TIMES * 3 * 4 * N**2


def program(lines, extra=''):
  return f'HloModule m\n\n{extra}ENTRY %main () -> f32[] {{\n{lines}\n}}\n'


def test_what_lies_in_vmem_is_no_traffic_of_hbm():
  lines = (
      '  %a = f32[256,128]{1,0:T(8,128)} parameter(0)\n'
      '  %b = f32[256,128]{1,0:T(8,128)S(1)} copy(%a)\n'
      '  ROOT %c = f32[256,128]{1,0:T(8,128)} negate(%b)'
  )
  assert hlo_cost.cost(program(lines)).bytes == 2 * 4 * 256 * 128


def test_tiles_are_filled():
  # 64 channels lie in 128 lanes, 3 rows in 8 sublanes.
  assert hlo_cost.hbm_bytes('f32[3,64]{1,0:T(8,128)}') == 4 * 8 * 128
  assert hlo_cost.hbm_bytes('f32[3,64]{1,0}') == 4 * 3 * 64
  assert hlo_cost.hbm_bytes('(bf16[8]{0}, pred[4]{0})') == 20


def test_a_fusion_reads_of_a_slice_what_it_takes():
  fused = (
      '%f (p0: f32[24,512], p1: s32[]) -> f32[1,512] {\n'
      '  %p0 = f32[24,512]{1,0} parameter(0)\n'
      '  %p1 = s32[] parameter(1)\n'
      '  %z = s32[] constant(0)\n'
      '  %d = f32[1,512]{1,0} dynamic-slice(%p0, %p1, %z),'
      ' dynamic_slice_sizes={1,512}\n'
      '  ROOT %n = f32[1,512]{1,0} negate(%d)\n'
      '}\n\n'
  )
  lines = (
      '  %a = f32[24,512]{1,0} parameter(0)\n'
      '  %i = s32[] parameter(1)\n'
      '  ROOT %c = f32[1,512]{1,0} fusion(%a, %i), kind=kLoop, calls=%f'
  )
  # One row read, one written, and the index.
  assert hlo_cost.cost(program(lines, fused)).bytes == 2 * 4 * 512 + 4


@pytest.mark.parametrize(
    ('window', 'labels', 'shapes', 'products'),
    [
        # A 3x3 with padding: at the edges 2 of 3 rows meet the image.
        ('size=3x3 pad=1_1x1_1', 'b01f_01io->b01f',
         ('1,8,8,4', '3,3,4,16', '1,8,8,16'), 22 * 22 * 4 * 16),
        # A batch of 4 products as a dilated convolution, as a TPU has it.
        ('size=4 stride=3 lhs_dilate=4', '0bf_0io->0bf',
         ('4,8,16', '4,16,32', '4,8,32'), 4 * 8 * 16 * 32),
    ],
)
def test_products_of_a_convolution_are_those_that_meet_an_input(
    window, labels, shapes, products
):
  left, right, out = shapes
  lines = (
      f'  %a = f32[{left}] parameter(0)\n'
      f'  %b = f32[{right}] parameter(1)\n'
      f'  ROOT %c = f32[{out}] convolution(%a, %b), window={{{window}}},'
      f' dim_labels={labels}'
  )
  assert hlo_cost.cost(program(lines)).flops == 2 * products
