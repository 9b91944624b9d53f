"""Norms of layers: in the metrics file and back out of it."""

import json

import numpy as np

from bigtransfer import norms, report

GIVEN = {
    quantity: {
        'encoder/layers/query/kernel': np.array([1.0, 2.0, 4.0]) * scale,
        'pooler/kernel': np.array(0.5 * scale),
    }
    for scale, quantity in enumerate(norms.QUANTITIES, 1)
}


def records(steps=(5, 10)):
  return [
      {'step': step, 'phase': 'a', 'kind': kind, 'values': values}
      for step in steps
      for kind, values in (
          ('train', {'loss': 1.0}), ('norms', norms.flat(GIVEN))
      )
  ]


def test_every_layer_has_a_name_of_its_own():
  flat = norms.flat(GIVEN)
  assert len(flat) == 12
  assert flat['trust_ratio/encoder/layers/query/kernel/02'] == 4
  assert flat['update_norm/pooler/kernel'] == 1.5


def test_curves_are_what_was_written():
  found = norms.curves(records())
  assert found['step'].tolist() == [5, 10]
  for quantity, of_path in GIVEN.items():
    for path, array in of_path.items():
      expected = np.stack([np.atleast_1d(array)] * 2)
      np.testing.assert_array_equal(found[quantity][path], expected)


def test_a_report_draws_them(tmp_path):
  (tmp_path / 'metrics.jsonl').write_text(
      ''.join(json.dumps(r) + '\n' for r in records())
  )
  written = report.draw([str(tmp_path)], str(tmp_path / 'plots'))
  assert [path.rpartition('/')[2] for path in written] == [
      'curves.png', 'norms.png'
  ]
