"""A trace has the steps that were asked for."""

import gzip

import jax
import jax.numpy as jnp
import pytest

from bigtransfer import trace


def run(workdir, steps, last):
  said = []
  recording = trace.Trace(workdir, steps, said.append)
  step = jax.jit(lambda x: x + 1)
  values = jnp.zeros(3)
  for i in range(1, last + 1):
    recording.before(i)
    with jax.profiler.TraceAnnotation(f'my step {i}'):
      values = step(values)
    recording.after(i, values)
  recording.close()
  return said


def test_the_chosen_steps_and_no_others(tmp_path):
  [said] = run(str(tmp_path), (3, 4), 6)
  assert str(tmp_path / 'profile') in said
  [path] = tmp_path.glob('profile/plugins/profile/*/*.trace.json.gz')
  text = gzip.decompress(path.read_bytes()).decode()
  assert [i for i in range(1, 7) if f'my step {i}' in text] == [3, 4]


def test_the_last_step_does_not_come_first():
  trace.check(None)
  trace.check((3, 3))
  with pytest.raises(ValueError, match=r'trace_steps=\(4, 3\)'):
    trace.check((4, 3))


def test_a_run_that_ends_before_keeps_what_it_has(tmp_path):
  assert run(str(tmp_path), (2, 9), 3)
  assert list(tmp_path.glob('profile/plugins/profile/*/*.xplane.pb'))


def test_nothing_is_left_where_nothing_was_asked_for(tmp_path):
  assert not run(str(tmp_path), (), 3)
  assert not run(str(tmp_path), (7, 9), 3)
  assert not run(None, (1, 2), 3)
  assert not list(tmp_path.iterdir())
