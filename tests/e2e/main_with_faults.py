"""Runs bigtransfer.main and strikes it at a step, from inside the loop.

python tests/e2e/main_with_faults.py FAULT@STEP,... IDS_FILE ARGUMENTS...

FAULT is kill (SIGKILL), term (SIGTERM) or none. Every batch that is read is
appended to IDS_FILE as {"step", "ids"}.
"""

import json
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from bigtransfer import main, metrics  # noqa: E402
from input_pipeline import batches  # noqa: E402

SIGNALS = {'kill': signal.SIGKILL, 'term': signal.SIGTERM}


def strike(fault, at):
  add = metrics.Recorder.add

  def add_and_strike(self, step, *values):
    add(self, step, *values)
    if step == at:
      os.kill(os.getpid(), SIGNALS[fault])

  metrics.Recorder.add = add_and_strike


def record_ids(path):
  read = batches.TrainBatches.__next__

  def read_and_record(self):
    step = self._step
    batch = read(self)
    with open(path, 'a') as f:
      ids = batch['id'].tolist()
      f.write(json.dumps({'step': step, 'ids': ids}) + '\n')
    return batch

  batches.TrainBatches.__next__ = read_and_record


if __name__ == '__main__':
  fault, _, step = sys.argv[1].partition('@')
  if fault != 'none':
    strike(fault, int(step))
  record_ids(sys.argv[2])
  sys.exit(main.main(sys.argv[3:]))
