"""When a process looks for others, and what a signal does."""

import os
import signal

import ml_collections
import pytest

from bigtransfer import coordination, distributed


def section(**values):
  return ml_collections.ConfigDict({
      'initialize': None,
      'coordinator_address': None,
      'num_processes': None,
      'process_id': None,
      'timeout': 5,
      'heartbeat_timeout': 10,
      'hang_seconds': None,
  } | values)


CPU = {'JAX_PLATFORMS': 'cpu'}


@pytest.mark.parametrize(
    ('values', 'environ', 'needed'),
    [
        ({}, {}, False),
        ({'num_processes': 2}, {}, True),
        ({'coordinator_address': 'a:1'}, {}, True),
        ({}, {'SLURM_PROCID': '0', 'SLURM_NTASKS': '2'}, True),
        ({}, {'SLURM_PROCID': '0', 'SLURM_NTASKS': '1'}, False),
        ({}, {'SLURM_PROCID': '0'}, False),
        ({}, {'KUBERNETES_SERVICE_HOST': 'a'}, False),
        (
            {},
            {'KUBERNETES_SERVICE_HOST': 'a', 'JOB_COMPLETION_INDEX': '0'},
            True,
        ),
        ({'initialize': False, 'num_processes': 2}, {}, False),
        ({'initialize': True}, {}, True),
    ],
)
def test_others_are_looked_for_where_there_are_some(values, environ, needed):
  assert distributed.needed(section(**values), CPU | environ) is needed


@pytest.mark.parametrize('here', [False, True])
def test_libtpu_is_told_where_it_is_only_without_a_tpu(monkeypatch, here):
  names = ('TPU_ACCELERATOR_TYPE', 'TPU_WORKER_HOSTNAMES')
  for name in names:
    monkeypatch.setenv(name, '')
    monkeypatch.delenv(name)
  monkeypatch.setattr(distributed, '_sees_tpu', lambda: here)
  distributed.hush_libtpu()
  assert [name in os.environ for name in names] == [not here] * 2


def test_numbers_that_make_no_sense_are_refused():
  with pytest.raises(coordination.GroupError, match='process_id=2.*0 to 1'):
    distributed.start(section(
        coordinator_address='localhost:1', num_processes=2, process_id=2
    ))


def test_a_signal_asks_once_and_the_next_one_ends_the_process(capsys):
  group = coordination.Group(None, 0, 1, None)
  before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
  try:
    distributed.listen(group)
    os.kill(os.getpid(), signal.SIGTERM)
    assert group.check() == {'stop'}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
  finally:
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])
  assert 'saving, then stopping' in capsys.readouterr().err
