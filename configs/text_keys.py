"""Declares the keys of BERT and of text, as keys.py does the others."""

from configs import fields as f


def bert(m):
  m.declare('vocab_size', None, f.optional(f.integer(1)),
            'Tokens; None = of the data.')
  m.declare('vocab_multiple', 1, f.integer(1),
            'Rows of the token table are rounded up to it, to be split over'
            ' devices; the padding never wins.')
  m.declare('max_position', 512, f.integer(1), 'Rows of the position table.')
  m.declare('extend_positions', False, f.boolean(),
            'init_from may have fewer positions: its rows are copied, and the'
            ' others start as in a new model.')
  m.declare('layers', 0, f.integer(0), 'Encoder layers; 0 = the variant has.')
  m.declare('hidden', 0, f.integer(0), 'Width; 0 = as the variant.')
  m.declare('heads', 0, f.integer(0), 'Attention heads; 0 = as the variant.')
  m.declare('ffn', 0, f.integer(0), 'Width inside a layer; 0 = 4 * hidden.')
  m.declare('dropout', 0.1, f.number(0, 1), 'Of embeddings and residuals.')
  m.declare('attention_dropout', 0.1, f.number(0, 1), 'Of attention weights.')
  m.declare('mixing', 'attention', f.choice('attention', 'fourier', 'hybrid'),
            'How tokens mix: attention, the Fourier transform of FNet, or that'
            ' with attention in the last two layers.')
  m.declare('gelu', 'tanh', f.choice('tanh', 'erf'),
            "Approximation as in Google's BERT, or exact as in Hugging Face's.")
  m.declare('head', 'pretraining', f.choice(
      'pretraining', 'classification', 'span', 'none'),
            'Masked words and next sentence, a class, or a span of text.')
  m.declare('scan', True, f.boolean(),
            'Compile one layer and loop over it, or unroll all of them.')


def text(d):
  d.declare('task', 'csv', f.string(),
            'Of kind sentences: csv, speeches or a GLUE task.')
  d.declare('data_dir', None, f.optional(f.string()),
            "Of TFDS, for GLUE without a path; None = TFDS's own.")
  d.declare('seq_length', 128, f.integer(1), 'Tokens of an example.')
  d.declare('max_predictions', 20, f.integer(1), 'Masked tokens at most.')
  d.declare('masked_lm_prob', 0.15, f.number(0, 1), 'Share that is masked.')
  d.declare('whole_word', False, f.boolean(), 'Mask all pieces of a word.')
  d.declare('vocab', None, f.optional(f.string()),
            'Vocabulary file, or speeches for that which ships; pretraining'
            ' checks its data against it, and None is what the data came with.')
  d.declare('lowercase', True, f.boolean(),
            'Fold case and drop accents, as the uncased models want it.')
  d.declare('eval_examples', 0, f.integer(0),
            'Evaluate the first so many only; 0 = all.')
  d.declare('examples_per_class', 0, f.integer(0),
            'Train on so many of each class, chosen by the seed; 0 = all.')
  d.declare('regression', False, f.boolean(),
            'Labels are numbers: of csv, and always of stsb.')
  d.declare('doc_stride', 128, f.integer(1),
            'Tokens between the windows of a long paragraph.')
  d.declare('max_query_length', 64, f.integer(1), 'Tokens of a question.')


def task(c):
  c.section('squad', 'The evaluator of that name.')
  c.squad.declare('version', '1.1', f.choice('1.1', '2.0'),
                  'With or without questions that have no answer.')
  c.squad.declare('n_best', 20, f.integer(1), 'Answers kept of each question.')
  c.squad.declare('max_answer_length', 30, f.integer(1), 'In tokens.')
  c.squad.declare('null_threshold', 0.0, f.number(),
                  'No answer where its score leads by more than this.')
