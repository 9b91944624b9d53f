"""Records written without TensorFlow, read with it."""

import numpy as np
import pytest

from input_pipeline import bert_records
from input_pipeline.host import tf


def test_checksums():
  """Those of RFC 3720, appendix B.4, and of the nine digits."""
  texts = [b'123456789', bytes(32), b'\xff' * 32, bytes(range(32))]
  expected = [0xE3069283, 0x8A9136AA, 0x62A8AB43, 0x46DD794E]
  assert bert_records.crc32c(texts).tolist() == expected
  assert [bert_records.crc32c([t])[0] for t in texts] == expected


def examples():
  """[CLS] 7 8 [SEP] 300 20000 9 [SEP], and one that fills the length."""
  return bert_records.Examples(
      np.array([
          [2, 7, 8, 3, 300, 20000, 9, 3, 0, 0, 0, 0],
          [2, *[3_000_000] * 9, 0, 3],
      ], np.int32),
      np.array([8, 12]),
      np.array([4, 11]),
      np.array([1, 0]),
  )  # fmt: skip


def read(path, records):
  path.write_bytes(bert_records.framed(records))
  found = []
  for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
    features = tf.train.Example.FromString(record).features.feature
    found.append({
        k: list(v.int64_list.value or v.float_list.value)
        for k, v in features.items()
    })
  return found


def test_runtime_records(tmp_path):
  first, second = read(tmp_path / 'a', bert_records.runtime(examples()))
  assert first == {
      'input_ids': [2, 7, 8, 3, 300, 20000, 9, 3],
      'boundary': [4],
      'next_sentence_labels': [1],
  }
  assert second['input_ids'] == examples().ids[1].tolist()
  assert second['next_sentence_labels'] == [0]


def test_static_records(tmp_path):
  records = bert_records.static(
      examples(),
      np.array([[2, 4, 0], [1, 0, 0]]),
      np.array([[8, 301, 0], [7, 0, 0]]),
      np.array([[1, 1, 0], [1, 0, 0]], np.float32),
  )
  first, second = read(tmp_path / 'a', records)
  assert first == {
      'input_ids': [2, 7, 8, 3, 300, 20000, 9, 3, 0, 0, 0, 0],
      'input_mask': [1] * 8 + [0] * 4,
      'segment_ids': [0] * 4 + [1] * 4 + [0] * 4,
      'masked_lm_positions': [2, 4, 0],
      'masked_lm_ids': [8, 301, 0],
      'masked_lm_weights': [1.0, 1.0, 0.0],
      'next_sentence_labels': [1],
  }
  assert second['segment_ids'] == [0] * 11 + [1]
  assert second['input_mask'] == [1] * 12


@pytest.mark.parametrize('size', [100, 200, 20000])
def test_long_records(tmp_path, size):
  """Lengths take one byte, two and three."""
  ids = np.arange(size, dtype=np.int32)[np.newaxis]
  one = np.array([1])
  made = bert_records.Examples(ids, np.array([size]), one, one)
  (found,) = read(tmp_path / 'a', bert_records.runtime(made))
  assert found['input_ids'] == list(range(size))
