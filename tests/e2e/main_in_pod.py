"""Runs bigtransfer.main as one of several processes, and strikes in one.

python -m launch.local_pod --module tests.e2e.main_in_pod ... -- FAULT IDS ARGS

FAULT is none or FAULT@STEP@PROCESS; the ids of process 1 go to the file IDS.1.
"""

import sys

from bigtransfer import main
from tests.e2e import main_with_faults

if __name__ == '__main__':
  fault, ids, *arguments = sys.argv[1:]
  process = arguments[-1].rpartition('process_id=')[2]
  kind, _, where = fault.partition('@')
  step, _, struck = where.partition('@')
  if kind != 'none' and struck == process:
    main_with_faults.strike(kind, int(step))
  main_with_faults.record_ids(f'{ids}.{process}')
  sys.exit(main.main(arguments))
