"""The state of one text: pieces, limits in time, numbering."""

import pytest
from engine_fakes import ByteTokenizer

from oxygen_ros.engine.requests import FinishReason, TextRequest
from oxygen_ros.engine.text_stream import TextStream


def stream(expires=None):
    return TextStream(TextRequest(1, 'speech', arrived=10.0, expires=expires), [1, 2], ByteTokenizer())


def say(text_stream, text):
    for byte in text.encode():
        text_stream.push(byte)


def test_first_piece_is_due_at_once_the_next_after_the_interval():
    text = stream()
    assert not text.due(10.0, 0.5)
    say(text, 'a')
    assert text.due(10.0, 0.5)
    text.take(10.0)
    say(text, 'b')
    assert not text.due(10.4, 0.5)
    assert text.due(10.5, 0.5)


def test_half_a_character_is_not_due():
    text = stream()
    text.push('é'.encode()[0])
    assert not text.due(10.0, 0.0)
    text.push('é'.encode()[1])
    assert text.take(10.0).delta == 'é'


def test_pieces_are_numbered_and_hold_what_came_since_the_one_before():
    text = stream()
    say(text, 'ab')
    first = text.take(10.5)
    say(text, 'c')
    last = text.take(11.0, FinishReason.STOP)
    assert [(p.sequence, p.delta, p.tokens, p.elapsed, p.finish) for p in (first, last)] == [
        (0, 'ab', 2, 0.5, None), (1, 'c', 3, 1.0, FinishReason.STOP)]


def test_last_piece_flushes_a_broken_character():
    text = stream()
    text.push(0xF0)
    assert text.take(10.0, FinishReason.LENGTH).delta == '\ufffd'


@pytest.mark.parametrize(('expires', 'now', 'expired'), [(None, 1e9, False), (12.0, 11.9, False), (12.0, 12.0, True)])
def test_expiry(expires, now, expired):
    assert stream(expires).expired(now) is expired
