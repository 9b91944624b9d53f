"""Where the seconds of a process go."""

from bigtransfer import stopwatch


def test_what_nothing_claims_went_to_the_steps():
  now = [5.0]
  watch = stopwatch.Stopwatch(since=2.0, clock=lambda: now[0])
  for kind, seconds in (('compilation', 4), ('data', 1), ('data', 2)):
    with watch.during(kind):
      now[0] += seconds
    now[0] += 0.5
  assert watch.seconds() == {
      'steps': 1.5, 'start': 3, 'compilation': 4, 'data': 3, 'evaluation': 0,
      'checkpoints': 0,
  }


def test_what_fails_counts_too():
  now = [0.0]
  watch = stopwatch.Stopwatch(clock=lambda: now[0])
  try:
    with watch.during('evaluation'):
      now[0] = 7.0
      raise KeyError
  except KeyError:
    pass
  assert watch.seconds()['evaluation'] == 7
