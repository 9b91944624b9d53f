"""Checkpoints that TensorFlow wrote, read without it afterwards."""

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from input_pipeline import tf_checkpoint
from input_pipeline.host import tf


def write(path, tensors):
  names = list(tensors)
  tf.raw_ops.SaveV2(
      prefix=path,
      tensor_names=names,
      shape_and_slices=[''] * len(names),
      tensors=list(tensors.values()),
  )


def test_arrays_keep_their_names(tmp_path, capsys):
  rng = np.random.default_rng(0)
  tensors = {
      'bert/pooler/dense/kernel': rng.normal(size=(4, 3)).astype(np.float32),
      'global_step': np.int64(7),
  }
  path, output = str(tmp_path / 'bert_model.ckpt'), str(tmp_path / 'out')
  write(path, tensors | {'_CHECKPOINTABLE_OBJECT_GRAPH': np.array(b'graph')})
  assert tf_checkpoint.main([path, output]) == 0
  assert 'wrote 2 arrays' in capsys.readouterr().out
  found = safetensors_numpy.load_file(output)
  assert found.keys() == tensors.keys()
  for name, value in tensors.items():
    np.testing.assert_array_equal(found[name], value)


def test_what_is_no_checkpoint_is_refused(tmp_path, capsys):
  path = str(tmp_path / 'bert_model.ckpt')
  (tmp_path / 'broken.index').write_bytes(b'x' * 100)
  (tmp_path / 'nothing').mkdir()
  for source, output, message in (
      (path, 'out', f'no {path}.index'),
      (path, 'missing/out', 'no folder'),
      (str(tmp_path / 'broken'), 'out', 'cannot be read'),
  ):
    assert tf_checkpoint.main([source, str(tmp_path / output)]) == 2
    error = capsys.readouterr().err
    assert message in error.splitlines()[-1]
  assert not (tmp_path / 'out').exists()
  with pytest.raises(FileNotFoundError, match='without its last suffix'):
    tf_checkpoint.read(path + '.index')
