"""A TPU VM of one name: its states, and the way from any of them to READY.

States are those of Cloud TPU's API v2 (nodes and queuedResources).
"""

import dataclasses
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from launch.gcloud import Gcloud, GcloudError, Kind

READY = 'READY'
NODE_WAIT = {
    'CREATING', 'STARTING', 'RESTARTING', 'REIMAGING', 'REPAIRING', 'STOPPING',
    'DELETING', 'HIDING', 'HIDDEN', 'UNHIDING', 'UNKNOWN', 'STATE_UNSPECIFIED',
}
NODE_DEAD = {'PREEMPTED', 'TERMINATED', 'FAILED'}
REQUEST_WAIT = {
    'CREATING', 'ACCEPTED', 'WAITING_FOR_RESOURCES', 'PROVISIONING',
    'STATE_UNSPECIFIED',
}
REQUEST_LEAVING = {'SUSPENDING', 'DELETING'}
REQUEST_DEAD = {'SUSPENDED', 'FAILED'}

_FIELDS = 'value(state,health,createTime,queuedResource,acceleratorType)'
# Also where a wrapper of gcloud prints all fields, in YAML or JSON.
_STATE = re.compile(
    r'^\W*state\W+([A-Z_]{4,})|\A\s*([A-Z_]{4,})', re.MULTILINE
)
# A large slice takes many minutes to be made or deleted.
_LONG = 3600.0


class StateError(RuntimeError):
  """The VM is in a state from which there is no known way to READY."""


@dataclasses.dataclass(frozen=True)
class Spec:
  """What to ask Cloud TPU for; None adds nothing to a command."""

  name: str
  zone: str
  project: str | None = None
  accelerator_type: str | None = None
  runtime_version: str | None = None
  spot: bool = False
  reserved: bool = False
  queued: bool = False
  network: str | None = None
  subnetwork: str | None = None
  service_account: str | None = None
  internal_ip: bool = False

  def where(self) -> list[str]:
    """Flags that every command takes."""
    project = [f'--project={self.project}'] if self.project else []
    return [f'--zone={self.zone}', *project, '--quiet']

  def create_argv(self) -> list[str]:
    """The command that makes the VM, or asks the queue for it."""
    if self.queued:
      verb = ['queued-resources', 'create', self.name, f'--node-id={self.name}']
      version = '--runtime-version'
    else:
      verb = ['tpu-vm', 'create', self.name]
      version = '--version'
    options = [
        ('--accelerator-type', self.accelerator_type),
        (version, self.runtime_version),
        ('--network', self.network),
        ('--subnetwork', self.subnetwork),
        ('--service-account', self.service_account),
    ]
    switches = [
        ('--spot', self.spot),
        ('--reserved', self.reserved),
        ('--internal-ips', self.internal_ip),
    ]
    return [
        *('compute', 'tpus', *verb, *self.where()),
        *(f'{flag}={value}' for flag, value in options if value is not None),
        *(flag for flag, on in switches if on),
    ]

  def argv(self, kind: str, verb: str, *rest: str) -> list[str]:
    """`compute tpus KIND VERB NAME ...`."""
    return ['compute', 'tpus', kind, verb, self.name, *self.where(), *rest]


class Node(NamedTuple):
  """What Cloud TPU says; a state is None where there is no such resource."""

  state: str | None
  request: str | None = None
  health: str = ''
  created: str = ''
  accelerator_type: str = ''

  def __str__(self):
    text = self.state or 'NOT FOUND'
    if self.health:
      text += f', {self.health}'
    return text + (f', queued resource {self.request}' if self.request else '')


def _state(text: str, argv) -> str:
  match = _STATE.search(text)
  if match is None:
    raise StateError(f'no state in the answer {text!r} of gcloud {argv}')
  return match[1] or match[2]


def look(cloud: Gcloud, spec: Spec) -> Node:
  """Asks for the states; the queue's too if the VM comes from there."""

  def ask(kind, fields):
    argv = spec.argv(kind, 'describe', f'--format={fields}')
    try:
      return cloud.call_again(*argv, timeout=120.0)
    except GcloudError as e:
      if e.kind is not Kind.NOT_FOUND:
        raise
      return None

  def ask_queue():
    text = ask('queued-resources', 'value(state.state)')
    return None if text is None else _state(text, 'queued-resources describe')

  # The queue first: its node is there before the request is ACTIVE, and a node
  # looked for too early would seem to be missing.
  request = ask_queue() if spec.queued else None
  text = ask('tpu-vm', _FIELDS)
  if text is None:
    return Node(None, request)
  state = _state(text, 'tpu-vm describe')
  fields = text.rstrip('\n').split('\t') + [''] * 4
  _, health, created, queued, accelerator_type = fields[:5]
  if queued and not spec.queued:
    request = ask_queue()
  return Node(state, request, health, created, accelerator_type)


def next_step(node: Node) -> str:
  """Returns what brings the VM nearer to READY.

  One of 'ready', 'wait', 'create', 'start', 'delete node', 'delete request'.
  Nothing is created while anything of that name exists.

  Raises:
    StateError: a state that this program does not know.
  """
  state, request = node.state, node.request
  known = NODE_WAIT | NODE_DEAD | {None, READY, 'STOPPED'}
  asked = REQUEST_WAIT | REQUEST_LEAVING | REQUEST_DEAD | {None, 'ACTIVE'}
  if state not in known or request not in asked:
    raise StateError(f'the VM is in a state unknown here: {node}')
  if request in REQUEST_LEAVING:
    return 'wait'
  if request in REQUEST_DEAD:
    return 'delete request'
  if state == READY:
    return 'ready'
  if state in NODE_WAIT or (state is None and request in REQUEST_WAIT):
    return 'wait'
  if state == 'STOPPED' and request is None:
    return 'start'
  if request is not None:
    return 'delete request'
  return 'create' if state is None else 'delete node'


def command(spec: Spec, step: str) -> list[str]:
  """Returns the gcloud arguments that take the step."""
  if step == 'create':
    return spec.create_argv()
  if step == 'start':
    return spec.argv('tpu-vm', 'start')
  if step == 'delete node':
    return spec.argv('tpu-vm', 'delete')
  return spec.argv('queued-resources', 'delete', '--force')


def up(
    cloud: Gcloud,
    spec: Spec,
    *,
    poll_seconds: float,
    max_wait_hours: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Node:
  """Brings the VM to READY from any state.

  After each command, failed or not, it looks again before it decides, so that
  an answer lost on the way leads to no second VM. The first of each command
  is free, each further one is a retry.

  Raises:
    GcloudError, GaveUp, StateError: it cannot be done.
  """
  taken, said, until = set(), None, clock() + 3600 * max_wait_hours
  while True:
    node = look(cloud, spec)
    _check_type(spec, node)
    step = next_step(node)
    if (node, step) != said:
      say(f'{spec.name}: {node}; {step}')
      said = node, step
    if step == 'ready':
      return node
    if clock() > until:
      raise StateError(
          f'{spec.name} is not READY after {max_wait_hours:g} h'
          f' (--max_wait_hours): {node}'
      )
    if step == 'wait':
      sleep(poll_seconds)
      continue
    if step in taken:
      cloud.retries.spend(f'{spec.name} is {node} again')
    taken.add(step)
    take(cloud, spec, step)


def _check_type(spec: Spec, node: Node):
  found = node.accelerator_type.rpartition('/')[2]
  if found and found != spec.accelerator_type:
    raise StateError(
        f'{spec.name} is there as {found}, not {spec.accelerator_type}'
        ' (--accelerator_type): delete it first (down) or take another --name'
    )


def take(cloud: Gcloud, spec: Spec, step: str):
  """Takes a step; what only means that the state has moved on is no error."""
  try:
    cloud.call(*command(spec, step), timeout=_LONG)
  except GcloudError as e:
    if e.kind in (Kind.STOCKOUT, Kind.TRANSIENT):
      cloud.retries.spend(e.brief)
    elif e.kind not in (Kind.EXISTS, Kind.NOT_FOUND, Kind.GONE):
      raise


def down(
    cloud: Gcloud,
    spec: Spec,
    *,
    poll_seconds: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
):
  """Deletes the VM and its queued resource; nothing there is well, too."""
  taken = set()
  while True:
    node = look(cloud, spec)
    if node.state is None and node.request is None:
      say(f'{spec.name}: NOT FOUND; nothing is left')
      return
    step = 'delete request' if node.request else 'delete node'
    leaving = node.request == 'DELETING' or (
        node.request is None and node.state == 'DELETING'
    )
    say(f'{spec.name}: {node}; {"wait" if leaving else step}')
    if leaving:
      sleep(poll_seconds)
      continue
    if step in taken:
      cloud.retries.spend(f'{spec.name} is still {node}')
    taken.add(step)
    take(cloud, spec, step)
