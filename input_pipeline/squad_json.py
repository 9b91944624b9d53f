"""Reads the files of SQuAD 1.1 and 2.0.

Rajpurkar et al., arXiv 1606.05250 and 1806.03822.
"""

import json
from typing import Any, NamedTuple

from input_pipeline.host import tf


class Question(NamedTuple):
  """A question on a paragraph.

  Attributes:
    id: of the file, unique in it.
    text: of the question.
    context: the paragraph.
    answers: (text, its first character in `context`), () if there is none.
    where: its place in the file, for messages.
  """

  id: str
  text: str
  context: str
  answers: tuple[tuple[str, int], ...]
  where: str


def read(path: str, version: str) -> list[Question]:
  """Returns all questions of a file, in its order.

  Args:
    path: of the JSON file.
    version: '1.1', where each question has an answer, or '2.0'.

  Raises:
    FileNotFoundError: no such file.
    ValueError: no JSON, a key that is missing or of another type, an id twice,
      no questions; says where.
  """
  if not tf.io.gfile.exists(path):
    raise FileNotFoundError(f'there is no SQuAD file {path}')
  with tf.io.gfile.GFile(path, 'rb') as file:
    content = file.read()
  try:
    tree = json.loads(content)
  except UnicodeDecodeError as e:
    raise ValueError(f'{path}: not UTF-8 at byte {e.start}') from None
  except json.JSONDecodeError as e:
    raise ValueError(
        f'{path}:{e.lineno}: no valid JSON: {e.msg} (column {e.colno})'
    ) from None
  questions, seen = [], {}
  for context, qa, where in _walk(tree, path):
    question = _question(context, qa, where, version)
    if question.id in seen:
      raise ValueError(
          f'{where}: id {question.id!r} is also that of {seen[question.id]}'
      )
    seen[question.id] = where
    questions.append(question)
  if not questions:
    raise ValueError(f'{path} has no questions')
  return questions


def _walk(tree, path):
  """Yields (context, question as a dict, where it is)."""
  if not isinstance(tree, dict):
    raise ValueError(f'{path}: must be an object, found {_kind(tree)}')
  for i, article in enumerate(_get(tree, 'data', list, path)):
    where = f'{path}: data[{i}]'
    for j, paragraph in enumerate(_get(article, 'paragraphs', list, where)):
      inner = f'{where}.paragraphs[{j}]'
      context = _get(paragraph, 'context', str, inner)
      if not context.strip():
        raise ValueError(f'{inner}: context is blank')
      for k, qa in enumerate(_get(paragraph, 'qas', list, inner)):
        yield context, qa, f'{inner}.qas[{k}]'


def _question(context, qa, where, version):
  name, text = (_get(qa, key, str, where) for key in ('id', 'question'))
  answers = []
  for i, answer in enumerate(_get(qa, 'answers', list, where)):
    inner = f'{where}.answers[{i}]'
    answers.append((
        _get(answer, 'text', str, inner),
        _get(answer, 'answer_start', int, inner),
    ))
  impossible = False
  if version == '2.0':
    impossible = _get(qa, 'is_impossible', bool, where)
  if impossible and answers:
    raise ValueError(f'{where}: is_impossible, but it has answers')
  if not impossible and not answers:
    hint = " (is the file one of config.squad.version='2.0'?)"
    raise ValueError(
        f'{where}: no answer{hint if version == "1.1" else ""}'
    )
  return Question(name, text, context, tuple(answers), where)


def _get(node: Any, key: str, kind: type, where: str) -> Any:
  if not isinstance(node, dict):
    raise ValueError(f'{where}: must be an object, found {_kind(node)}')
  if key not in node:
    raise ValueError(f'{where}: the key {key!r} is missing')
  # JSON's true is no number, though Python's is.
  if type(node[key]) is not kind:
    raise ValueError(
        f'{where}.{key}: must be {_NAMES[kind]}, found {_kind(node[key])}'
    )
  return node[key]


_NAMES = {
    dict: 'an object',
    list: 'a list',
    str: 'a string',
    int: 'an integer',
    float: 'a number',
    bool: 'true or false',
    type(None): 'null',
}


def _kind(value):
  return _NAMES[type(value)]
