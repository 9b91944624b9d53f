"""Names and shapes of TPU slices."""

import pytest

from bigtransfer import topologies


@pytest.mark.parametrize(
    ('asked', 'name', 'count'),
    [
        # Names count cores up to v4 and for v5p, chips for v5e and v6e.
        ('v3-2048', 'v3-2048', 1024),
        ('v3:32x32', 'v3-2048', 1024),
        ('v4-512', 'v4-512', 256),
        ('v4:2x2x1', 'v4-8', 4),
        ('v5litepod-256', 'v5litepod-256', 256),
        ('v5p-128', 'v5p-128', 64),
        ('v6e-256', 'v6e-256', 256),
    ],
)
def test_names_and_shapes_mean_so_many_chips(asked, name, count):
  topology = topologies.parse(asked)
  assert (topology.name, topology.num_chips) == (name, count)


@pytest.mark.parametrize(
    ('asked', 'nearest'), [('v3-100', 'v3-128'), ('v9-8', 'v4-8')]
)
def test_a_slice_that_does_not_exist_is_refused_with_the_nearest(
    asked, nearest
):
  with pytest.raises(ValueError) as error:
    topologies.parse(asked)
  assert repr(asked) in str(error.value)
  assert nearest in str(error.value)
