"""Tokens to text without half characters."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.engine.detokenizer import IncrementalDetokenizer

CASES = Path(__file__).parent / 'data' / 'cases'


class HexTokenizer:
    """A tokenizer whose tokens are given byte strings."""

    def __init__(self, pieces):
        self.pieces = pieces

    def token_bytes(self, token):
        return self.pieces[token]


def pieces_of(byte_tokens):
    detokenizer = IncrementalDetokenizer(HexTokenizer(byte_tokens))
    return [*(detokenizer.push(i) for i in range(len(byte_tokens))), detokenizer.flush()]


def tokens_of(stream):
    return [bytes.fromhex(token) for token in stream['byte_tokens_hex']]


def test_emoji_split_over_tokens_stays_whole():
    folder = CASES / '55-emoji-split-over-tokens'
    pieces = pieces_of(tokens_of(json.loads((folder / 'tokens.json').read_text())))
    assert ''.join(pieces) == (folder / 'text.txt').read_text(encoding='utf-8')
    assert not any('\ufffd' in piece for piece in pieces)
    assert len(pieces[0]) == 3  # whole characters go out at once


def test_invalid_bytes_are_replaced_once_and_delay_nothing():
    streams = json.loads((CASES / '57-really-invalid-bytes-in-stream' / 'tokens.json').read_text())['streams']
    middle, cut_off, two = (pieces_of(tokens_of(stream)) for stream in streams)
    assert middle == ['Take the ', '\ufffd', ' red cup.', '']
    assert cut_off == ['Good night ', '', '\ufffd']
    assert two == ['', '\ufffd(', ' x', '']


def test_only_the_blank_before_the_first_word_is_dropped():
    assert pieces_of([b' Hello', b' there', b'  x']) == ['Hello', ' there', '  x', '']
    assert pieces_of([b'', b' ', b' a']) == ['', '', ' a', '']
    assert pieces_of([b'  a']) == [' a', '']


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.lists(st.integers(1, 5), max_size=60))
def test_any_text_in_any_pieces_comes_out_as_it_was(text, sizes):
    text = text.encode('utf-8', 'ignore').decode()
    data, tokens = text.encode(), []
    for size in sizes:
        tokens.append(data[:size])
        data = data[size:]
    pieces = pieces_of([*tokens, data])
    assert ''.join(pieces) == text.removeprefix(' ')


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=30))
def test_any_bytes_give_valid_text(data):
    pieces = pieces_of([bytes([b]) for b in data])
    assert ''.join(pieces) == data.decode('utf-8', 'replace').removeprefix(' ')
    for piece in pieces:
        piece.encode('utf-8')


@pytest.mark.parametrize('token', [b'', b'abc'])
def test_nothing_is_left_after_whole_characters(token):
    assert pieces_of([token])[-1] == ''
