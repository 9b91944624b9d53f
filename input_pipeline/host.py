"""TensorFlow as this package uses it: on the host, blind to accelerators.

Take it from here, `from input_pipeline.host import tf`: a plain import leaves
the GPUs visible, and TensorFlow claims their memory at its first operation.
"""

import os

# Before the import, which otherwise announces its CPU kernels four times.
# tf.data needs none of those of oneDNN.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')

import tensorflow as tf  # noqa: E402

for _kind in ('GPU', 'TPU'):
  tf.config.set_visible_devices([], _kind)

# For functions without Python control flow: autograph need not rewrite them.
as_it_is = tf.autograph.experimental.do_not_convert
