"""The word tokenizer: loses nothing, knows no control token in a text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.models.tokenizer import WordTokenizer

WORDS = ['.', ',', '?', 'pick', 'the', 'cup', 'x', 'é']
TOKENIZER = WordTokenizer(WORDS, ['bos', 'eos'])


def decode(tokens):
    return b''.join(map(TOKENIZER.token_bytes, tokens)).decode()


def test_known_words_are_one_token_each_and_others_are_spelled():
    assert TOKENIZER.encode('pick the cup') == [259, 260, 261]
    assert TOKENIZER.encode('the cups') == [260, *b' cups']


def test_punctuation_without_a_blank_is_spelled_and_comes_back_without_one():
    tokens = TOKENIZER.encode('pick the cup.')
    assert decode(tokens) == ' pick the cup.'


def test_controls_have_ids_of_their_own_and_no_bytes():
    assert (TOKENIZER.control('bos'), TOKENIZER.control('eos'), TOKENIZER.size) == (264, 265, 266)
    for token in (264, 265, 266, 999, -1):
        assert TOKENIZER.token_bytes(token) == b''


def test_words_that_repeat_are_refused_by_name():
    with pytest.raises(ValueError, match=r"\['cup'\]"):
        WordTokenizer(['cup', 'a', 'cup'], [])


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from([*WORDS, ' ', '\n', 'bos', '<eos>', '👋🏽']), max_size=20)
       .map(' '.join))
def test_any_text_comes_back_and_holds_no_control(text):
    tokens = TOKENIZER.encode(text)
    assert all(0 <= token < TOKENIZER.control('bos') for token in tokens)
    assert decode(tokens) == f' {text}'


def test_half_surrogate_pair_becomes_a_question_mark():
    assert decode(TOKENIZER.encode('a\ud83db')) == ' a?b'
