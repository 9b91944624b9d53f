"""From any state to READY: which command follows which state, and how often."""

import dataclasses

import pytest

from launch import gcloud, tpu_node

# A state of the node, of the queued resource, and what must come next.
STEPS = [
    (None, None, 'create'),
    ('CREATING', None, 'wait'),
    ('STARTING', None, 'wait'),
    ('REPAIRING', None, 'wait'),
    ('DELETING', None, 'wait'),
    ('STOPPING', None, 'wait'),
    ('READY', None, 'ready'),
    ('STOPPED', None, 'start'),
    ('PREEMPTED', None, 'delete node'),
    ('TERMINATED', None, 'delete node'),
    (None, 'ACCEPTED', 'wait'),
    (None, 'WAITING_FOR_RESOURCES', 'wait'),
    (None, 'PROVISIONING', 'wait'),
    ('CREATING', 'PROVISIONING', 'wait'),
    ('READY', 'ACTIVE', 'ready'),
    (None, 'ACTIVE', 'delete request'),
    ('PREEMPTED', 'ACTIVE', 'delete request'),
    ('READY', 'SUSPENDING', 'wait'),
    (None, 'DELETING', 'wait'),
    (None, 'SUSPENDED', 'delete request'),
    ('PREEMPTED', 'SUSPENDED', 'delete request'),
    (None, 'FAILED', 'delete request'),
    ('STOPPED', 'ACTIVE', 'delete request'),
]


@pytest.mark.parametrize(('state', 'request_state', 'step'), STEPS)
def test_next_step(state, request_state, step):
  assert tpu_node.next_step(tpu_node.Node(state, request_state)) == step


def test_an_unknown_state_is_named_and_nothing_is_done():
  with pytest.raises(tpu_node.StateError, match='MELTED'):
    tpu_node.next_step(tpu_node.Node('MELTED'))


SPEC = tpu_node.Spec(
    'a', 'us-central2-b', 'p', 'v4-8', 'tpu-ubuntu2204-base', spot=True
)


def run_up(cloud, spec=SPEC, most=5, **values):
  """Runs up() on the stub; returns its node, its calls and its sleeps."""
  cloud.set(**values)
  sleeps, said = [], []
  retries = gcloud.Retries(most, 1.0, said.append, sleeps.append)
  run = gcloud.Gcloud(retries)
  node = tpu_node.up(
      run, spec, poll_seconds=7.0, max_wait_hours=1.0, say=said.append,
      sleep=sleeps.append,
  )
  return node, cloud.verbs('describe'), sleeps


STARTS = [
    ({}, ['tpu-vm create']),
    ({'nodes': {'a': ['READY']}}, []),
    ({'nodes': {'a': ['CREATING', 'CREATING', 'READY']}}, []),
    ({'nodes': {'a': ['STOPPED']}}, ['tpu-vm start']),
    ({'nodes': {'a': ['STOPPING', 'STOPPED']}}, ['tpu-vm start']),
    ({'nodes': {'a': ['PREEMPTED']}}, ['tpu-vm delete', 'tpu-vm create']),
    ({'nodes': {'a': ['TERMINATED']}, 'on_delete': ['DELETING', None]},
     ['tpu-vm delete', 'tpu-vm create']),
    ({'nodes': {'a': ['DELETING', None]}}, ['tpu-vm create']),
    ({'on_create': ['CREATING', 'REPAIRING', 'READY']}, ['tpu-vm create']),
]


@pytest.mark.parametrize(('start', 'calls'), STARTS)
def test_up_from_each_state(cloud, start, calls):
  node, found, _ = run_up(cloud, **start)
  assert node.state == 'READY'
  assert found == calls


QUEUED = dataclasses.replace(SPEC, queued=True)
QR = 'queued-resources'


@pytest.mark.parametrize(('start', 'calls'), [
    ({'on_request': ['ACCEPTED', 'WAITING_FOR_RESOURCES', 'PROVISIONING',
                     'ACTIVE']}, [f'{QR} create']),
    ({'requests': {'a': ['FAILED']}}, [f'{QR} delete', f'{QR} create']),
    ({'requests': {'a': ['SUSPENDING', 'SUSPENDED']},
      'nodes': {'a': ['PREEMPTED']}}, [f'{QR} delete', f'{QR} create']),
    ({'requests': {'a': ['WAITING_FOR_RESOURCES', 'ACTIVE']}}, []),
])
def test_up_through_the_queue(cloud, start, calls):
  node, found, _ = run_up(cloud, QUEUED, **start)
  assert node.state == 'READY'
  assert found == calls


def test_a_vm_from_the_queue_is_replaced_as_one(cloud):
  _, found, _ = run_up(
      cloud, nodes={'a': ['PREEMPTED']}, requests={'a': ['SUSPENDED']}
  )
  assert found == [f'{QR} delete', 'tpu-vm create']


def test_a_lost_answer_makes_no_second_vm(cloud):
  lost = {'when': 'create', 'stderr': 'Connection reset by peer',
          'effect': True}
  node, found, sleeps = run_up(
      cloud, failures=[lost], on_create=['CREATING', 'READY']
  )
  assert node.state == 'READY'
  assert found == ['tpu-vm create']
  assert sleeps == [1.0, 7.0]


def test_somebody_else_was_faster(cloud):
  # Made between the look and the creation.
  other = {'when': 'create', 'stderr': "ALREADY_EXISTS: Resource 'a'",
           'effect': True}
  node, found, _ = run_up(cloud, failures=[other])
  assert node.state == 'READY'
  assert found == ['tpu-vm create']


STOCKOUT = {'when': 'create', 'stderr': 'There is no more capacity in the zone'}


def test_a_zone_without_capacity_is_tried_a_bounded_number_of_times(cloud):
  _, found, sleeps = run_up(cloud, failures=[STOCKOUT] * 2)
  assert found == ['tpu-vm create'] * 3
  assert sleeps[:2] == [1.0, 2.0]


@pytest.mark.parametrize('trouble', [
    {'failures': [STOCKOUT] * 99},
    {'failures': [{'when': 'describe', 'stderr': 'UNAVAILABLE'}] * 99},
    {'on_create': ['TERMINATED']},
    {'on_create': [None]},
    {'nodes': {'a': ['PREEMPTED']}, 'on_delete': ['PREEMPTED']},
])
def test_retries_end(cloud, trouble):
  with pytest.raises(gcloud.GaveUp, match='after 4 retries'):
    run_up(cloud, most=4, **trouble)
  assert len(cloud.calls) < 40


def test_a_quota_is_not_tried_again(cloud):
  quota = {'when': 'create', 'stderr': "Quota limit 'X' has been exceeded"}
  with pytest.raises(gcloud.GcloudError, match="Quota limit 'X'"):
    run_up(cloud, failures=[quota])
  assert cloud.verbs('describe') == ['tpu-vm create']


@pytest.mark.parametrize('state', ['READY', 'PREEMPTED', 'CREATING'])
def test_a_vm_of_another_size_is_neither_used_nor_deleted(cloud, state):
  with pytest.raises(tpu_node.StateError, match='there as v4-32, not v4-8'):
    run_up(cloud, nodes={'a': [state]}, types={'a': 'v4-32'})
  assert cloud.verbs('describe') == []


@pytest.mark.parametrize('text', [
    'PREEMPTED\tHEALTHY\t2026-01-01T00:00:00Z\t\tv4-8\n',
    'PREEMPTED\n',
    'apiVersion: V2\nhealth: HEALTHY\nname: a\nstate: PREEMPTED\n',
    '{\n  "health": "HEALTHY",\n  "state": "PREEMPTED"\n}',
])
def test_forms_of_the_answer(text):
  assert tpu_node._state(text, 'describe') == 'PREEMPTED'


def test_an_answer_without_a_state():
  with pytest.raises(tpu_node.StateError, match='no state'):
    tpu_node._state('\n', 'describe')


def test_waiting_ends(cloud):
  cloud.set(nodes={'a': ['CREATING']})
  times = iter(range(0, 100_000, 1000))
  retries = gcloud.Retries(1, 1.0, print, lambda s: None)
  with pytest.raises(tpu_node.StateError, match='not READY after 1 h'):
    tpu_node.up(
        gcloud.Gcloud(retries), SPEC, poll_seconds=1.0, max_wait_hours=1.0,
        say=print, sleep=lambda s: None, clock=lambda: next(times),
    )


@pytest.mark.parametrize(('start', 'spec', 'calls'), [
    ({}, SPEC, []),
    ({'nodes': {'a': ['READY']}}, SPEC, ['tpu-vm delete']),
    ({'nodes': {'a': ['DELETING', None]}}, SPEC, []),
    ({'nodes': {'a': ['READY']}, 'on_delete': ['DELETING', None]}, SPEC,
     ['tpu-vm delete']),
    ({'nodes': {'a': ['READY']}, 'requests': {'a': ['ACTIVE']}}, SPEC,
     [f'{QR} delete']),
    ({'requests': {'a': ['WAITING_FOR_RESOURCES']}}, QUEUED, [f'{QR} delete']),
    ({'nodes': {'a': ['READY']}, 'failures': [
        {'when': 'delete', 'stderr': 'UNAVAILABLE'}]}, SPEC,
     ['tpu-vm delete'] * 2),
])
def test_down_from_each_state(cloud, start, spec, calls):
  cloud.set(**start)
  retries = gcloud.Retries(5, 0.0, print, lambda s: None)
  tpu_node.down(
      gcloud.Gcloud(retries), spec, poll_seconds=0.0, say=print,
      sleep=lambda s: None,
  )
  assert cloud.verbs('describe') == calls
  assert cloud.state['nodes'] == {}
  assert cloud.state['requests'] == {}
