"""Who is silent and who makes no step, by a clock that the test turns."""

import json
import subprocess
import sys
import textwrap

from bigtransfer import heartbeat


class Pod:
  """Heartbeats of processes that look every half second, when they live."""

  def __init__(self, count, **limits):
    self.time = 1000.0
    self.store = {}  # Where the last sign of the dead remains.
    self.beats = [
        heartbeat.Heartbeat(
            index,
            range(1, count) if index == 0 else (0,),
            clock=lambda: self.time,
            **limits,
        )
        for index in range(count)
    ]

  def live(self, seconds, *, silent=(), standing=()):
    for _ in range(int(2 * seconds)):
      self.time += 0.5
      living = [b for i, b in enumerate(self.beats) if i not in silent]
      for index, beat in enumerate(self.beats):
        if index not in silent:
          beat.look()
        if index not in standing and index not in silent:
          beat.step()
      self.store |= {
          i: b.sign() for i, b in enumerate(self.beats) if i not in silent
      }
      for beat in living:
        beat.hear(self.store)


def test_living_processes_have_no_problem():
  pod = Pod(3, hang_seconds=10, silent_seconds=5)
  pod.live(60)
  assert [beat.problem() for beat in pod.beats] == [None] * 3


def test_the_silent_are_named_with_their_host_and_since_when(monkeypatch):
  monkeypatch.setattr('socket.gethostname', lambda: 'worker')
  pod = Pod(4, hang_seconds=None, silent_seconds=10)
  pod.live(3)
  pod.live(9.5, silent=(2,))
  assert pod.beats[0].problem() is None
  pod.live(2, silent=(2,))
  assert pod.beats[0].problem() == (
      'process 2 (worker) was last heard from 12 s ago'
      ' (config.distributed.heartbeat_timeout=10)'
  )
  # The others look after process 0 alone.
  assert pod.beats[1].problem() is None
  pod.live(11, silent=(0,))
  assert 'process 0 (worker) was last heard from 11' in pod.beats[3].problem()


def test_a_process_never_heard_of_is_silent_too():
  pod = Pod(7, hang_seconds=None, silent_seconds=10)
  pod.live(11, silent=(1, 2, 3, 4, 5, 6))
  said = pod.beats[0].problem()
  assert said.startswith('process 1 was last heard from 11 s ago, process 2')
  assert '2 more (config' in said


def test_whoever_was_stopped_does_not_blame_the_others():
  pod = Pod(2, hang_seconds=10, silent_seconds=10)
  pod.live(3)
  pod.time += 3600
  pod.beats[0].look()
  assert pod.beats[0].problem() is None


def test_whoever_has_left_is_not_missed():
  pod = Pod(2, hang_seconds=None, silent_seconds=10)
  pod.live(3)
  pod.store[1] = ''
  pod.live(60, silent=(1,))
  assert pod.beats[0].problem() is None


def test_the_one_that_makes_no_step_is_named_once_all_had_time_to_print(capfd):
  pod = Pod(3, hang_seconds=10, silent_seconds=60)
  pod.live(3)
  pod.beats[0].step()
  pod.beats[2].step()
  pod.live(10.5, standing=(0, 1, 2))
  assert capfd.readouterr().err.count('has made no step for 10 s') == 3
  assert pod.beats[0].problem() is None
  pod.live(2, standing=(0, 1, 2))
  said = pod.beats[0].problem()
  assert 'no step for 12 s (config.distributed.hang_seconds=10)' in said
  assert 'behind: process 1 (' in said and 'process 2' not in said
  assert 'process 0' not in said
  # Where this very thread is.
  assert 'in heartbeat.py:' in said
  assert pod.beats[1].problem() is None


def test_all_are_named_if_none_is_behind(capfd):
  pod = Pod(2, hang_seconds=10, silent_seconds=60)
  pod.live(13, standing=(0, 1))
  capfd.readouterr()
  said = pod.beats[0].problem()
  assert 'none is behind: process 0 (' in said and 'process 1 (' in said


def test_what_may_take_its_time_is_no_hang(capfd):
  pod = Pod(2, hang_seconds=10, silent_seconds=60)
  for _ in range(60):
    pod.live(1, standing=(0, 1))
    pod.beats[0].touch()
    pod.beats[1].touch()
  assert pod.beats[0].problem() is None
  assert 'no step' not in capfd.readouterr().err


def test_signs_are_json_and_differ():
  [beat] = Pod(1, hang_seconds=None).beats
  first = beat.sign()
  beat.look()
  assert json.loads(first) != json.loads(beat.sign())


def test_native_code_that_keeps_the_interpreter_is_seen():
  code = '''
      import ctypes
      from bigtransfer import heartbeat

      beat = heartbeat.Heartbeat(0, (1,), hang_seconds=None, silent_seconds=1)
      beat.look()
      ctypes.PyDLL(None).usleep(1500000)
      beat.close()
  '''
  result = subprocess.run(
      [sys.executable, '-c', textwrap.dedent(code)],
      capture_output=True,
      text=True,
      timeout=60,
  )
  assert result.returncode == 0, result.stderr
  assert 'line 7 in <module>' in result.stderr
