"""TensorFlow as this package uses it: on the host, blind to accelerators.

Take it from here, `from input_pipeline.host import tf`: a plain import leaves
the GPUs visible, and TensorFlow claims their memory at its first operation.
"""

import os

# TensorFlow otherwise announces its CPU kernels four times; tf.data needs none
# of those of oneDNN.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')

# Batches of some 100 MB come and go. From malloc the pages of each are new and
# have to be cleared, a quarter of the time of reading photos; this allocator
# keeps them. Its limit would be 64 GB, which arrays in memory can pass.
os.environ.setdefault('TF_CPU_ALLOCATOR_USE_BFC', 'true')
os.environ.setdefault('TF_CPU_BFC_MEM_LIMIT_IN_MB', str(1 << 20))

# The import would load Keras and matplotlib too, 0.8 s of 3.0. With this it
# looks for Keras 2, and where that is missing leaves `tf.keras` to its first
# use, which finds Keras 3 as ever, since the variable is gone by then.
_unset = 'TF_USE_LEGACY_KERAS' not in os.environ
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')

import tensorflow as tf  # noqa: E402

if _unset:
  del os.environ['TF_USE_LEGACY_KERAS']

for _kind in ('GPU', 'TPU'):
  tf.config.set_visible_devices([], _kind)

# For functions without Python control flow: autograph need not rewrite them.
as_it_is = tf.autograph.experimental.do_not_convert
