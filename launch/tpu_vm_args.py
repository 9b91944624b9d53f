"""The command line of tpu_vm.py: what it accepts, and what it adds."""

import argparse
import re
from collections.abc import Sequence

from launch import accelerators

VERBS = ('up', 'sync', 'run', 'logs', 'status', 'stop', 'doctor', 'supervise',
         'down')
WITH_ARGUMENTS = ('run', 'doctor', 'supervise')
_PATTERNS = {
    'name': (r'[a-z]([a-z0-9-]{0,61}[a-z0-9])?',
             'lower-case letters, digits and -, as bit-r50'),
    'zone': (r'[a-z]+-[a-z]+\d+-[a-z]', 'a zone, as us-central2-b'),
    'worker': (r'all|\d+([,-]\d+)*', 'all or numbers, as 0 or 1-3'),
}


def _parser(description: str) -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      'python -m launch.tpu_vm',
      description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
      usage='%(prog)s VERB --name NAME --zone ZONE [options] [-- ARGUMENTS]',
  )
  add = parser.add_argument
  add('verb', choices=VERBS, metavar='VERB', help=', '.join(VERBS))
  add('--name', required=True, help='of the VM and its queued resource')
  add('--zone', required=True)
  add('--project', help="default: gcloud's own")
  add('--dry_run', action='store_true', help='print the commands, run none')
  make = parser.add_argument_group('up, supervise').add_argument
  make('--accelerator_type', metavar='TYPE', help='v3-32, v5litepod-256, ...')
  make('--runtime_version', metavar='IMAGE', help='default by the type: '
       + ', '.join(f'{k} {v}' for k, v in accelerators.RUNTIMES.items()))
  make('--spot', action='store_true', help='cheaper, may be preempted')
  make('--reserved', action='store_true', help='from your reservation')
  make('--queued', action='store_true', help='wait in the queue for capacity'
       ' (queued resource); give it to `down` as well')
  make('--network')
  make('--subnetwork')
  make('--service_account', metavar='EMAIL', help='whose rights the VM has')
  make('--max_wait_hours', type=float, default=24.0, help='until READY'
       ' (default 24)')
  often = parser.add_argument_group('all').add_argument
  often('--internal_ip', action='store_true', help='no external addresses: the'
        ' VM gets none, ssh and scp use the internal ones')
  often('--max_retries', type=int, default=20, help='of making the VM and of'
        ' running the job, in all, and of reaching Google in a row; each after'
        ' a wait twice as long, up to 10 minutes (default 20)')
  often('--poll_seconds', type=float, default=30.0, help='between two looks,'
        ' and the first wait (default 30)')
  job = parser.add_argument_group('run, supervise, doctor').add_argument
  job('--env', action='append', default=[], metavar='NAME=VALUE',
      help='for the job; may be repeated')
  job('--setup', metavar='COMMAND', help='shell command before the job on each'
      ' worker, e.g. to mount a file system')
  job('--max_chip_hours', type=float, help='supervise: let the job save, delete'
      ' the VM and end when the VMs made have cost so much')
  job('--delete_when_done', action='store_true', help='supervise: delete the VM'
      ' at the end, whatever the end is')
  log = parser.add_argument_group('logs').add_argument
  log('--worker', default='0', help='all, 0, 1-3 (default 0)')
  log('--lines', type=int, default=100, help='default 100')
  log('--follow', action='store_true')
  return parser


def parse(
    description: str, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
  """Returns the options and what follows `--`; ends with 2 if they are wrong.

  The image is filled in by the type, and the job gets config.platform=tpu and
  config.distributed.initialize=true where it says nothing on them.
  """
  own, rest = list(argv), None
  if '--' in own:
    at = own.index('--')
    own, rest = own[:at], own[at + 1 :]
  parser = _parser(description)
  args = parser.parse_args(own)
  problem = _problem(args, rest)
  if problem:
    parser.error(problem)
  if args.accelerator_type and args.runtime_version is None:
    generation = accelerators.generation(args.accelerator_type)
    args.runtime_version = accelerators.RUNTIMES[generation]
  return args, _complete(args.verb, rest or [])


def _complete(verb, rest):
  if verb == 'doctor':
    given = any(arg.startswith('--platform') for arg in rest)
    return rest if given else ['--platform', 'tpu', *rest]
  if verb not in WITH_ARGUMENTS:
    return rest
  added = [
      ('--config.platform', 'tpu'),
      ('--config.distributed.initialize', 'true'),
  ]
  keys = {arg.partition('=')[0] for arg in rest}
  return rest + [f'{key}={value}' for key, value in added if key not in keys]


def _problem(args, rest) -> str | None:
  """Returns what is wrong with the options."""
  for name, value in vars(args).items():
    if value == '' or (name == 'env' and '' in value):
      return f'--{name} is empty; leave it out or give it a value'
  for name, (pattern, accepted) in _PATTERNS.items():
    value = getattr(args, name)
    if not re.fullmatch(pattern, value):
      return f'--{name}={value}: must be {accepted}'
  limits = {'max_retries': 0, 'poll_seconds': 0, 'max_wait_hours': 0,
            'max_chip_hours': 0, 'lines': 1}
  for name, least in limits.items():
    value = getattr(args, name)
    if value is not None and not value >= least:
      return f'--{name}={value}: must be at least {least}'
  for pair in args.env:
    if not re.fullmatch(r'[A-Za-z_]\w*=.*', pair, re.DOTALL):
      return f'--env {pair}: must be NAME=VALUE'
  if args.spot and args.reserved:
    return '--spot and --reserved exclude each other'
  return _vm_problem(args) or _arguments_problem(args.verb, rest)


def _vm_problem(args) -> str | None:
  if args.verb in ('up', 'supervise') and args.accelerator_type is None:
    return f'{args.verb} needs --accelerator_type'
  if args.accelerator_type is not None:
    try:
      accelerators.generation(args.accelerator_type)
    except ValueError as e:
      return str(e)
  return None


def _arguments_problem(verb, rest) -> str | None:
  if verb not in WITH_ARGUMENTS:
    return f'{verb} takes nothing after `--`: {rest}' if rest else None
  if rest is None and verb != 'doctor':
    return 'the arguments of bigtransfer.main are missing; they follow `--`'
  for number, arg in enumerate(rest or (), start=1):
    if not arg:
      return f'argument {number} after `--` is empty (a variable not set?)'
  if verb == 'doctor':
    return None
  workdir = None
  for arg, following in zip(rest, [*rest[1:], ''], strict=True):
    if arg.startswith('--workdir='):
      workdir = arg.partition('=')[2]
    elif arg == '--workdir':
      workdir = following
  if workdir is not None and not workdir.startswith(('/', 'gs://')):
    return (
        f'--workdir {workdir}: must be gs://BUCKET/FOLDER or a full path, on'
        ' storage that all workers share and that outlives the VM'
        ' (docs/pods.md)'
    )
  return None
