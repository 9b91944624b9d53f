"""Calls gcloud: what it says when it fails, what is tried again, dry runs.

Facts about the client are from Google Cloud SDK 528: `tpu-vm ssh` and `scp`
reach all workers at once, try to connect ten times, and end with the code of
the remote command, or 255 where ssh itself failed.
"""

import enum
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

INSTALL = (
    'gcloud is not on PATH. Install the Google Cloud CLI'
    ' (https://cloud.google.com/sdk/docs/install), then: gcloud auth login'
)
# A back-off doubles from --poll_seconds up to this.
LONGEST_DELAY = 600.0


class Kind(enum.Enum):
  """Why gcloud failed."""

  NOT_FOUND = 'not found'
  EXISTS = 'exists already'
  STOCKOUT = 'no capacity'
  QUOTA = 'quota'
  GONE = 'not usable any more'
  TRANSIENT = 'network'
  OTHER = 'error'


# The first that matches holds: RESOURCE_EXHAUSTED stands for a zone without
# capacity, for a quota and for too many requests a minute alike.
_KINDS = (
    (Kind.STOCKOUT, r'no more capacity|Insufficient \w*\s?capacity'
     r'|ZONE_RESOURCE_POOL_EXHAUSTED|stockout'),
    (Kind.TRANSIENT, r'per minute|rateLimitExceeded'),
    (Kind.QUOTA, r'[Qq]uota'),
    (Kind.EXISTS, r'ALREADY_EXISTS|already exists'),
    # Of the VM: a wrong project or zone is not found either, and nothing is to
    # be made for that.
    (Kind.NOT_FOUND, r"NOT_FOUND(?!.*(Project '|Location|unauthorized))"),
    (Kind.GONE, r'has (terminal )?state "'),
    (Kind.TRANSIENT, r'UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|INTERNAL\b'
     r'|RESOURCE_EXHAUSTED|HTTPError 5\d\d|status code: 5\d\d'
     r'|[Cc]onnection (reset|refused|aborted|closed|timed out|error)'
     r'|Connection to \S+ closed|[Tt]imed out|[Tt]imeout'
     r'|[Nn]ame or service not known|Temporary failure in name resolution'
     r'|resolve host|Unable to find the server|unreachable|Max retries'
     r'|ConnectionError|TransportError|Remote end closed|Broken pipe'
     r'|SSLError|SSL: |ssh_exchange|kex_exchange'
     r'|exited with return code \[255\]'),
)
_HINTS = (
    (r'SSH Key is not present in the SSH agent|ssh-add',
     'with several workers gcloud needs the key in an agent:'
     ' eval "$(ssh-agent -s)"; ssh-add ~/.ssh/google_compute_engine'),
    (r'active account|gcloud auth login|Reauthentication|UNAUTHENTICATED',
     'log in with: gcloud auth login'),
    (r'has not been used in project|SERVICE_DISABLED|it is disabled',
     'switch the service on with: gcloud services enable tpu.googleapis.com'),
    (r'PERMISSION_DENIED',
     'the account needs the roles roles/tpu.admin and'
     ' roles/iam.serviceAccountUser in the project'),
    (r'[Qq]uota',
     'ask for more at https://console.cloud.google.com/iam-admin/quotas, or'
     ' take another --zone or --accelerator_type'),
    (r'no more capacity',
     'take another --zone, --spot, or wait in the queue with --queued'),
)
SSH_FAILED = 255


def classify(stderr: str, code: int = 1) -> Kind:
  """Returns the kind of failure that gcloud's stderr and exit code tell.

  Its own failures have code 1, those of ssh 255, wrong use 2; any other code
  is that of a command on a worker, whose stderr may hold any word.
  """
  if code not in (1, SSH_FAILED):
    return Kind.OTHER
  for kind, pattern in _KINDS:
    if re.search(pattern, stderr):
      return kind
  return Kind.TRANSIENT if code == SSH_FAILED else Kind.OTHER


class MissingError(RuntimeError):
  """gcloud is not installed."""


class GaveUp(RuntimeError):
  """The retries are used up."""


class GcloudError(RuntimeError):
  """A call of gcloud failed.

  Attributes:
    kind: why.
    code: exit code.
    stderr: all that it wrote there.
  """

  def __init__(self, argv: Sequence[str], code: int, stderr: str):
    self.kind = classify(stderr, code)
    self.code, self.stderr = code, stderr.strip()
    lines = [self.stderr or '(it wrote nothing to stderr)']
    hints = [hint for pattern, hint in _HINTS if re.search(pattern, stderr)]
    lines += [f'hint: {hint}' for hint in hints]
    lines.append(f'failed with exit code {code}: {shlex.join(argv)}')
    super().__init__('\n'.join(lines))

  @property
  def brief(self) -> str:
    """One line for a log of retries."""
    last = self.stderr.splitlines()[-1] if self.stderr else f'code {self.code}'
    return f'{self.kind.value}: {last}'


class Retries:
  """A number of retries, each after a longer wait."""

  def __init__(
      self,
      most: int,
      first_delay: float,
      say: Callable[[str], None],
      sleep: Callable[[float], None] = time.sleep,
  ):
    self.used, self._in_a_row = 0, 0
    self._most, self._first_delay = most, first_delay
    self._say, self._sleep = say, sleep

  def spend(self, why: str):
    """Waits before another try.

    Raises:
      GaveUp: there is none left.
    """
    if self.used >= self._most:
      raise GaveUp(
          f'gave up after {self._most} retries (--max_retries); the last'
          f' failure: {why}'
      )
    # 2**20 polls are above any limit, and the power stays finite.
    delay = self._first_delay * 2 ** min(self._in_a_row, 20)
    delay = min(delay, max(LONGEST_DELAY, self._first_delay))
    self.used += 1
    self._in_a_row += 1
    self._say(f'{why}; retry {self.used} of {self._most} in {delay:.3g} s')
    self._sleep(delay)

  def relax(self):
    """Starts the next wait from the shortest, as things went well."""
    self._in_a_row = 0

  def fresh(self) -> 'Retries':
    """Returns as many retries, for something of its own."""
    return Retries(self._most, self._first_delay, self._say, self._sleep)


class Gcloud:
  """Runs gcloud.

  A dry run prints each command, ready to paste into a shell, runs none, and
  answers what `answer` says, so that the same code goes all its way.
  """

  def __init__(
      self,
      retries: Retries,
      *,
      dry_run: bool = False,
      answer: Callable[[Sequence[str]], str] = lambda argv: '',
  ):
    self.retries, self.dry_run = retries, dry_run
    self._answer = answer
    if not dry_run and shutil.which('gcloud') is None:
      raise MissingError(INSTALL)

  def call(self, *argv: str, timeout: float = 900.0) -> str:
    """Runs `gcloud *argv` once and returns its stdout.

    Raises:
      GcloudError: it failed or ran longer than `timeout` seconds.
    """
    command = self._command(argv)
    if self.dry_run:
      print(shlex.join(command))
      return self._answer(argv)
    try:
      done = subprocess.run(
          command,
          stdin=subprocess.DEVNULL,
          capture_output=True,
          text=True,
          errors='replace',
          timeout=timeout,
      )
    except subprocess.TimeoutExpired:
      raise GcloudError(
          command, SSH_FAILED, f'timed out after {timeout:g} s'
      ) from None
    if done.returncode:
      raise GcloudError(command, done.returncode, done.stderr)
    return done.stdout

  def call_again(self, *argv: str, timeout: float = 900.0) -> str:
    """As `call`, for what may be repeated: tries again on network failures.

    These do not use up the retries of the whole command: over the days that a
    job takes there may be many, and what counts is how many in a row.
    """
    retries = self.retries.fresh()
    while True:
      try:
        return self.call(*argv, timeout=timeout)
      except GcloudError as e:
        if e.kind is not Kind.TRANSIENT:
          raise
        retries.spend(e.brief)

  def show(self, *argv: str) -> int:
    """Runs `gcloud *argv` with its output on ours and returns its code."""
    command = self._command(argv)
    if self.dry_run:
      print(shlex.join(command))
      return 0
    sys.stdout.flush()
    return subprocess.run(command, stdin=subprocess.DEVNULL).returncode

  def _command(self, argv):
    if '' in argv:
      raise ValueError(f'an empty argument for gcloud: {list(argv)}')
    return ['gcloud', *argv]
