"""Runs commands one after another in one process, which starts once.

python tests/e2e/commands_in_turn.py COMMANDS.json

The file holds [[module, argument, ...], ...] of modules of bigtransfer. Prints
after each, as a line of its own, what it came to and whether TensorFlow has
been imported by then: {"module", "code", "tensorflow"}.
"""

import importlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

if __name__ == '__main__':
  for name, *arguments in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    module = importlib.import_module(f'bigtransfer.{name}')
    try:
      code = module.main(arguments) or 0
    except SystemExit as e:
      code = e.code
    print(json.dumps({
        'module': name, 'code': code, 'tensorflow': 'tensorflow' in sys.modules
    }), flush=True)
