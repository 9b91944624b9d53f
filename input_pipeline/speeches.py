"""The embedded speeches as a folder of records, made once on each machine."""

import hashlib
import os
import tempfile

from input_pipeline import bert_data, embedded

_CACHE = '~/.cache/bigtransfer'
_TEXT = os.path.join(embedded.FOLDER, 'speeches.txt.xz')
_VOCABULARY = os.path.join(embedded.FOLDER, 'speeches_vocab.txt')
_OPTIONS = (
    # Lines are paragraphs; a tenth of the speeches is held out.
    *('--split_sentences', '--test_fraction', '0.1'),
    *('--container', 'arrayrecord', '--shards', '1'),
)


def folder(seq_length: int) -> str:
  """Returns the folder of the speeches in sequences of `seq_length` tokens.

  It is in ~/.cache/bigtransfer and is made if it is not there: under another
  name until it is whole, so that processes can make it at the same time.

  Raises OSError, and ValueError if the records cannot be made.
  """
  options = ('--max_seq_length', str(seq_length), *_OPTIONS)
  digest = hashlib.sha256(' '.join(options).encode())
  for path in (_TEXT, _VOCABULARY):
    with open(path, 'rb') as file:
      digest.update(hashlib.sha256(file.read()).digest())
  cache = os.path.expanduser(_CACHE)
  made = os.path.join(cache, f'speeches-{seq_length}-{digest.hexdigest()[:12]}')
  if os.path.isdir(made):
    return made
  os.makedirs(cache, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=cache, prefix='making-') as unfinished:
    output = os.path.join(unfinished, 'records')
    code = bert_data.main(
        ['--input', _TEXT, '--vocab', _VOCABULARY, '--output', output, *options]
    )
    if code:
      raise ValueError(f'bert_data gave up on {_TEXT} with exit code {code}')
    try:
      os.rename(output, made)
    except OSError:
      if not os.path.isdir(made):  # Else another process was faster.
        raise
  return made
