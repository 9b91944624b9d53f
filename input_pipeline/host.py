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

import tensorflow as tf  # noqa: E402

for _kind in ('GPU', 'TPU'):
  tf.config.set_visible_devices([], _kind)

# For functions without Python control flow: autograph need not rewrite them.
as_it_is = tf.autograph.experimental.do_not_convert
