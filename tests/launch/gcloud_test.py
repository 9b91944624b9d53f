"""What gcloud's failures mean, and what is tried again how often."""

import pytest

from launch import gcloud

NOT_FOUND = (
    'ERROR: (gcloud.compute.tpus.tpu-vm.describe) NOT_FOUND: Resource'
    " 'projects/p/locations/us-central2-b/nodes/a' was not found"
)
# As seen in reports of users, with the code that gcloud ends with.
SEEN = [
    (NOT_FOUND, 1, 'NOT_FOUND'),
    (NOT_FOUND.replace('nodes', 'queuedResources'), 1, 'NOT_FOUND'),
    ("ERROR: NOT_FOUND: Project 'nodes' was not found", 1, 'OTHER'),
    ("NOT_FOUND: Location us-x was not found or access is unauthorized", 1,
     'OTHER'),
    ('ERROR: (gcloud.compute.tpus.tpu-vm.create) There is no more capacity in'
     ' the zone "europe-west4-a"; you can try in another zone [EID: 0xba3]', 1,
     'STOCKOUT'),
    ('{"code": 8, "message": "Insufficient reserved capacity. Contact', 1,
     'STOCKOUT'),
    ("RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPreemptiblePerProjectPerRegion"
     "ForTPUAPI' has been exceeded. Limit: 0 in region us-east5.", 1, 'QUOTA'),
    ("Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted", 1,
     'QUOTA'),
    ("RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Requests' and limit"
     " 'Requests per minute'", 1, 'TRANSIENT'),
    ("ALREADY_EXISTS: Resource 'projects/p/nodes/a' already exists", 1,
     'EXISTS'),
    ('This TPU has terminal state "PREEMPTED", so it cannot be used', 1,
     'GONE'),
    ('UNAVAILABLE: The service is currently unavailable.', 1, 'TRANSIENT'),
    ('ERROR: gcloud crashed (ConnectionError): (\'Connection aborted.\',', 1,
     'TRANSIENT'),
    ('socket.gaierror: [Errno -2] Name or service not known', 1, 'TRANSIENT'),
    ('ssh: connect to host 34.1.2.3 port 22: Connection timed out', 255,
     'TRANSIENT'),
    ('', 255, 'TRANSIENT'),
    ('PERMISSION_DENIED: Permission tpu.nodes.create denied', 1, 'OTHER'),
    ('unrecognized arguments: --spott (timeout)', 2, 'OTHER'),
    ('error: config.distributed.timeout timed out', 75, 'OTHER'),
]


@pytest.mark.parametrize(('stderr', 'code', 'kind'), SEEN)
def test_kinds_of_failure(stderr, code, kind):
  assert gcloud.classify(stderr, code).name == kind


def make(most=3, first_delay=2.0):
  delays, said = [], []
  retries = gcloud.Retries(most, first_delay, said.append, delays.append)
  return gcloud.Gcloud(retries), retries, delays, said


def test_waits_grow_up_to_a_limit_and_end():
  _, retries, delays, _ = make(most=12)
  for _ in range(12):
    retries.spend('no')
  assert delays == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600]
  with pytest.raises(gcloud.GaveUp, match='after 12 retries.*max_retries.*no'):
    retries.spend('no')
  assert len(delays) == 12


def test_waits_start_again_after_success_and_the_number_does_not():
  _, retries, delays, _ = make(most=3)
  retries.spend('a')
  retries.spend('b')
  retries.relax()
  retries.spend('c')
  assert delays == [2, 4, 2]
  with pytest.raises(gcloud.GaveUp):
    retries.spend('d')


def test_network_failures_are_tried_again(cloud):
  run, retries, delays, said = make()
  reset = {'when': 'describe', 'stderr': 'Connection reset by peer'}
  cloud.set(failures=[reset, reset], nodes={'a': ['READY']})
  argv = ('compute', 'tpus', 'tpu-vm', 'describe', 'a')
  assert run.call_again(*argv).startswith('READY')
  assert len(cloud.calls) == 3
  assert delays == [2, 4]
  assert 'Connection reset by peer' in said[0]


def test_an_error_shows_stderr_the_command_and_a_hint(cloud):
  run, _, delays, _ = make()
  cloud.set(failures=[{'when': 'create', 'code': 1,
                       'stderr': "Quota 'TPUV4' exhausted"}])
  argv = ('compute', 'tpus', 'tpu-vm', 'create', 'a', '--x=b c')
  with pytest.raises(gcloud.GcloudError) as e:
    run.call_again(*argv)
  assert "Quota 'TPUV4' exhausted" in str(e.value)
  assert 'iam-admin/quotas' in str(e.value)
  assert "gcloud compute tpus tpu-vm create a '--x=b c'" in str(e.value)
  assert not delays


def test_an_empty_argument_is_never_passed(cloud):
  run, _, _, _ = make()
  with pytest.raises(ValueError, match='empty argument'):
    run.call('compute', 'tpus', '')
  assert not cloud.calls


def test_a_call_that_hangs_is_a_network_failure(cloud):
  run, _, _, _ = make()
  path = cloud.home / 'bin' / 'gcloud'
  path.write_text('#!/bin/sh\nexec sleep 30\n')
  with pytest.raises(gcloud.GcloudError, match='timed out after 0.2 s') as e:
    run.call('compute', timeout=0.2)
  assert e.value.kind is gcloud.Kind.TRANSIENT


def test_without_gcloud_it_says_how_to_install_it(monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(gcloud.MissingError, match='docs/install'):
    make()
