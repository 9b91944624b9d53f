"""Probes that answer, fail, hang and take others along."""

import os
import pathlib
import time

import pytest

from launch import probes


def fake(monkeypatch, tmp_path, name, text):
  """Puts a module in the place of the real one, for probes only."""
  (tmp_path / f'{name}.py').write_text(text)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))


def test_devices_of_this_machine(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.setenv('JAX_NUM_CPU_DEVICES', '3')
  found = probes.devices(60)
  del found['stderr']
  expected = {'devices': 3, 'local': 3, 'processes': 1, 'kind': 'cpu'}
  assert found == {'backend': 'cpu', **expected}


def test_a_lone_worker_is_told(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  with pytest.raises(probes.ProbeError, match='another task died'):
    # Nobody listens there: ports below 1024 are not given out.
    probes.devices(1, 2, 'localhost:1', 1)


def test_a_hung_tpu_does_not_hang_the_doctor(monkeypatch, tmp_path):
  text = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
print('waiting for the TPU', child.pid, os.getpid(), file=sys.stderr)
time.sleep(60)
"""
  fake(monkeypatch, tmp_path, 'jax', text)
  begin = time.monotonic()
  with pytest.raises(probes.ProbeError) as error:
    probes.devices(1)
  message = str(error.value)
  assert message.startswith('no answer in 1 s, its last line: waiting for the')
  assert time.monotonic() - begin < 10
  time.sleep(0.2)
  for pid in message.split()[-2:]:
    stat = pathlib.Path('/proc', pid, 'stat')
    assert not stat.exists() or stat.read_text().split()[2] == 'Z'


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('raise RuntimeError("no TPU")', '^RuntimeError: no TPU$'),
        ('import no_such', "^ModuleNotFoundError: No module named 'no_such'$"),
        ('import sys; sys.exit(4)', '^ended with exit code 4$'),
        ('import os; os.abort()', '^ended with exit code -6$'),
        (
            'import sys; print("F1201 00:5 1 a.h:8] it died\\n @ 0x7 f()",'
            ' file=sys.stderr); sys.exit(1)',
            '^it died$',
        ),
        ('import sys; sys.exit("error: a folder")', '^a folder$'),
    ],
)
def test_why_a_probe_failed(monkeypatch, tmp_path, text, message):
  fake(monkeypatch, tmp_path, 'jax', text)
  with pytest.raises(probes.ProbeError, match=message):
    probes.devices(20)


def test_a_bucket(tmp_path):
  before = time.time()
  assert probes.bucket(60, str(tmp_path)) >= before - 1
  assert not os.listdir(tmp_path)
  with pytest.raises(probes.ProbeError, match='FileNotFoundError'):
    probes.bucket(60, str(tmp_path / 'missing'))
