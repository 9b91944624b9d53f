"""What a run says of itself: its plan before, its results after."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bigtransfer import config as config_lib
from bigtransfer import goodput, model_flops
from bigtransfer.optim import schedules

# What the last lines of a run report of its last evaluation.
HEADLINES = (
    'accuracy',
    'mlm_accuracy',
    'unigram_accuracy',
    'nsp_accuracy',
    'f1',
    'exact_match',
    'matthews',
    'pearson',
    'spearman',
)


def plan(phases: Sequence[Any]) -> str:
  """Describes each phase: resolved config, length, size, learning rate."""
  lines = []
  for phase in phases:
    c = phase.config
    rate = schedules.make(c, c.total_steps)
    epochs = c.total_steps * c.batch_size / phase.data.num_examples
    lines += [
        config_lib.to_text(c),
        f'phase {phase.name}: {c.total_steps:,} steps of {c.batch_size:,}'
        f' examples = {epochs:.2f} epochs of {phase.data.num_examples:,}',
        *_size(c),
        'learning rate at step (of the update that follows it):',
    ]
    peak = max(c.schedule.warmup + c.schedule.warmup_start, 0)
    marks = {0, peak, c.total_steps // 2, c.total_steps - 1}
    for b in c.schedule.boundaries:
      marks |= {b, b + 1}
    lines += [f'  {k:>9,}  {float(rate(k)):.6g}' for k in sorted(marks)]
  return '\n'.join(lines)


def _size(c):
  """Tokens and floating point operations of a phase of pretraining."""
  if c.data.kind != 'pretraining':
    return []
  examples = c.total_steps * c.batch_size
  length, flops = c.data.seq_length, model_flops.train_flops(c)
  return [
      f'{examples:,} sequences of {length} = {examples * length:.4g} tokens;'
      f' {flops:.4g} FLOPs a sequence, {examples * flops:.4g} in all'
  ]


def summary(step: int, values: Mapping[str, float]) -> str:
  """Says in one line what an evaluation gave; counts are whole numbers."""
  parts = '  '.join(
      f'{name} {int(value) if value.is_integer() else format(value, ".4g")}'
      for name, value in values.items()
  )
  return f'evaluation at step {step:,}: {parts}'


def closing(
    result: Any, workdir: str, config: Any, plots: Sequence[str]
) -> str:
  """What a finished run reports, and what to do next."""
  # As it is typed from here, also where no environment is active.
  python = sys.executable.removeprefix(os.getcwd() + os.sep)
  split = config.data.eval_split
  if config.data.kind == 'images':
    then = f'{python} -m bigtransfer.predict --workdir {workdir}'
  elif config.data.kind == 'pretraining':
    path = config.data.path
    task = f'csv=FILE.csv,vocab={path}/vocab.txt' if path else 'speeches'
    sizes = ('layers', 'hidden', 'heads', 'ffn')
    same = ''.join(
        f' --config.model.{key}={config.model[key]}'
        for key in sizes if config.model[key]
    )
    then = (
        f'{python} -m bigtransfer.main --config configs/bert_finetune.py:'
        f'{task},size={config.model.variant},init_from={workdir}{same}'
        f' --workdir {workdir}-finetuned'
    )
  else:
    then = None
  return '\n'.join([
      f'done: {result.step:,} steps',
      *(
          f'{split} {name.replace("_", " ")}: {result.evaluation[name]:.4f}'
          for name in HEADLINES
          if name in result.evaluation
      ),
      f'checkpoint: {os.path.join(workdir, "checkpoints", str(result.step))}',
      *(f'plot: {path}' for path in plots),
      goodput.text(goodput.of_workdir(workdir)).splitlines()[0],
      'next, try',
      *([f'  {then}'] if then else []),
      f'  {python} -m bigtransfer.report {workdir}',
  ])
