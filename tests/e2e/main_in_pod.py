"""Runs bigtransfer.main as one of several processes, and strikes in one.

python -m launch.local_pod --module tests.e2e.main_in_pod ... -- FAULT IDS ARGS

FAULT is none or KIND@STEP@PROCESS; the ids of process 1 go to the file IDS.1.
KIND is that of main_with_faults.py, a SIGTERM while the process does what can
take minutes: compile, evaluate, save (there STEP is when no other can come
first); or it never goes on after a step: freeze (SIGSTOP), hang.
"""

import concurrent.futures
import os
import signal
import sys
import threading
import time

from bigtransfer import checkpoint, coordination, main, metrics, program
from input_pipeline import batches
from tests.e2e import main_with_faults

FOR_EVER = 600
# Of hang_seconds once steps are made; the start alone takes longer.
HANG_SECONDS = 3


def terminate():
  os.kill(os.getpid(), signal.SIGTERM)


def in_compilation():
  """The step never gets compiled, and all else waits for it."""
  wait = coordination.Group.await_all

  def compile_step(phase):
    del phase
    return concurrent.futures.ThreadPoolExecutor(1).submit(time.sleep, FOR_EVER)

  def strike_and_wait(*args):
    threading.Timer(1, terminate).start()
    return wait(*args)

  program.compile_step = compile_step
  coordination.Group.await_all = strike_and_wait


def in_evaluation():
  """In the fourth batch; the others would take long."""
  read = batches.EvalBatches.__iter__

  def read_slowly(self):
    for i, batch in enumerate(read(self)):
      if i == 3:
        terminate()
      elif i > 3:
        time.sleep(0.3)
      yield batch

  batches.EvalBatches.__iter__ = read_slowly


def in_save():
  """While the first one is written, behind steps that take long enough."""
  manager, read = checkpoint.CheckpointManager, batches.TrainBatches.__next__
  write = manager._write

  def write_slowly(self, *args):
    manager._write = write
    terminate()
    time.sleep(2)
    write(self, *args)

  def read_slowly(self):
    if manager._write is write:
      time.sleep(0.6)
    return read(self)

  manager._write = write_slowly
  batches.TrainBatches.__next__ = read_slowly


def never_to_go_on(kind, at):
  add = metrics.Recorder.add

  def add_and_stand(self, step, *values):
    add(self, step, *values)
    if step == at and kind == 'freeze':
      os.kill(os.getpid(), signal.SIGSTOP)
    if step == at:
      time.sleep(FOR_EVER)

  metrics.Recorder.add = add_and_stand


def soon_hung():
  check = coordination.Group.check

  def check_and_hurry(self):
    if self._calls == 3:
      self._heartbeat.hang_seconds = HANG_SECONDS
    return check(self)

  coordination.Group.check = check_and_hurry


def strike(kind, step):
  sudden = {
      'compile': in_compilation,
      'evaluate': in_evaluation,
      'save': in_save,
  }
  if kind in sudden:
    sudden[kind]()
  elif kind in ('freeze', 'hang'):
    never_to_go_on(kind, step)
  else:
    main_with_faults.strike(kind, step)


if __name__ == '__main__':
  fault, ids, *arguments = sys.argv[1:]
  process = arguments[-1].rpartition('process_id=')[2]
  kind, _, where = fault.partition('@')
  step, _, struck = where.partition('@')
  if kind == 'hang':
    soon_hung()
  main_with_faults.record_ids(f'{ids}.{process}')
  if kind != 'none' and struck == process:
    strike(kind, int(step))
  sys.exit(main.main(arguments))
