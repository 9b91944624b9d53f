"""Files of a workdir: the same in a folder and in a bucket."""

import json
import os
import socket
import time

import pytest

from bigtransfer import files, json_lines, metrics


@pytest.fixture(params=['folder', 'bucket'])
def place(request, tmp_path):
  """A place for files, and what gives the content of one in it."""
  if request.param == 'folder':
    return str(tmp_path), lambda name: (tmp_path / name).read_bytes()
  bucket = request.getfixturevalue('bucket')
  return 'gs://bucket/run', lambda name: bucket.content(f'run/{name}')


@pytest.mark.parametrize('path', [
    's3://bucket/run', 'http://bucket/run', 'file:///tmp/run', 'gs://bucket',
    'gs://bucket/', 'gs:///run', 'gs://bucket//run', 'gs://bucket/run/*',
    'gs://bucket/run#1', 'gs://bucket/a[1]', 'GS://bucket/run',
])
def test_addresses_that_do_not_work_are_refused(path):
  with pytest.raises(ValueError) as caught:
    files.check(path, '--workdir')
  assert f'--workdir={path}; accepted: a folder' in str(caught.value)
  assert 'gs://BUCKET/FOLDER' in str(caught.value)


def test_local_paths_and_buckets_that_are_there_pass(bucket):
  for path in ('runs/a', '/a', '.', 'gs://bucket/run', 'gs://bucket/a/b.c/'):
    files.check(path, '--workdir')


def test_a_missing_package_is_named_with_what_to_type(monkeypatch):
  monkeypatch.setattr(files.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match=r"pip install 'bigtransfer\[gcs\]'"):
    files.check('gs://bucket/run', '--workdir')


def test_what_bars_a_bucket_is_named(bucket, monkeypatch, tmp_path):
  with pytest.raises(FileNotFoundError, match='there is no bucket other'):
    files.check('gs://other/run', '--workdir')
  bucket.refuse = lambda *_: 403
  with pytest.raises(PermissionError, match='roles.*storage.objectUser'):
    files.check('gs://bucket/run', '--workdir')
  # Nobody has logged in on this machine.
  monkeypatch.delenv('STORAGE_EMULATOR_HOST')
  monkeypatch.delenv('GOOGLE_APPLICATION_CREDENTIALS', raising=False)
  monkeypatch.setenv('CLOUDSDK_CONFIG', str(tmp_path))
  with pytest.raises(PermissionError, match='application-default login'):
    files.check('gs://bucket/run', '--workdir')


def test_a_bucket_that_does_not_answer_is_given_up(bucket, monkeypatch):
  monkeypatch.setattr(files, 'PATIENCE', 0.3)
  with socket.create_server(('127.0.0.1', 0)) as silent:
    port = silent.getsockname()[1]
    monkeypatch.setenv('STORAGE_EMULATOR_HOST', f'http://127.0.0.1:{port}')
    begin = time.monotonic()
    with pytest.raises(ConnectionError, match=r'within 0\.3 s'):
      files.check('gs://bucket/run', '--workdir')
    assert time.monotonic() - begin < 5


def test_files_are_written_found_and_read(place, tmp_path):
  folder, content = place
  path = os.path.join(folder, 'sub', 'a.bin')
  data = bytes(range(256)) * 3 + b'\r\n\n'
  assert not files.exists(path) and not files.is_folder(f'{folder}/sub')
  assert files.names(f'{folder}/sub') == []
  with pytest.raises(FileNotFoundError, match=r'sub/a\.bin'):
    files.read(path)
  files.make_folder(f'{folder}/sub')
  files.write(path, b'before')
  files.write(path, data)
  files.make_folder(f'{folder}/sub/b')
  files.write(f'{folder}/sub/b/c', b'1')
  assert content('sub/a.bin') == files.read(path) == data
  assert files.exists(path) and files.is_folder(f'{folder}/sub')
  assert not files.is_folder(path)
  assert sorted(files.names(f'{folder}/sub')) == ['a.bin', 'b']
  with files.here(path) as here, open(here, 'rb') as f:
    assert os.path.basename(here) == 'a.bin' and f.read() == data
  with files.here(f'{folder}/sub') as here:
    assert 'a.bin' in os.listdir(here)
    # A wrong address must not bring a whole bucket here.
    assert 'gs:' not in folder or os.listdir(here) == ['a.bin']


def test_what_is_put_by_others_is_seen_at_once(bucket):
  assert files.names('gs://bucket/run') == []
  bucket.put('run/a', b'1')
  assert files.names('gs://bucket/run') == ['a']
  bucket.put('run/b', b'2')
  assert files.exists('gs://bucket/run/b')
  assert sorted(files.names('gs://bucket/run')) == ['a', 'b']
  del bucket.objects['run/a']
  assert not files.exists('gs://bucket/run/a')


def test_a_refusal_is_an_error_of_the_file(bucket):
  bucket.refuse = lambda method, *_: 403 if method == 'POST' else None
  with pytest.raises(OSError, match='gs://bucket/run/a: Forbidden'):
    files.write('gs://bucket/run/a', b'1')


def test_text_is_added_line_by_line(place):
  folder, content = place
  for line in ('ä\n', 'b\n'):
    files.append(f'{folder}/log.txt', line)
  assert content('log.txt') == 'ä\nb\n'.encode()
  for _ in range(2):  # Of a run that goes on.
    metrics.BadImages(folder, lambda text: None).note([(3, 'x.png')])
  assert content('bad_images.txt') == b'x.png\n'


def test_lines_go_on_after_a_kill_byte_for_byte(place):
  folder, content = place
  path = f'{folder}/metrics.jsonl'

  def write(lines, steps):
    for step in steps:
      lines.write(step=step, loss=1 / step)

  whole = b''.join(
      json.dumps({'step': k, 'loss': 1 / k}).encode() + b'\n'
      for k in range(1, 10)
  )
  lines = json_lines.JsonLines(path, 0)
  write(lines, range(1, 6))
  lines.flush()  # Checkpoint 5.
  write(lines, (6, 7))
  lines.flush()  # An evaluation.
  assert content('metrics.jsonl') == b''.join(whole.splitlines(True)[:7])
  write(lines, (8,))  # Killed here.
  going_on = json_lines.JsonLines(path, 5)
  assert going_on.last == {'step': 5, 'loss': 1 / 5}
  going_on.flush()
  assert content('metrics.jsonl') == b''.join(whole.splitlines(True)[:5])
  write(going_on, range(6, 10))
  going_on.close()
  assert content('metrics.jsonl') == whole
  # A last line without its end.
  files.write(path, whole + b'{"step": 10, "lo')
  json_lines.JsonLines(path, 9).close()
  assert content('metrics.jsonl') == whole


def test_an_object_is_put_rarely_and_only_if_it_changed(bucket, monkeypatch):
  now = [0.0]
  monkeypatch.setattr(files.time, 'monotonic', lambda: now[0])
  puts = []

  def put(path, content, takes=2.0):
    puts.append(content)
    now[0] += takes

  monkeypatch.setattr(files, 'write', put)
  lines = json_lines.JsonLines('gs://bucket/run/timing.jsonl', 0)
  lines.flush()
  assert puts == []  # There is nothing to put.
  lines.write(step=1)
  now[0] = files.INTERVAL + 1
  lines.write(step=2)
  assert puts == [b'{"step": 1}\n{"step": 2}\n']
  # It took 2 s: the next one of itself comes after 200 s.
  now[0] += 199
  lines.write(step=3)
  assert len(puts) == 1
  now[0] += 2
  lines.write(step=4)
  assert len(puts) == 2
  lines.close()
  assert len(puts) == 2
