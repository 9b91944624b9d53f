"""Cuts paragraphs into sentences by a rule, for text that is not cut yet."""

import re

# A stop, what closes after it, white space, and what may begin a sentence. In
# Chinese and Japanese the stop is enough.
_END = re.compile(
    r"""([.!?…]+)["'”’)\]]*\s+(?=["'“‘(\[]*[^\W_a-z])|[。！？]+[」』”’）]*\s*"""
)
_LAST_WORD = re.compile(r'[^\s("\'“‘\[]*$')
_ABBREVIATIONS = frozenset(
    'adm al approx apr art aug ave bros brig capt cf co col corp cpl dec dept'
    ' dr drs e.g ed est etc feb fig figs fr ft gen gov hon i.e inc jan jr lt'
    ' ltd maj mar messrs mr mrs ms mt no nos nov oct op p pp pres prof pvt rep'
    ' reps rev sec sen sens sept sgt sr st supt v viz vol vols vs'.split()
)


def split(text: str) -> list[str]:
  """Returns the sentences of a paragraph, without white space around them.

  No sentence ends at an initial or a usual English abbreviation: some that do
  stay together, which does less harm than a cut in the middle.
  """
  sentences, begin = [], 0
  for end in _END.finditer(text):
    if end[1] == '.' and _is_short_form(text[begin : end.start()]):
      continue
    sentences.append(text[begin : end.end()].strip())
    begin = end.end()
  rest = text[begin:].strip()
  return [*sentences, rest] if rest else sentences


def _is_short_form(before):
  word = _LAST_WORD.search(before)[0]
  # J. Adams, the U.S. Army
  initial = word[-1:].isupper() and (len(word) == 1 or word[-2] == '.')
  return initial or word.lower() in _ABBREVIATIONS
