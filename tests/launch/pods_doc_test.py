"""The commands of docs/pods.md are accepted, and print what it says."""

import pathlib
import re
import shlex

import pytest

from launch import accelerators, tpu_vm

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / 'docs' / 'pods.md').read_text(encoding='utf-8')
BLOCKS = re.findall(r'^```sh\n(.*?)^```', TEXT, re.MULTILINE | re.DOTALL)
LINES = '\n'.join(BLOCKS).replace('\\\n', '').splitlines()
COMMANDS = [
    shlex.split(line)[3:] for line in LINES
    if line.startswith('python -m launch.tpu_vm')
]


def dry_run(argv, capsys):
  at = argv.index('--') if '--' in argv else len(argv)
  assert tpu_vm.main([*argv[:at], '--dry_run', *argv[at:]]) == 0
  return capsys.readouterr().out


def test_all_verbs_are_shown():
  assert {argv[0] for argv in COMMANDS} == set(tpu_vm.tpu_vm_args.VERBS)


@pytest.mark.parametrize('argv', COMMANDS, ids=lambda argv: argv[0])
def test_commands_are_accepted(cloud, capsys, argv):
  lines = dry_run(argv, capsys).splitlines()
  assert lines
  for line in lines:
    words = shlex.split(line)
    assert words[:3] == ['gcloud', 'compute', 'tpus']
    assert '--zone=us-central2-b' in words
    assert '--project=my-project' in words
    assert '' not in words


def test_the_printed_commands_are_those_of_up(cloud, capsys):
  (argv,) = (argv for argv in COMMANDS if argv[0] == 'up')
  assert f'```\n{dry_run(argv, capsys)}```' in TEXT


def test_what_is_said_on_images_and_files_holds():
  for generation, image in accelerators.RUNTIMES.items():
    assert generation in TEXT
    assert image in TEXT
  for path in re.findall(r'\b(?:launch|configs)/[\w./-]+\w', TEXT):
    assert (ROOT / path).exists(), path
