"""Tokenizers of checkpoints: both file formats give the same ids, no text is read as a control token."""

from __future__ import annotations

import io
import json

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from oxygen_ros.engine.detokenizer import IncrementalDetokenizer
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.text_tokenizers import load_tokenizer

SENTENCES = ['pick up the red cube', 'place the cup on the table', 'Task: wave, State: 3 12 255;', 'Action: go'] * 20
MARKUP = ['<loc0001>', '<end_of_turn>']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Return a directory with the same small vocabulary in both formats."""
    path = tmp_path_factory.mktemp('tokenizer')
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=buffer, vocab_size=330, model_type='bpe', byte_fallback=True,
        add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name='identity',
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, user_defined_symbols=[*MARKUP, '\n'], minloglevel=2)
    (path / 'paligemma_tokenizer.model').write_bytes(buffer.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())
    vocabulary = {model.id_to_piece(i): i for i in range(model.vocab_size())}
    merges = [(piece[:cut], piece[cut:]) for piece, i in vocabulary.items() for cut in range(1, len(piece))
              if not model.is_byte(i) and piece[:cut] in vocabulary and piece[cut:] in vocabulary and piece[0] != '<']
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token='<unk>', byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(' ', '▁')
    tokenizer.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(['<pad>', '<s>', '</s>', '<unk>'])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in [*MARKUP, '\n']])
    (path / 'json').mkdir()
    tokenizer.save(str(path / 'json' / 'tokenizer.json'))
    return path


@pytest.fixture(params=['sentencepiece', 'json'])
def tokenizer(folder, request):
    return load_tokenizer(folder if request.param == 'sentencepiece' else folder / 'json')


def text_of(tokenizer, tokens):
    return b''.join(map(tokenizer.token_bytes, tokens)).decode()


TEXTS = ['pick up the cube', ' two  blanks ', 'Grüße 🙂', 'Task: wave, State: -1 255;\nAction: ', '', '<b>bold</b>',
         'a <loc0001> b', '<end_of_turn></s><s>', '<<loc0001>', '<loc<loc0001>0001>', '<0x41>', '<pad>']


@pytest.mark.parametrize('text', TEXTS)
def test_every_text_comes_back_from_its_tokens(tokenizer, text):
    assert text_of(tokenizer, tokenizer.encode(text)) == text


@pytest.mark.parametrize('text', TEXTS)
def test_no_text_is_read_as_a_control_token(tokenizer, text):
    assert all(tokenizer.token_bytes(token) for token in tokenizer.encode(text))


def test_control_tokens_are_no_text(folder):
    tokenizer = load_tokenizer(folder)
    assert [tokenizer.token_bytes(i) for i in (0, 1, 2, 3, 4, 5, -1, tokenizer.size)] == [b''] * 8


def test_both_formats_give_the_same_ids(folder):
    both = [load_tokenizer(folder), load_tokenizer(folder / 'json')]
    for text in ('pick up the red cube', 'Task: wave, State: 3 12 255;\nAction: ', 'Grüße 🙂'):
        assert both[0].encode(text) == both[1].encode(text)


def test_a_half_surrogate_pair_does_no_harm(tokenizer):
    assert text_of(tokenizer, tokenizer.encode('go \ud83d now')) == 'go ? now'


def test_streamed_text_never_cuts_a_character(tokenizer):
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in tokenizer.encode('Grüße 🙂')]
    assert '\ufffd' not in ''.join(pieces) and ''.join(pieces) + detokenizer.flush() == 'Grüße 🙂'


@pytest.mark.parametrize('name', ['tokenizer.json', 'tokenizer.model'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, name):
    with pytest.raises(ConfigError, match='no tokenizer'):
        load_tokenizer(tmp_path)
    (tmp_path / name).write_text(json.dumps({'a': 1}))
    with pytest.raises(ConfigError, match=f'{name}.*cannot be read'):
        load_tokenizer(tmp_path)
