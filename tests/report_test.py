"""Curves are read from what a run leaves, also a killed one, and all shown."""

import json
import subprocess
import sys

import numpy as np
import pytest

from bigtransfer import report


def make_workdir(path, *, steps=4, phases=('train',), evals=True, timing=True):
  """Writes a run whose loss at step k is 1/k, and 2/k in evaluation."""
  path.mkdir()
  lines = []
  for step in range(1, steps + 1):
    record = {'step': step, 'phase': phases[(step - 1) * len(phases) // steps]}
    values = {'loss': 1 / step, 'accuracy': 0.5, 'lr': 0.1, 'grad_norm': 1.0}
    lines.append({**record, 'kind': 'train', 'values': values})
    if evals and step % 2 == 0:
      values = {'loss': 2 / step, 'accuracy': 0.4, 'num_examples': 2000}
      lines.append({**record, 'kind': 'eval', 'values': values})
  write_lines(path / 'metrics.jsonl', lines)
  if timing:
    write_lines(
        path / 'timing.jsonl', [{'step': 2, 'examples_per_second': 900.0}]
    )
  return str(path)


def write_lines(path, records):
  path.write_text(''.join(json.dumps(record) + '\n' for record in records))


def curves(axes):
  """Returns the drawn lines as lists of (step, value), legend ones left out."""
  return [line.get_xydata().tolist() for line in axes.get_lines()]


def test_all_panels_of_a_run(tmp_path):
  run = report.load(make_workdir(tmp_path / 'run'))
  loss, accuracy, rate, speed = report.picture([run]).axes
  assert loss.get_title() == 'loss'
  assert curves(loss) == [
      [[1, 1], [2, 1 / 2], [3, 1 / 3], [4, 1 / 4]],
      [[2, 1], [4, 1 / 2]],
  ]
  assert accuracy.get_title() == 'accuracy'
  assert [[x, y] for x, y in curves(accuracy)[1]] == [[2, 0.4], [4, 0.4]]
  assert rate.get_title() == 'learning rate'
  assert curves(rate) == [[[k, 0.1] for k in (1, 2, 3, 4)]]
  assert speed.get_title() == 'examples/s'
  assert curves(speed) == [[[2, 900]]]


def test_a_panel_without_data_is_left_out(tmp_path):
  run = report.load(make_workdir(tmp_path / 'run', evals=False, timing=False))
  picture = report.picture([run])
  titles = [axes.get_title() for axes in picture.axes]
  assert titles == ['loss', 'accuracy', 'learning rate']
  labels = [text.get_text() for text in picture.legends[0].get_texts()]
  assert labels == ['train']


def test_phases_are_marked_where_each_begins(tmp_path):
  run = report.load(make_workdir(tmp_path / 'run', phases=('short', 'long')))
  assert run.phases == [(0, 'short'), (2, 'long')]
  axes = report.picture([run]).axes[0]
  assert [text.get_text() for text in axes.texts] == ['short', 'long']
  assert [line[0][0] for line in curves(axes)[2:]] == [0, 2]


def test_one_phase_is_not_marked(tmp_path):
  run = report.load(make_workdir(tmp_path / 'run'))
  assert not report.picture([run]).axes[0].texts


def test_several_runs_are_overlaid_under_their_names(tmp_path):
  runs = [
      report.load(make_workdir(tmp_path / name, steps=steps))
      for name, steps in (('small', 2), ('large', 4))
  ]
  picture = report.picture(runs)
  assert [len(curve) for curve in curves(picture.axes[0])] == [2, 1, 4, 2]
  labels = [text.get_text() for text in picture.legends[0].get_texts()]
  assert labels == ['small', 'large', 'train', 'eval']


def test_runs_of_one_name_are_told_apart_by_path(tmp_path, monkeypatch):
  paths = []
  for parent in ('a', 'b'):
    (tmp_path / parent).mkdir()
    paths.append(make_workdir(tmp_path / parent / 'run'))
  seen = []
  monkeypatch.setattr(
      report, 'picture', lambda runs: seen.extend(runs) or _NoPicture()
  )
  report.draw(paths, str(tmp_path))
  assert [run.name for run in seen] == paths


class _NoPicture:

  def savefig(self, file, format):
    pass


def test_a_long_curve_is_drawn_as_means_over_itself(tmp_path):
  run = report.load(make_workdir(tmp_path / 'run', steps=1000))
  raw, means, _ = report.picture([run]).axes[0].get_lines()
  assert len(raw.get_xdata()) == 1000
  np.testing.assert_allclose(means.get_xdata()[:2], [3, 8])
  expected = np.mean([1 / k for k in range(6, 11)])
  np.testing.assert_allclose(means.get_ydata()[1], expected)


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
  workdir = make_workdir(tmp_path / 'run')
  path = tmp_path / 'run' / 'metrics.jsonl'
  path.write_bytes(path.read_bytes()[:-5])
  run = report.load(workdir)
  assert run.series['metrics', 'eval', 'loss'][0].tolist() == [2]


def test_any_other_broken_line_is_named(tmp_path):
  workdir = make_workdir(tmp_path / 'run')
  path = tmp_path / 'run' / 'metrics.jsonl'
  path.write_text(path.read_text().replace('"lr": 0.1', '"lr": ', 1))
  with pytest.raises(ValueError, match=r'metrics\.jsonl:1: not a line'):
    report.load(workdir)


def test_command_line_draws_a_picture(tmp_path, capsys):
  workdir = make_workdir(tmp_path / 'run')
  report.main([workdir])
  path = tmp_path / 'run' / 'plots' / 'curves.png'
  assert capsys.readouterr().out == f'{path}\n'
  assert path.read_bytes().startswith(b'\x89PNG')
  report.main([workdir, workdir, '--output', str(tmp_path / 'both')])
  assert (tmp_path / 'both' / 'curves.png').exists()


@pytest.mark.parametrize(
    ('prepare', 'message'),
    [
        (lambda path: None, 'there is no such workdir'),
        (lambda path: path.mkdir(), 'metrics.jsonl is missing or holds no'),
        (
            lambda path: (path.mkdir(), (path / 'metrics.jsonl').touch()),
            'metrics.jsonl is missing or holds no',
        ),
    ],
)
def test_wrong_use_exits_2_and_says_why(tmp_path, capsys, prepare, message):
  path = tmp_path / 'run'
  prepare(path)
  with pytest.raises(SystemExit) as error:
    report.main([str(path)])
  assert error.value.code == 2
  last = capsys.readouterr().err.splitlines()[-1]
  assert f'{path}: {message}' in last
  assert not (path / 'plots').exists()


def test_no_figure_of_the_caller_is_touched(tmp_path):
  workdir = make_workdir(tmp_path / 'run')
  code = (
      'import sys; from bigtransfer import report;'
      f'report.draw([{workdir!r}], {str(tmp_path)!r});'
      'assert "matplotlib.pyplot" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
