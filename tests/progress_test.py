"""The speed of a run, by a clock that stands still between events."""

import io
import json

import pytest

from bigtransfer import progress, stopwatch


def read(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def now():
  return [0.0]


def make(tmp_path, now, **work):
  out = io.StringIO()
  watch = stopwatch.Stopwatch(clock=lambda: now[0])
  work = progress.Work(batch_size=8, devices=2, **work)
  line = progress.Progress(
      str(tmp_path), 0, total=100, work=work, watch=watch, out=out
  )
  return line, watch, out


def test_the_line_has_rate_wait_eta_and_metrics(tmp_path, now):
  line, watch, out = make(tmp_path, now)
  now[0] = 4.0
  for kind in ('evaluation', 'checkpoints', 'compilation'):
    with watch.during(kind):
      now[0] += 2  # The rate leaves it out.
  with watch.during('data'):
    now[0] += 1
  line.update(10, {'loss': 0.5, 'accuracy': 0.25, 'lr': 0.1})
  line.close()
  assert out.getvalue() == (
      'step 10/100  loss 0.5  accuracy 0.25  lr 0.1  16 examples/s'
      ' (8/device)  data wait 20%  ETA 0:00:45\n'
  )
  assert read(tmp_path / 'timing.jsonl') == [{
      'step': 10, 'examples_per_second': 16.0,
      'examples_per_second_per_device': 8.0, 'data_wait': 0.2,
  }]


def test_mfu_is_the_models_share_of_the_peak_of_all_devices(tmp_path, now):
  # 16 examples/s of 3 GFLOPs on two devices of 60 GFLOP/s.
  line, _, out = make(tmp_path, now, flops=3e9, peak=60e9)
  now[0] = 5.0
  line.update(10, {})
  line.close()
  assert read(tmp_path / 'timing.jsonl')[0]['mfu'] == 0.4
  assert '  MFU 40.0%  ' in out.getvalue()


def test_speed_is_that_of_the_last_two_updates(tmp_path, now):
  line, watch, _ = make(tmp_path, now)
  for step, seconds, waited in ((10, 10, 0), (20, 5, 5), (30, 5, 0)):
    now[0] += seconds - waited
    with watch.during('data'):
      now[0] += waited
    line.update(step, {})
  line.close()
  rows = read(tmp_path / 'timing.jsonl')
  assert [r['examples_per_second'] for r in rows] == [8, 10.67, 16]
  assert [r['data_wait'] for r in rows] == [0, 0.3333, 0.5]


@pytest.mark.parametrize(('seconds', 'text'), [
    (0.4, '0:00:00'), (59.6, '0:01:00'), (3725, '1:02:05')])
def test_clock(seconds, text):
  assert progress.clock(seconds) == text
