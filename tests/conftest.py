"""Eight CPU devices, strict promotion and a persistent compilation cache."""

import os
import pathlib
import runpy
import tempfile

# Before anything imports TensorFlow: its start-up chatter hides real warnings.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
# Processes that the tests start share the cache and the eight devices too.
CACHE = os.path.join(tempfile.gettempdir(), 'bigtransfer_test_cache')
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', CACHE)

# As bigtransfer/files.py says, and before a test could use etils otherwise.
os.environ['EPATH_USE_TF'] = 'false'

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)
jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_numpy_rank_promotion', 'raise')
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)


@pytest.fixture(scope='session', autouse=True)
def _eight_devices():
  assert len(jax.devices()) == 8, jax.devices()


@pytest.fixture
def bucket(monkeypatch):
  """An empty gs://bucket of this test, see fake_gcs.py."""
  fake = runpy.run_path(str(pathlib.Path(__file__).with_name('fake_gcs.py')))
  with fake['bucket']() as served:
    for name, value in served.environment.items():
      monkeypatch.setenv(name, value)
    yield served


@pytest.fixture
def no_cache():
  """A program for a TPU that is not there cannot be read from the cache."""
  from jax.experimental.compilation_cache import compilation_cache

  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()
  yield
  jax.config.update('jax_enable_compilation_cache', True)
  compilation_cache.reset_cache()
