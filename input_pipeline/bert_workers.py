"""Runs the shards of bert_data in processes."""

import multiprocessing
import os
import threading
from concurrent import futures
from typing import Any

import tqdm

from input_pipeline import bert_options, bert_shards


def run(options: bert_options.Options, workers: int) -> list[dict[str, Any]]:
  """Makes the shards that are not finished; returns what each of them holds.

  `workers` is the number of processes, 0 for one a core; 1 is this one. Raises
  ValueError for text that cannot be used, futures.BrokenExecutor if a process
  was killed.
  """
  workers = workers or _cores()
  made = [bert_shards.finished(options, s) for s in range(options.shards)]
  todo = [shard for shard, m in enumerate(made) if m is None]
  total = sum(options.sizes) * options.dupe_factor
  total = total * len(todo) // options.shards
  with tqdm.tqdm(
      total=total, unit='B', unit_scale=True, desc='text', disable=None
  ) as bar:
    if workers == 1 or len(todo) < 2:
      for shard in todo:
        made[shard] = bert_shards.write(options, shard, bar.update)
    else:
      _run_parallel(options, min(workers, len(todo)), todo, made, bar)
  return made


def _run_parallel(options, workers, todo, made, bar):
  # Not fork: the caller may be a program with threads.
  context = multiprocessing.get_context('spawn')
  done = context.Value('q', 0)
  with futures.ProcessPoolExecutor(
      workers, context, _start, (done,)
  ) as pool:
    jobs = {pool.submit(_work, options, shard): shard for shard in todo}
    waiting = set(jobs)
    try:
      while waiting:
        ended, waiting = futures.wait(
            waiting, 0.2, futures.FIRST_COMPLETED
        )
        bar.update(done.value - bar.n)
        for job in ended:
          made[jobs[job]] = job.result()
    except BaseException:
      pool.shutdown(cancel_futures=True)
      raise


def _start(done):
  """Prepares a worker, which is to end with its parent, however that ends."""
  global _done
  _done = done
  parent = multiprocessing.parent_process()
  threading.Thread(
      target=lambda: (parent.join(), os._exit(1)), daemon=True
  ).start()


def _work(options, shard):
  return bert_shards.write(options, shard, _advance)


def _advance(size):
  with _done.get_lock():
    _done.value += size


def _cores():
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count()
