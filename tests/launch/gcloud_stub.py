"""Plays gcloud: TPU VMs in a JSON file, their workers in folders here.

GCLOUD_STUB names a folder with state.json:
  nodes      {name: states that its next looks show; the last one stays, None
             means that it has gone}, requests the same for queued resources
  on_create  states of a new node after its creation, on_request of a request
  failures   [{when, code, stderr, effect}]: the next call that holds the words
             `when` fails so, after it has had its effect if `effect`
  workers    their number, and worker_env what each has in its environment
It appends to calls.jsonl, and to violations.txt what no launcher may do.
"""

import fcntl
import json
import os
import pathlib
import sys

HOME = pathlib.Path(os.environ['GCLOUD_STUB'])
UNUSABLE = ('STOPPED', 'STOPPING', 'DELETING', 'HIDDEN')


def fail(text, code=1):
  print(f'ERROR: (gcloud) {text}', file=sys.stderr)
  sys.exit(code)


def violation(text):
  with open(HOME / 'violations.txt', 'a') as f:
    f.write(f'{text}\n')


class State:
  """state.json, locked while it is read and changed."""

  def __enter__(self):
    self._lock = open(HOME / 'lock', 'w')
    fcntl.flock(self._lock, fcntl.LOCK_EX)
    self.data = json.loads((HOME / 'state.json').read_text())
    return self.data

  def __exit__(self, *error):
    new = HOME / 'state.new'
    new.write_text(json.dumps(self.data, indent=1))
    new.replace(HOME / 'state.json')
    self._lock.close()


def look(states):
  """Returns the state that is shown now, and goes on to the next."""
  return states.pop(0) if len(states) > 1 else states[0]


def current(data, kind, name):
  states = data[kind].get(name, [None])
  state = look(states)
  if state is None:
    data[kind].pop(name, None)
    folder = {'nodes': 'nodes', 'requests': 'queuedResources'}[kind]
    fail(f"NOT_FOUND: Resource 'projects/p/locations/z/{folder}/{name}'"
         ' was not found')
  return state


def worker_homes(data):
  return [HOME / 'workers' / str(i) for i in range(data['workers'])]


def kill_workers(data):
  """Ends what runs on the workers, and wipes their disks."""
  import shutil
  import signal
  import time

  if not (HOME / 'workers').exists():
    return
  homes = {f'HOME={home}'.encode() for home in worker_homes(data)}
  for process in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      environ = (process / 'environ').read_bytes().split(b'\0')
      if homes & set(environ):
        os.kill(int(process.name), signal.SIGKILL)
    except (OSError, ProcessLookupError):
      continue
  time.sleep(0.2)
  shutil.rmtree(HOME / 'workers', ignore_errors=True)


def new_node(data, name):
  data['made'] = data.get('made', 0) + 1
  data['nodes'][name] = list(data['on_create'])
  for home in worker_homes(data):
    home.mkdir(parents=True, exist_ok=True)


def nodes(data, verb, name, flags):
  if verb == 'create':
    if data['nodes'].get(name, [None])[0] is not None:
      violation(f'create of a node that exists: {name}')
      fail(f"ALREADY_EXISTS: Resource '{name}' already exists")
    new_node(data, name)
    data['types'][name] = next(
        f.partition('=')[2] for f in flags if f.startswith('--accelerator-type')
    )
  elif verb == 'delete':
    current(data, 'nodes', name)
    kill_workers(data)
    data['nodes'][name] = list(data['on_delete'])
  elif verb == 'start':
    data['nodes'][name] = ['STARTING', 'READY']
  elif verb == 'describe':
    state = current(data, 'nodes', name)
    made = data.get('made', 0)
    request = f'projects/p/{name}' if name in data['requests'] else ''
    created = data['created'] or f'2099-01-01T00:00:{made:02d}.5Z'
    kind = data['types'].get(name, '')
    print(f'{state}\tHEALTHY\t{created}\t{request}\t{kind}')


def requests(data, verb, name, flags):
  if verb == 'create':
    if data['requests'].get(name, [None])[0] is not None:
      violation(f'create of a request that exists: {name}')
      fail(f"ALREADY_EXISTS: Resource '{name}' already exists")
    data['requests'][name] = list(data['on_request'])
  elif verb == 'delete':
    state = current(data, 'requests', name)
    if state == 'ACTIVE' and '--force' not in flags:
      fail('FAILED_PRECONDITION: nodes exist')
    data['requests'].pop(name)
    data['nodes'].pop(name, None)
    kill_workers(data)
  elif verb == 'describe':
    state = current(data, 'requests', name)
    if state == 'ACTIVE' and name not in data['nodes']:
      new_node(data, name)
    print(state)


def usable(data, name):
  state = current(data, 'nodes', name)
  if state in ('PREEMPTED', 'TERMINATED'):
    fail(f'This TPU has terminal state "{state}", so it cannot be used anymore')
  if state in UNUSABLE:
    fail(f'This TPU has state "{state}", so it cannot be currently connected')


def chosen(data, flags):
  worker = next(f.partition('=')[2] for f in flags if f.startswith('--worker='))
  homes = worker_homes(data)
  return list(enumerate(homes)) if worker == 'all' else [
      (int(worker), homes[int(worker)])
  ]


def ssh(data, flags):
  import subprocess  # 30 ms that most calls need not pay

  command = next(
      f.partition('=')[2] for f in flags if f.startswith('--command=')
  )
  running = []
  for index, home in chosen(data, flags):
    env = {'PATH': os.environ['STUB_PATH'], 'HOME': str(home),
           **data['worker_env'][index]}
    # sshd hands what it gets to the login shell, in the home folder.
    running.append(subprocess.Popen(
        ['bash', '-c', command], env=env, cwd=home, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ))
  codes = []
  for process in running:
    out, err = process.communicate()
    sys.stdout.write(out)
    sys.stderr.write(err)
    # A connection that breaks is an error of ssh itself.
    codes.append(255 if process.returncode < 0 else process.returncode)
  return next((code for code in codes if code), 0)


def call(argv):
  if '' in argv:
    violation(f'an empty argument: {argv}')
  if argv[:2] != ['compute', 'tpus']:
    violation(f'not a call of Cloud TPU: {argv}')
  kind, verb, *rest = argv[2:]
  flags = [a for a in rest if a.startswith('--')]
  names = [a for a in rest if not a.startswith('--')]
  failure = None
  with State() as data:
    with open(HOME / 'calls.jsonl', 'a') as f:
      f.write(json.dumps(argv) + '\n')
    for number, planned in enumerate(data['failures']):
      if planned['when'] in f'{kind} {verb}':
        failure = data['failures'].pop(number)
        break
    if failure and not failure.get('effect'):
      fail(failure['stderr'], failure.get('code', 1))
    if kind == 'queued-resources':
      requests(data, verb, names[0], flags)
    elif verb == 'scp':
      usable(data, names[1].partition(':')[0])
    elif verb == 'ssh':
      usable(data, names[0])
    else:
      nodes(data, verb, names[0], flags)
  if failure:
    fail(failure['stderr'], failure.get('code', 1))
  if verb == 'scp':
    import shutil

    for _, home in chosen(data, flags):
      shutil.copy(names[0], home / names[1].partition(':')[2])
  if verb == 'ssh':
    sys.exit(ssh(data, flags))


def preempt(name):
  with State() as data:
    kill_workers(data)
    data['nodes'][name] = ['PREEMPTED']
    if name in data['requests']:
      data['requests'][name] = ['SUSPENDED']


if __name__ == '__main__':
  if sys.argv[1] == '--preempt':
    preempt(sys.argv[2])
  else:
    call(sys.argv[1:])
