"""Processes agree, whatever their main threads wait for."""

import concurrent.futures
import threading
import time

import pytest

from bigtransfer import coordination


class Store:
  """The key-value store of processes that are threads."""

  def __init__(self):
    self._values, self._lock = {}, threading.Lock()

  def set(self, key, value):
    assert self.set_new(key, value), f'{key} is set twice'

  def put(self, key, value):
    self._values[key] = value

  def set_new(self, key, value):
    with self._lock:
      return self._values.setdefault(key, value) is value

  def look(self, key):
    return self._values.get(key)

  def get(self, key):
    while (value := self.look(key)) is None:
      time.sleep(0.001)
    return value

  def under(self, folder):
    with self._lock:
      found = list(self._values.items())
    return sorted(
        (key.removeprefix(folder), value)
        for key, value in found if key.startswith(folder)
    )


@pytest.fixture
def make(monkeypatch):
  """Returns groups of so many processes that look at the store often."""
  monkeypatch.setattr(coordination, 'POLL', 0.002)
  groups = []

  def make(count, *limits):
    store = Store() if count > 1 else None
    made = [
        coordination.Group(store, i, count, *(limits or [None]))
        for i in range(count)
    ]
    groups.extend(made)
    return made

  yield make
  for group in groups:
    group.close()


# As threads end where a process would.
ends = pytest.mark.filterwarnings(
    'ignore::pytest.PytestUnhandledThreadExceptionWarning'
)


@pytest.fixture
def left(monkeypatch):
  """The exit codes of those that have left; their threads end."""
  codes = []

  def leave(code):
    codes.append(code)
    raise SystemExit

  monkeypatch.setattr(coordination, 'leave', leave)
  return codes


def wait_until(happened):
  until = time.monotonic() + 10
  while not happened() and time.monotonic() < until:
    time.sleep(0.01)
  return happened()


def run(groups, work):
  """Runs work(group) for each in a thread of its own."""
  threads = [
      threading.Thread(target=work, args=(group,), daemon=True)
      for group in groups
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(timeout=20)
    assert not thread.is_alive(), 'a process waits for ever'


@pytest.mark.parametrize('asking', [0, 2])
def test_all_act_at_the_same_call(make, asking):
  groups, acted = make(3), {}
  # As a collective is: who is ahead waits in it for those behind.
  collective = threading.Barrier(3)

  def work(group):
    for call in range(400):
      if group.index == asking and call == 7:
        group.ask('stop')
      if 'stop' in group.check():
        acted[group.index] = call
        return
      time.sleep(0.001 * group.index)
      collective.wait(timeout=15)

  run(groups, work)
  assert len(acted) == 3 and len(set(acted.values())) == 1
  assert acted[0] >= 7


def test_several_ask_for_several_things(make):
  groups, acted = make(2), {0: [], 1: []}
  collective = threading.Barrier(2)

  def work(group):
    for call in range(100):
      if call == 3:
        group.ask(('save', 'stop')[group.index])
      acted[group.index] += [(call, event) for event in group.check()]
      time.sleep(0.002)
      collective.wait(timeout=15)

  run(groups, work)
  assert acted[0] == acted[1]
  assert sorted(event for _, event in acted[0]) == ['save', 'stop']


def test_one_process_acts_at_once_and_once(make):
  [group] = make(1)
  assert group.check() == set()
  group.ask('stop')
  group.ask('stop')
  assert group.check() == {'stop'}
  assert group.check() == set()


def test_all_get_the_value_of_process_0(make):
  groups, got = make(2), {}

  def work(group):
    got[group.index] = group.broadcast('name', {'step': 10 + group.index})

  run(groups, work)
  assert got == {0: {'step': 10}, 1: {'step': 10}}


@ends
def test_a_failure_ends_the_others_with_its_code(make, left, capsys):
  groups = make(2)
  with pytest.raises(SystemExit):
    groups[1].fail('no such file', 2)
  assert wait_until(lambda: len(left) == 2)
  assert set(left) == {2}
  assert 'error: process 1 failed: no such file' in capsys.readouterr().err


def wait_for_all(groups, works, answers):
  def work(group):
    answers[group.index] = group.await_all('it', works[group.index])

  run(groups, work)


@pytest.mark.parametrize('count', [1, 3])
def test_all_wait_until_the_last_is_done(make, count):
  groups, answers = make(count), {}
  works = [concurrent.futures.Future() for _ in groups]
  for work in works[:-1]:
    work.set_result(None)

  def finish():
    assert not answers
    works[-1].set_result(None)

  timer = threading.Timer(0.2, finish)
  timer.start()
  wait_for_all(groups, works, answers)
  assert answers == dict.fromkeys(range(count), True)


@pytest.mark.parametrize(
    ('count', 'asking', 'waiting'), [(1, 0, 0), (3, 0, 2), (3, 2, 1), (3, 2, 2)]
)
def test_all_give_up_waiting_when_one_is_asked_to_stop(
    make, count, asking, waiting
):
  groups, answers = make(count), {}
  works = [concurrent.futures.Future() for _ in groups]
  for index, work in enumerate(works):
    if index != waiting:
      work.set_result(None)
  timer = threading.Timer(0.1, groups[asking].ask, ['stop'])
  timer.start()
  wait_for_all(groups, works, answers)
  assert answers == dict.fromkeys(range(count), False)


def test_waiting_is_no_hang(make, capfd):
  [group] = make(1, 0.1)
  work = concurrent.futures.Future()
  threading.Timer(0.4, work.set_result, [None]).start()
  assert group.await_all('it', work)
  assert 'has made no step' not in capfd.readouterr().err


@ends
@pytest.mark.parametrize('silent', [0, 1])
def test_a_silent_process_ends_the_others(
    make, left, monkeypatch, capfd, silent
):
  put = Store.put

  def put_or_not(self, key, value):
    if key != f'sign/{silent}':
      put(self, key, value)

  monkeypatch.setattr(Store, 'put', put_or_not)
  make(2, None, 0.3)
  assert wait_until(lambda: left)
  assert set(left) == {1}
  said = capfd.readouterr().err
  assert f'error: process {silent} ' in said and 'was last heard from' in said
  assert f'error: process {1 - silent} ' not in said


def test_a_process_that_makes_no_step_says_where_it_is(make, capfd):
  [group] = make(1, 0.05)
  time.sleep(0.3)
  said = capfd.readouterr().err
  assert said.count('has made no step for 0.05 s') == 1
  assert 'test_a_process_that_makes_no_step' in said
  group.check()
  time.sleep(0.3)
  assert 'has made no step' in capfd.readouterr().err
