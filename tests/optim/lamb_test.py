"""LAMB: presets against float64 NumPy, layers, devices, memory."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from bigtransfer import mesh as mesh_lib
from bigtransfer import sharding, trees
from bigtransfer import state as state_lib
from bigtransfer.optim import factory, lamb

LAYERS = 3
RATES = (0.5, 0.4, 0.3, 0.2)
SHAPES = {
  'embeddings/word/embedding': (7, 8),
  'embeddings/norm/scale': (8,),
  'mlm/bias': (7,),
}
LAYER_SHAPES = {
  'query/kernel': (8, 16),
  'key/kernel': (8, 16),
  'query/bias': (16,),
  'output_norm/scale': (8,),
}


def make_config(preset='tf', clip_norm=1.0, **optimizer):
  defaults = dict(
    name='lamb',
    learning_rate=0.5,
    b1=0.8,
    b2=0.95,
    eps=1e-3,
    weight_decay=0.1,
    decay=None,
    momentum=0.0,
    moment_dtype='float32',
    lr_rules=(('.*', 1.0),),
  )
  schedule = dict(
    name='linear',
    warmup=0,
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
      total_steps=5,
      clip_norm=clip_norm,
      optimizer=defaults | lamb.preset(preset) | optimizer,
      schedule=schedule,
    )
  )


def arrays(seed):
  """Returns path -> float64 array of an unstacked tree."""
  rng = np.random.default_rng(seed)
  shapes = dict(SHAPES)
  for i in range(LAYERS):
    shapes |= {f'layer{i}/{k}': shape for k, shape in LAYER_SHAPES.items()}
  # Layers of different scale, so that one ratio for all would be wrong.
  return {
    path: rng.uniform(0.1, 9) * rng.normal(size=shape)
    for path, shape in shapes.items()
  }


def start():
  w = arrays(0)
  w['layer1/query/kernel'][:] = 0.0
  w['mlm/bias'][:] = 0.0
  return w


def gradients():
  grads = [arrays(seed) for seed in (1, 2, 3, 4)]
  for g in grads:
    g['layer2/key/kernel'][:] = 0.0
  return grads


def nested(flat):
  tree = {}
  for path, leaf in flat.items():
    *folders, name = path.split('/')
    node = tree
    for folder in folders:
      node = node.setdefault(folder, {})
    node[name] = jnp.asarray(leaf, jnp.float32)
  return tree


def stack(flat):
  stacked = {k: v for k, v in flat.items() if k in SHAPES}
  for key in LAYER_SHAPES:
    stacked[f'encoder/layers/{key}'] = np.stack(
      [flat[f'layer{i}/{key}'] for i in range(LAYERS)]
    )
  return stacked


def train(config, params, gradients):
  tx = factory.make(config, params)
  state, history = jax.jit(tx.init)(params), []

  @jax.jit
  def step(params, state, grads):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  for grads in gradients:
    params, state = step(params, state, grads)
    history.append(dict(trees.flatten(params)))
  assert step._cache_size() == 1
  return history, state


def is_norm_or_bias(path):
  return path.endswith(('scale', 'bias'))


# What the codes do, read from them and written down apart from PRESETS.
CODES = {
  'paper': dict(plain=lambda path: path.endswith('scale'), clip=None),
  'tf': dict(plain=is_norm_or_bias, clip=1.0),
  'nvlamb': dict(no_decay=is_norm_or_bias, clip=None, unit=True),
  'apex': dict(plain=is_norm_or_bias, clip=1.0),
  'deepspeed': dict(
    no_decay=is_norm_or_bias, clip=1.0, debias=False, bounds=(0.01, 0.3)
  ),
}


def reference(
  w,
  grads,
  *,
  plain=None,
  no_decay=None,
  clip=None,
  unit=False,
  debias=True,
  averaging=True,
  bounds=(0, np.inf),
  phi=(0, np.inf),
):
  """LAMB of `make_config` in float64, a layer at a time."""
  w = dict(w)
  m, v = ({k: np.zeros_like(x) for k, x in w.items()} for _ in range(2))
  history = []
  for t, (rate, g) in enumerate(zip(RATES, grads, strict=True), start=1):
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    divisor = norm if unit else max(1.0, norm / clip) if clip else 1.0
    for k in w:
      x = g[k] / divisor
      m[k] = 0.8 * m[k] + (0.2 if averaging else 1.0) * x
      v[k] = 0.95 * v[k] + 0.05 * x**2
      first = m[k] / (1 - 0.8**t) if debias else m[k]
      second = v[k] / (1 - 0.95**t) if debias else v[k]
      u = first / (np.sqrt(second) + 1e-3)
      if not (no_decay or plain)(k):
        u = u + 0.1 * w[k]
      ratio, top = 1.0, np.clip(np.linalg.norm(w[k]), *phi)
      if top and np.linalg.norm(u) and not (plain and plain(k)):
        ratio = np.clip(top / np.linalg.norm(u), *bounds)
      w[k] = w[k] - rate * ratio * u
    history.append(dict(w))
  return history


def check(config, expected, layout=lambda flat: flat):
  params = nested(layout(start()))
  grads = [nested(layout(g)) for g in gradients()]
  history, state = train(config, params, grads)
  for k, (actual, wanted) in enumerate(zip(history, expected, strict=True)):
    wanted = layout(wanted)
    assert set(actual) == set(wanted)
    for path, x in wanted.items():
      np.testing.assert_allclose(
        actual[path], x, rtol=2e-5, atol=2e-6, err_msg=f'{k} {path}'
      )
  return state


@pytest.mark.parametrize('layout', [dict, stack], ids=['unstacked', 'stacked'])
@pytest.mark.parametrize('preset', lamb.PRESETS)
def test_presets_equal_numpy(preset, layout):
  config = make_config(preset, CODES[preset]['clip'])
  check(config, reference(start(), gradients(), **CODES[preset]), layout)


def test_presets_are_five_and_set_the_same_fields():
  assert list(lamb.PRESETS) == ['paper', 'tf', 'nvlamb', 'apex', 'deepspeed']
  fields = {tuple(lamb.preset(name)) for name in lamb.PRESETS}
  assert len(fields) == 1
  with pytest.raises(ValueError, match="preset='lans'; accepted: paper, tf,"):
    lamb.preset('lans')


@pytest.mark.parametrize(
  ('fields', 'options'),
  [
    (dict(bias_correction=False), dict(debias=False)),
    (dict(grad_averaging=False), dict(averaging=False)),
    (dict(pre_norm=True), dict(unit=True)),
    (dict(ratio_min=0.5, ratio_max=2.0), dict(bounds=(0.5, 2.0))),
    (dict(phi_min=5.0, phi_max=9.0), dict(phi=(5.0, 9.0))),
    (
      dict(adapt_rules=(('.*', 0),)),
      dict(plain=lambda path: True, no_decay=is_norm_or_bias),
    ),
  ],
  ids=lambda fields: next(iter(fields)),
)
def test_each_field_does_what_it_says(fields, options):
  base = dict(no_decay=None, plain=is_norm_or_bias)
  expected = reference(start(), gradients(), **(base | options))
  default = reference(start(), gradients(), **base)
  check(make_config(clip_norm=None, **fields), expected)
  assert any(
    not np.allclose(x, default[-1][k], rtol=1e-3)
    for k, x in expected[-1].items()
  )


def one_step(w, g, rate=0.1, **options):
  """Returns the first update of w, with its norms."""
  tx = lamb.lamb(rate, **options)
  params, grads = ({'w': jnp.asarray(x, jnp.float32)} for x in (w, g))
  updates, state = tx.update(grads, tx.init(params), params)
  return updates['w'], lamb.norms(state)


@pytest.mark.parametrize(
  ('w', 'u', 'scaled'),
  [
    ([0, 0, 0], [1, 1, 1], [1, 1, 1]),
    ([3, 4], [0, 2], [0, 5]),
    ([3, 4], [0, 0], [0, 0]),
  ],
)
def test_layers_at_zero_move_and_updates_of_zero_are_no_nan(w, u, scaled):
  # Faults O01; without moments the direction is the gradient's sign.
  options = dict(b1=0.0, b2=0.0, eps=1e-12, weight_decay=0.0)
  update, norms = one_step(w, u, rate=1.0, **options)
  np.testing.assert_allclose(-update, scaled, rtol=1e-6)
  assert np.isfinite(norms['trust_ratio']['w'])


@pytest.mark.parametrize(
  ('decay', 'expected'),
  [(0.0, [-0.35355, -0.35355]), (0.01, [-0.35184, -0.35526])],
)
def test_decay_enters_the_direction_and_not_the_gradient(decay, expected):
  # Fault O02.
  update, _ = one_step([3, 4], [1, 1], weight_decay=decay)
  np.testing.assert_allclose(update, expected, atol=1e-5)


def test_the_first_update_has_the_norm_of_rate_times_weight():
  # Fault O04: with bias correction any gradient gives a direction of ones.
  for g in ([1e-3, 2.0], [5.0, 5.0]):
    update, norms = one_step([3, 4], g)
    assert np.linalg.norm(update) == pytest.approx(0.1 * 5, rel=1e-5)
    assert norms['weight_norm']['w'] == pytest.approx(5)


@pytest.mark.parametrize('layout', [dict, stack], ids=['unstacked', 'stacked'])
def test_norms_of_every_layer_are_kept(layout):
  params = nested(layout(start()))
  config = make_config('nvlamb', clip_norm=None)
  tx = factory.make(config, params)
  before = lamb.norms(tx.init(params))
  grads = [nested(layout(g)) for g in gradients()][:1]
  history, state = train(config, params, grads)
  after = lamb.norms(state)
  assert set(after) == {'trust_ratio', 'weight_norm', 'update_norm'}
  for path, w in layout(start()).items():
    stacked = trees.is_stacked(path)
    layers = (lambda x: x) if stacked else (lambda x: x[None])
    found = {k: np.asarray(layers(v[path])) for k, v in after.items()}
    norms = [np.linalg.norm(x) for x in layers(w)]
    np.testing.assert_allclose(found['weight_norm'], norms, rtol=1e-5)
    steps = layers(w - history[0][path])
    np.testing.assert_allclose(
      0.5 * found['trust_ratio'] * found['update_norm'],
      [np.linalg.norm(x) for x in steps],
      rtol=1e-4,
      atol=1e-6,
    )
    assert not np.any(before['weight_norm'][path])
    assert before['trust_ratio'][path].shape == after['trust_ratio'][path].shape


def test_other_optimizers_have_no_norms():
  assert lamb.norms(optax.adam(0.1).init({'w': jnp.ones(3)})) is None


def test_frozen_parameters_have_neither_moments_nor_norms():
  config = make_config(lr_rules=(('embeddings/.*', 0.0), ('.*', 1.0)))
  params = nested(start())
  history, state = train(config, params, [nested(g) for g in gradients()])
  word = 'embeddings/word/embedding'
  np.testing.assert_array_equal(history[-1][word], np.float32(start()[word]))
  assert not any(path.endswith(word) for path, _ in trees.flatten(state))
  assert word not in lamb.norms(state)['trust_ratio']


def test_the_first_moment_can_be_bfloat16():
  params, grads = nested(start()), [nested(g) for g in gradients()]
  exact, _ = train(make_config(), params, grads)
  history, state = train(make_config(moment_dtype='bfloat16'), params, grads)
  types = {}
  for path, leaf in trees.flatten(state):
    if path.endswith('word/embedding') and leaf.ndim:
      types[path.split('/')[-4]] = leaf.dtype
  assert types == {'mu': jnp.dtype('bfloat16'), 'nu': jnp.dtype('float32')}
  for path, x in exact[0].items():
    np.testing.assert_allclose(history[0][path], x, rtol=1e-5, atol=1e-5)
  for path, x in exact[-1].items():
    np.testing.assert_allclose(history[-1][path], x, rtol=0.03, atol=0.03)


@pytest.mark.parametrize('rule', ['fsdp', 'replicate'])
def test_norms_are_global_on_eight_devices(rule):
  params = nested(stack(start()))
  grads = [nested(stack(g)) for g in gradients()]
  config = make_config('nvlamb')
  expected, one = train(config, params, grads)
  sizes = dict(data=1, fsdp=8, model=1)
  mesh = mesh_lib.make(ml_collections.ConfigDict(sizes))
  section = ml_collections.ConfigDict(
    dict(
      rules=(('.*/(kernel|embedding)', rule), ('.*', 'replicate')),
      opt_state_rules=(),
      fsdp_min_size=1,
    )
  )
  tx = factory.make(config, params)
  state = state_lib.create(params, tx)
  shardings = sharding.tree_shardings(state, mesh, section)
  state = jax.device_put(state, shardings)
  kernel = state.params['encoder']['layers']['query']['kernel']
  split = kernel.addressable_shards[0].data.size < kernel.size
  assert split == (rule == 'fsdp')

  def step(state, grads):
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    new = optax.apply_updates(state.params, updates)
    return state._replace(params=new, opt_state=opt_state)

  step = jax.jit(step, out_shardings=shardings, donate_argnums=0)
  for g in grads:
    state = step(state, jax.device_put(g, shardings.params))
  for path, x in trees.flatten(state.params):
    np.testing.assert_allclose(x, expected[-1][path], rtol=1e-5, atol=1e-6)
  found, wanted = lamb.norms(state.opt_state), lamb.norms(one)
  for field in wanted:
    for path, x in wanted[field].items():
      assert found[field][path].sharding.is_fully_replicated
      np.testing.assert_allclose(found[field][path], x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('preset', ['tf', 'nvlamb'])
def test_no_copy_of_a_parameter_is_made(preset):
  # Four parameters of one shape, whose scalars the compiler would store wide.
  layer = {
    'kernel': jax.ShapeDtypeStruct((4, 256, 256), jnp.float32),
    'bias': jax.ShapeDtypeStruct((4, 256), jnp.float32),
  }
  names = ('query', 'key', 'value', 'output')
  shapes = {'encoder': {'layers': dict.fromkeys(names, layer)}}
  clip_norm = CODES[preset]['clip']
  tx = factory.make(make_config(preset, clip_norm), shapes)

  def step(params, state, grads):
    updates, state = tx.update(grads, state, params)
    norm = trees.global_norm(grads)
    return optax.apply_updates(params, updates), state, norm

  state = jax.eval_shape(tx.init, shapes)
  step = jax.jit(step, donate_argnums=(0, 1))
  memory = step.lower(shapes, state, shapes).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 4 * 4 * 256 * 256 / 4


def test_norms_of_millions_of_elements_are_exact():
  x = np.random.default_rng(0).normal(1.0, 1e-3, (8_000_000,)).astype('float32')
  norm = jax.jit(lambda x: trees.layer_norm('w', x))(x)
  np.testing.assert_allclose(norm, np.linalg.norm(x.astype('float64')), 1e-6)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(b1=1.0), 'optimizer.b1=1.0; accepted: from 0 to below 1'),
    (dict(b2=-0.1), 'optimizer.b2=-0.1; accepted: from 0'),
    (dict(eps=-1.0), 'optimizer.eps=-1.0; accepted: 0 or more'),
    (dict(ratio_min=-1.0), 'optimizer.ratio_min=-1.0; accepted: None or 0'),
    (
      dict(ratio_min=2.0, ratio_max=1.0),
      'ratio_max=1.0; accepted: None or above ratio_min=2.0',
    ),
    (dict(phi_max=0.0), 'optimizer.phi_max=0.0; accepted: None or above'),
    (dict(decay='coupled'), "decay='coupled'; accepted: None or decoupled wi"),
    (dict(adapt_rules=(('.*', 0.5),)), 'adapt_rules=.*the values 0 and 1'),
    (
      dict(adapt_rules=(('x', 0), ('.*', 1))),
      r"optimizer.adapt_rules: \['x'\] decide no path",
    ),
  ],
)
def test_what_is_not_accepted_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    factory.make(make_config(**changes), nested(start()))


def test_an_unknown_option_is_refused():
  with pytest.raises(TypeError, match='beta1'):
    lamb.lamb(0.1, beta1=0.9)
