"""Files of a run: whole lines, in order, unchanged by a resume."""

import contextlib
import io
import json

import jax.numpy as jnp
import pytest

from bigtransfer import metrics, stopwatch
from bigtransfer import progress as progress_lib


def lines_of(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_resume_keeps_what_was_written_byte_for_byte(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  with metrics.MetricWriter(str(tmp_path), 0) as writer:
    for step in range(1, 8):
      writer.write(step, 'train', 'train', {'loss': 1 / step})
      if step == 5:
        writer.write(5, 'train', 'eval', {'accuracy': 0.5})
  whole = path.read_bytes()
  path.write_bytes(whole + b'{"step": 8, "phase": "tr')  # Killed here.
  with metrics.MetricWriter(str(tmp_path), 5) as writer:
    assert (writer.evaluated, writer.evaluation) == (5, {'accuracy': 0.5})
    assert path.read_bytes() == b''.join(whole.splitlines(True)[:6])
    for step in (6, 7):
      writer.write(step, 'train', 'train', {'loss': 1 / step})
  assert path.read_bytes() == whole


def test_a_resume_before_the_evaluation_evaluates_again(tmp_path):
  with metrics.MetricWriter(str(tmp_path), 0) as writer:
    writer.write(4, 'train', 'train', {})
    writer.write(5, 'train', 'eval', {})
  with metrics.MetricWriter(str(tmp_path), 4) as writer:
    assert writer.evaluated is None


@contextlib.contextmanager
def recorder(tmp_path, writer, **kwargs):
  progress = progress_lib.Progress(
      str(tmp_path), 0, total=10, work=progress_lib.Work(8, 2),
      watch=stopwatch.Stopwatch(), out=io.StringIO(),
  )
  defaults = dict(
      log_every=2, nonfinite='stop', names=NAMES, leaves=['a/kernel', 'b']
  )
  with contextlib.closing(progress):
    yield metrics.Recorder(writer, progress, 'train', **defaults | kwargs)


NAMES = ('grad_norm', 'loss', 'lr', 'nonfinite_leaf', 'skipped', 'update_norm')


def values(loss, skipped=0, leaf=-1, update_norm=1):
  return jnp.float32([1, loss, 0.1, leaf, skipped, update_norm])


def test_metrics_come_one_interval_late_and_each_step_once(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  with (
      metrics.MetricWriter(str(tmp_path), 0) as writer,
      recorder(tmp_path, writer) as record,
  ):
    for step in range(1, 6):
      record.add(step, values(step))
      writer.flush()
      # Steps 1 and 2 are waited for when step 4 has been sent off.
      assert len(lines_of(path)) == (2 if step >= 4 else 0)
    record.flush()
    rows = lines_of(path)
  assert [r['step'] for r in rows] == [1, 2, 3, 4, 5]
  assert [r['values']['loss'] for r in rows] == [1, 2, 3, 4, 5]
  assert {(r['phase'], r['kind']) for r in rows} == {('train', 'train')}


def test_no_more_steps_than_a_stop_can_wait_for_are_under_way(tmp_path):
  waited = []

  class Slow(list):
    def block_until_ready(self):
      waited.append(self[0])

  with (
      metrics.MetricWriter(str(tmp_path), 0) as writer,
      recorder(tmp_path, writer, log_every=100) as record,
  ):
    for step in range(1, metrics.AHEAD + 3):
      record.add(step, Slow([step]))
  assert waited == [1, 2]


def test_a_value_that_is_not_finite_ends_the_run_by_name(tmp_path):
  with (
      metrics.MetricWriter(str(tmp_path), 0) as writer,
      recorder(tmp_path, writer) as record,
  ):
    record.add(1, values(1))
    record.add(2, values(float('nan'), skipped=1, leaf=1))
    record.add(3, values(1, skipped=1))
    with pytest.raises(
        metrics.NonFiniteError, match='step 2: loss nan.*finite: b;'
    ):
      record.flush()
    assert [r['step'] for r in lines_of(tmp_path / 'metrics.jsonl')] == [1, 2]
  with (
      metrics.MetricWriter(str(tmp_path), 0) as writer,
      recorder(tmp_path, writer, nonfinite='skip') as record,
  ):
    record.add(1, values(float('nan'), skipped=1))
    record.add(2, values(1, skipped=1))
    record.flush()
    assert len(lines_of(tmp_path / 'metrics.jsonl')) == 2
    record.add(3, values(1, update_norm=float('inf')))
    with pytest.raises(metrics.NonFiniteError, match='an update of norm inf'):
      record.flush()


def test_norms_of_layers_have_a_line_of_their_own(tmp_path):
  with (
      metrics.MetricWriter(str(tmp_path), 0) as writer,
      recorder(tmp_path, writer) as record,
  ):
    record.add(1, values(1))
    layers = {'trust_ratio': {'layers/kernel': jnp.float32([2, 3])}}
    record.add(2, values(1), layers)
    record.flush()
    rows = lines_of(tmp_path / 'metrics.jsonl')
  assert [(r['step'], r['kind']) for r in rows] == [
      (1, 'train'), (2, 'train'), (2, 'norms')
  ]
  assert rows[2]['values'] == {
      'trust_ratio/layers/kernel/00': 2, 'trust_ratio/layers/kernel/01': 3
  }
