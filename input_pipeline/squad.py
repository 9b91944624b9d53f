"""SQuAD: windows of [CLS] question [SEP] paragraph [SEP] and their answers.

Batches hold int32 [b, s] `input_ids`, `input_mask` and `segment_ids`, int32 [b]
`start_positions` and `end_positions`, `mask` float32 [b] and `id` int64 [b],
the number of the window. A long paragraph becomes several windows, as in
run_squad.py of google-research/bert; where the answer does not lie inside one,
both positions are 0, that of [CLS]. Tokens know their characters, so an answer
is cut out of the paragraph as it stands there.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from input_pipeline import sentences, squad_json, token_batches


class Window(NamedTuple):
  """The part of a paragraph that a row of a batch holds.

  Attributes:
    question: its index.
    prefix: position in the row of the part's first token.
    offsets: int32 [m, 2], begin and end of its tokens in characters.
    max_context: bool [m]: no other window shows more around this token.
  """

  question: int
  prefix: int
  offsets: np.ndarray
  max_context: np.ndarray


class References(NamedTuple):
  """What a split's predictions are made of and compared with.

  Attributes:
    questions: with `id`, `context` and `answers` ((text, first character)...).
    windows: in the order of the rows.
  """

  questions: Sequence[squad_json.Question]
  windows: Sequence[Window]


class Data(token_batches.Data):
  """What a run reads; the `references` of its evaluations are References."""

  def __init__(
      self, config: Any, process_index: int = 0, process_count: int = 1
  ):
    """`config` is the whole config.

    Raises:
      FileNotFoundError: there is no `<split>-v<version>.json` in data.path.
      ValueError: a file that is not as it should be, sizes that do not fit.
    """
    data = config.data
    if data.path is None:
      raise ValueError(
          'config.data.path=None: name the folder of'
          f' train-v{config.squad.version}.json and'
          f' dev-v{config.squad.version}.json'
      )
    super().__init__(config, (process_index, process_count))
    self._version = config.squad.version
    self._tokenizer = sentences.open_tokenizer(data)
    if data.seq_length < data.max_query_length + 3 + 1:
      raise ValueError(
          f'config.data.seq_length={data.seq_length} leaves no room for a'
          f' paragraph beside max_query_length={data.max_query_length} and 3'
          ' special tokens'
      )
    questions = self._questions(data.train_split)
    self._digest = _digest(questions)
    self._train, _ = self._examples(questions, train=True)
    self.check(config)

  def model_fields(self) -> dict[str, int]:
    """Returns `num_classes`, start and end, and `vocab_size`."""
    return {'num_classes': 2, 'vocab_size': self._tokenizer.vocab_size}

  def identity(self) -> dict[str, Any]:
    """Returns what tells this training set from others."""
    return {
        'num_examples': self.num_examples,
        'texts_sha256': self._digest,
        'vocab_sha256': self._tokenizer.sha256,
    }

  def read(self, split: str) -> token_batches.Split:
    """Returns the windows of a split's first `eval_examples` questions."""
    questions = self._questions(split)[: self._config.eval_examples or None]
    examples, windows = self._examples(questions, train=False)
    return token_batches.Split(examples, References(questions, windows))

  def _questions(self, split):
    name = f'{split}-v{self._version}.json'
    path = os.path.join(self._config.path, name)
    return squad_json.read(path, self._version)

  def _examples(self, questions, train):
    """Returns the Examples of all windows, and the Windows."""
    data, encode = self._config, self._tokenizer.encode_batch
    queries = encode([q.text for q in questions])
    first, second, windows, positions = [], [], [], []
    context = None
    for number, question in enumerate(questions):
      if question.context is not context:
        context = question.context
        ids, offsets = self._tokenizer.offsets(context)
        offsets = np.array(offsets, np.int32).reshape(-1, 2)
        if not ids:
          raise ValueError(f'{question.where}: the context has no tokens')
      query = queries[number][: data.max_query_length]
      answer = (0, -1)
      if train:
        answer = _answer_tokens(question, offsets)
      room = data.seq_length - len(query) - 3
      parts = cut(len(ids), room, data.doc_stride)
      best = max_context(parts)
      for (begin, end), is_best in zip(parts, best, strict=True):
        prefix = len(query) + 2
        first.append(query)
        second.append(ids[begin:end])
        windows.append(Window(number, prefix, offsets[begin:end], is_best))
        inside = begin <= answer[0] <= answer[1] < end
        shift = prefix - begin
        positions.append([i + shift for i in answer] if inside else [0, 0])
    sequences = token_batches.Sequences(
        first,
        second,
        cls_id=self._tokenizer.cls_id,
        sep_id=self._tokenizer.sep_id,
        length=data.seq_length,
    )
    start, end = np.array(positions, np.int32).T
    targets = {'start_positions': start, 'end_positions': end}
    return token_batches.Examples(sequences, targets), windows


def cut(count: int, room: int, stride: int) -> list[tuple[int, int]]:
  """Returns [begin, end) of the windows of `room` over `count` tokens."""
  begin, parts = 0, []
  while True:
    end = min(begin + room, count)
    parts.append((begin, end))
    if end == count:
      return parts
    begin += min(room, stride)


def max_context(parts: Sequence[tuple[int, int]]) -> list[np.ndarray]:
  """Returns bool [m] of each part: does it show most around each token?

  That is min(tokens before, tokens after) + 0.01 * its length, and of equal
  ones the first: `_check_is_max_context` of google-research/bert.
  """
  position = np.arange(parts[-1][1])
  scores = []
  for begin, end in parts:
    score = np.minimum(position - begin, end - 1 - position)
    score = score + 0.01 * (end - begin)
    inside = (position >= begin) & (position < end)
    scores.append(np.where(inside, score, -np.inf))
  best = np.argmax(scores, axis=0)
  return [best[begin:end] == i for i, (begin, end) in enumerate(parts)]


def _answer_tokens(question, offsets):
  """Returns the first and last token of the first answer, (0, -1) for none.

  These are the tokens that share a character with it.
  """
  if not question.answers:
    return 0, -1
  text, begin = question.answers[0]
  end = begin + len(text)
  if not text.strip() or question.context[begin:end] != text or begin < 0:
    raise ValueError(
        f'{question.where}: the answer {text!r} is not at character {begin} of'
        f' the context, where stands {question.context[max(begin, 0):end]!r}'
    )
  shared = (offsets[:, 1] > begin) & (offsets[:, 0] < end)
  found = np.flatnonzero(shared)
  if not len(found):
    raise ValueError(f'{question.where}: the answer {text!r} has no tokens')
  return int(found[0]), int(found[-1])


def _digest(questions):
  digest = hashlib.sha256()
  for question in questions:
    digest.update(repr(question[:4]).encode())
  return digest.hexdigest()
