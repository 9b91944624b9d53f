"""A stand-in for Google Cloud Storage on this machine, for one test process.

Of the JSON API (https://cloud.google.com/storage/docs/json_api) what gcsfs,
google-cloud-storage and TensorStore send: generations and their conditions,
listings, whole, multipart and resumable uploads, ranges, deletion.
"""

import base64
import contextlib
import json
import re
import sys
import threading
import urllib.parse
import zlib
from collections.abc import Iterator
from http import server

_OBJECT = re.compile(r'/(?:download/)?storage/v1/b/([^/]+)/o/(.+)')
_BUCKET = re.compile(r'/storage/v1/b/([^/]+)(/o)?')
_UPLOAD = re.compile(r'/upload/storage/v1/b/([^/]+)/o')


class Bucket:
  """What lies in a bucket, and what was asked of it.

  Attributes:
    objects: name -> (content, generation).
    requests: 'METHOD path' of all so far.
    environment: makes the libraries ask here.
    refuse: takes a request's method, its decoded target and its length, and
      returns a status to refuse it with, or None.
  """

  def __init__(self, name: str, address: str):
    self.name = name
    self.objects, self.requests = {}, []
    self.environment = {
        'STORAGE_EMULATOR_HOST': address,
        'TENSORSTORE_GCS_HTTP_URL': address,
        'NO_GCE_CHECK': 'true',  # Or credentials are looked for in vain.
    }
    self.refuse = lambda method, target, length: None
    self.lock, self.generation, self.uploads = threading.Lock(), 0, {}

  def content(self, name: str) -> bytes:
    return self.objects[name][0]

  def put(self, name: str, content: bytes):
    self.generation += 1
    self.objects[name] = content, self.generation


class _Handler(server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  wbufsize = -1  # One packet an answer, or TCP waits 40 ms for the first's.
  bucket: Bucket

  def log_message(self, *_):
    pass

  def _handle(self):
    url = urllib.parse.urlsplit(self.path)
    self._query = dict(urllib.parse.parse_qsl(url.query))
    length = int(self.headers.get('Content-Length') or 0)
    self._body = self.rfile.read(length)
    target = urllib.parse.unquote(self.path)
    self.bucket.requests.append(f'{self.command} {target}')
    if status := self.bucket.refuse(self.command, target, length):
      return self._answer(status, {'error': {'message': 'refused'}})
    with self.bucket.lock:
      self._route(url.path)

  do_GET = do_POST = do_PUT = do_DELETE = _handle

  def _route(self, path):
    for pattern, act in (
        (_OBJECT, self._object), (_UPLOAD, self._upload),
        (_BUCKET, self._of_bucket),
    ):
      if match := pattern.fullmatch(path):
        bucket, *rest = match.groups()
        if bucket != self.bucket.name:
          return self._answer(404, {'error': {'message': 'no such bucket'}})
        return act(*rest)
    return self._answer(400, {'error': {'message': f'not played: {path}'}})

  def _of_bucket(self, objects):
    if not objects:
      return self._answer(200, {'name': self.bucket.name})
    ask = self._query
    prefix, delimiter = ask.get('prefix', ''), ask.get('delimiter')
    items, prefixes = [], []
    for name in sorted(self.bucket.objects):
      if not name.startswith(prefix) or name < ask.get('startOffset', ''):
        continue
      head, cut, _ = name[len(prefix):].partition(delimiter or '\0')
      if cut:
        prefixes.append(prefix + head + cut)
      else:
        items.append(self._resource(name))
    # Folders and objects count together; a page as small as it was asked for.
    found = sorted({*prefixes, *(item['name'] for item in items)})
    begin = int(ask.get('pageToken', 0))
    end = begin + int(ask.get('maxResults', 1000))
    page = set(found[begin:end])
    answer = {
        'items': [item for item in items if item['name'] in page],
        'prefixes': sorted(set(prefixes) & page),
    }
    if end < len(found):
      answer['nextPageToken'] = str(end)
    return self._answer(200, answer)

  def _object(self, name):
    name = urllib.parse.unquote(name)
    content, generation = self.bucket.objects.get(name, (None, 0))
    if self._unmet(generation):
      return None
    if content is None:
      return self._answer(404, {'error': {'message': 'No such object'}})
    if self.command == 'DELETE':
      del self.bucket.objects[name]
      return self._answer(204, b'')
    if self._query.get('alt') != 'media':
      return self._answer(200, self._resource(name))
    status, headers = 200, {'x-goog-generation': str(generation)}
    if wanted := self.headers.get('Range'):
      first, last = re.fullmatch(r'bytes=(\d*)-(\d*)', wanted).groups()
      size = len(content)
      begin = int(first) if first else max(size - int(last), 0)
      end = min(int(last) + 1, size) if first and last else size
      if begin >= size:
        return self._answer(416, b'', {'Content-Range': f'bytes */{size}'})
      headers['Content-Range'] = f'bytes {begin}-{end - 1}/{size}'
      content, status = content[begin:end], 206
    return self._answer(status, content, headers)

  def _upload(self):
    kind, name = self._query.get('uploadType'), self._query.get('name')
    content = self._body
    if kind == 'multipart':
      border = re.search('boundary="?([^";]+)', self.headers['Content-Type'])
      _, resource, media, _ = content.split(b'--' + border[1].encode())
      name = json.loads(_payload(resource))['name']
      content = _payload(media)
    elif kind == 'resumable' and 'upload_id' not in self._query:
      name = name or json.loads(self._body)['name']
      number = str(len(self.bucket.uploads))
      self.bucket.uploads[number] = name, b''
      host = self.headers['Host']
      return self._answer(200, b'', {
          'Location': f'http://{host}/upload/storage/v1/b/{self.bucket.name}/o'
          f'?uploadType=resumable&upload_id={number}',
      })
    elif kind == 'resumable':
      number = self._query['upload_id']
      name, before = self.bucket.uploads[number]
      content = before + content
      self.bucket.uploads[number] = name, content
      if self.headers['Content-Range'].endswith('/*'):
        return self._answer(308, b'', {'Range': f'bytes=0-{len(content) - 1}'})
    _, generation = self.bucket.objects.get(name, (None, 0))
    if self._unmet(generation):
      return None
    self.bucket.put(name, content)
    return self._answer(200, self._resource(name))

  def _unmet(self, generation):
    """Answers, and returns True, if a condition of the request is not met."""
    is_not = self._query.get('ifGenerationNotMatch')
    if is_not is not None and int(is_not) == generation:
      self._answer(304, b'')
      return True
    must_be = self._query.get('ifGenerationMatch')
    if must_be is not None and int(must_be) != generation:
      self._answer(412, {'error': {'message': 'conditionNotMet'}})
      return True
    return False

  def _resource(self, name):
    content, generation = self.bucket.objects[name]
    return {
        'kind': 'storage#object',
        'name': name,
        'bucket': self.bucket.name,
        'generation': str(generation),
        'metageneration': '1',
        'size': str(len(content)),
        'updated': '2026-01-01T00:00:00.000Z',
        'timeCreated': '2026-01-01T00:00:00.000Z',
        'etag': base64.b64encode(zlib.crc32(content).to_bytes(4)).decode(),
    }

  def _answer(self, status, body, headers=None):
    if isinstance(body, dict):
      body = json.dumps(body).encode()
    self.send_response(status)
    for key, value in (headers or {}).items():
      self.send_header(key, value)
    if status != 304:
      self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    if status not in (204, 304):
      self.wfile.write(body)


class _Server(server.ThreadingHTTPServer):
  daemon_threads = True

  def handle_error(self, request, client_address):
    # Clients are killed, and keep connections that they no longer need.
    if not isinstance(sys.exception(), ConnectionError):
      super().handle_error(request, client_address)


def _payload(part: bytes) -> bytes:
  _, end, content = re.split(rb'\n(\r?\n)', part, maxsplit=1)
  return content.removesuffix(end)


@contextlib.contextmanager
def bucket(name: str = 'bucket') -> Iterator[Bucket]:
  """Serves one empty bucket for the while."""
  handler = type('Handler', (_Handler,), {})
  http = _Server(('127.0.0.1', 0), handler)
  handler.bucket = Bucket(name, f'http://127.0.0.1:{http.server_port}')
  thread = threading.Thread(
      target=http.serve_forever, args=(0.01,), daemon=True
  )
  thread.start()
  try:
    yield handler.bucket
  finally:
    http.shutdown()
    http.server_close()
    thread.join()
