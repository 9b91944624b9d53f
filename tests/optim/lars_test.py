"""LARS against float64 NumPy, with both momenta."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from bigtransfer import trees
from bigtransfer.optim import factory, lamb, lars

RATES = (0.0, 1.0, 2.0, 1.5)  # warm-up 2, then linear to 0 at step 6
COEFFICIENT = 0.02


def make_config(**optimizer):
  defaults = dict(
    name='lars',
    learning_rate=2.0,
    momentum=0.9,
    nesterov=False,
    momentum_after_rate=True,
    trust_coefficient=COEFFICIENT,
    eps=0.1,
    ratio_min=None,
    ratio_max=None,
    weight_decay=0.3,
    decay=None,
    moment_dtype='float32',
    lr_rules=(('head/.*', 0.5), ('.*', 1.0)),
    decay_rules=(('.*/bias', 0.0), ('.*', 1.0)),
    adapt_rules=(('.*/bias', 0), ('.*', 1)),
  )
  schedule = dict(
    name='linear',
    warmup=2,
    warmup_start=0,
    power=1.0,
    end=0.0,
    decay_from='warmup',
    boundaries=(),
    factor=0.1,
    timescale=1,
  )
  return ml_collections.ConfigDict(
    dict(
      total_steps=6,
      clip_norm=None,
      optimizer=defaults | optimizer,
      schedule=schedule,
    )
  )


def arrays(seed):
  rng = np.random.default_rng(seed)
  return {
    'layers': {'kernel': rng.normal(size=(3, 4, 5)) * [[[1]], [[5]], [[9]]]},
    'head': {'kernel': rng.normal(size=(5, 2)), 'bias': rng.normal(size=2)},
  }


def train(config, params, gradients):
  params, *gradients = (
    jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
    for tree in (params, *gradients)
  )
  tx = factory.make(config, params)
  state, history = jax.jit(tx.init)(params), []

  @jax.jit
  def step(params, state, grads):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  for grads in gradients:
    params, state = step(params, state, grads)
    history.append(dict(trees.flatten(params)))
  return history, state


def reference(w, grads, rates, adapted, momentum, after, nesterov):
  history, buffer = [], np.zeros_like(w)
  for rate, g in zip(rates, grads, strict=True):
    ratio, decay = 1.0, 0.3 if adapted else 0.0
    if adapted:
      top, below = np.linalg.norm(w), np.linalg.norm(g)
      ratio = COEFFICIENT * top / (below + decay * top + 0.1)
    step = g + decay * w
    if after:
      step = rate * ratio * step
    buffer = momentum * buffer + step
    step = step + momentum * buffer if nesterov else buffer
    w = w - step if after else w - rate * ratio * step
    history.append(w)
  return history


@pytest.mark.parametrize('after', [True, False])
@pytest.mark.parametrize(
  ('momentum', 'nesterov'), [(0.9, False), (0.9, True), (0.0, False)]
)
def test_lars_equals_numpy(momentum, nesterov, after):
  config = make_config(
    momentum=momentum, nesterov=nesterov, momentum_after_rate=after
  )
  gradients = [arrays(seed) for seed in (1, 2, 3, 4)]
  history, state = train(config, arrays(0), gradients)
  rates = {k: [f * r for r in RATES] for k, f in (('layers', 1), ('head', 0.5))}
  expected = {}
  for path, w in trees.flatten(arrays(0)):
    grads = [dict(trees.flatten(g))[path] for g in gradients]
    how = (path.endswith('kernel'), momentum, after, nesterov)
    mine = rates[path.partition('/')[0]]
    if path.startswith('layers'):
      layers = [
        reference(w[i], [g[i] for g in grads], mine, *how) for i in range(3)
      ]
      expected[path] = [np.stack(step) for step in zip(*layers, strict=True)]
    else:
      expected[path] = reference(w, grads, mine, *how)
  for path, steps in expected.items():
    for actual, wanted in zip(history, steps, strict=True):
      np.testing.assert_allclose(actual[path], wanted, rtol=1e-5, atol=1e-5)
  norms = lamb.norms(state)
  assert norms['trust_ratio']['layers/kernel'].shape == (3,)
  assert norms['trust_ratio']['head/bias'] == 1.0


def one_step(w, g, **options):
  tx = lars.lars(1.0, momentum=0.0, **options)
  params, grads = ({'w': jnp.asarray(x, jnp.float32)} for x in (w, g))
  return tx.update(grads, tx.init(params), params)[0]['w']


def test_without_decay_there_is_a_ratio_all_the_same():
  # Fault O05.
  update = one_step([3, 4], [0, 2], weight_decay=0.0)
  np.testing.assert_allclose(update, [0, -0.005], rtol=1e-6)


@pytest.mark.parametrize(
  ('w', 'g', 'decay', 'expected'),
  [
    ([0, 0], [0, 2], 0.1, [0, -2]),
    ([3, 4], [0, 0], 0.1, [-0.3, -0.4]),
    ([0, 0], [0, 0], 0.0, [0, 0]),
  ],
)
def test_a_norm_of_zero_gives_the_plain_step(w, g, decay, expected):
  update = one_step(w, g, weight_decay=decay)
  np.testing.assert_allclose(update, expected, rtol=1e-6)


@pytest.mark.parametrize(
  ('bounds', 'ratio'),
  [({}, 2.5), (dict(ratio_max=1.0), 1.0), (dict(ratio_min=3.0), 3.0)],
)
def test_the_ratio_can_be_clipped(bounds, ratio):
  update = one_step([3, 4], [0, 2], trust_coefficient=1.0, **bounds)
  np.testing.assert_allclose(update, [0, -2 * ratio], rtol=1e-6)


@pytest.mark.parametrize('after', [True, False])
def test_the_momentum_can_be_bfloat16(after):
  gradients = [arrays(seed) for seed in (1, 2, 3)]
  exact, _ = train(
    make_config(momentum_after_rate=after), arrays(0), gradients
  )
  config = make_config(momentum_after_rate=after, moment_dtype='bfloat16')
  rounded, state = train(config, arrays(0), gradients)
  moments = {
    leaf.dtype
    for path, leaf in trees.flatten(state)
    if path.endswith('kernel') and leaf.ndim > 1
  }
  assert moments == {jnp.dtype('bfloat16')}
  for path, x in exact[-1].items():
    np.testing.assert_allclose(rounded[-1][path], x, atol=0.05)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(trust_coefficient=0.0), 'trust_coefficient=0.0; accepted: above 0'),
    (dict(eps=-1.0), 'optimizer.eps=-1.0; accepted: 0 or more'),
    (dict(ratio_max=0.0), 'optimizer.ratio_max=0.0; accepted: None or above'),
    (dict(momentum=1.0), 'optimizer.momentum=1.0; accepted: from 0'),
    (dict(decay='decoupled'), "decay='decoupled'; accepted: None or coupled"),
  ],
)
def test_what_is_not_accepted_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    factory.make(make_config(**changes), arrays(0))
