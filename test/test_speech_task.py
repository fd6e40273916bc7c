"""Sentences out of increments: none lost, none doubled, whatever the increments."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.tasks.speech import LONGEST, SentenceSplitter, SentenceStream


def split(*increments):
    splitter = SentenceSplitter()
    return [*(sentence for increment in increments for sentence in splitter.push(increment)), *splitter.flush()]


def test_sentence_goes_out_when_the_next_word_begins():
    splitter = SentenceSplitter()
    assert splitter.push('I see a cup.') == []  # "3." could go on as "3.5"
    assert splitter.push(' It is') == ['I see a cup.']
    assert splitter.push(' red! And?! ') == ['It is red!', 'And?!']
    assert splitter.flush() == []


def test_numbers_are_not_torn():
    assert split('It is 3.5 m away. Good.') == ['It is 3.5 m away.', 'Good.']


def test_closing_marks_belong_to_their_sentence():
    assert split('He said "go." (Now!) Yes') == ['He said "go."', '(Now!)', 'Yes']


def test_full_width_marks_need_no_blank():
    assert split('我看到一个杯子。它是红色的！', '「好吗？」他问。Good.') == [
        '我看到一个杯子。', '它是红色的！', '「好吗？」', '他问。', 'Good.']
    assert split('好', '。', '」', '再') == ['好。」', '再']


def test_line_breaks_end_sentences():
    assert split('one\n\ntwo\nthree') == ['one', 'two', 'three']


def test_text_without_an_end_is_cut_at_a_blank_so_that_speech_goes_on():
    words = 'word ' * 200
    sentences = split(words)
    assert len(sentences) > 2 and all(len(sentence) <= LONGEST for sentence in sentences)
    assert ' '.join(sentences).split() == words.split()
    assert ''.join(split('x' * 1000)) == 'x' * 1000


def test_nothing_but_blanks_gives_nothing():
    assert split('  ', '\n', ' ') == []


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text('ab .!?…"\')。\n 。é👋', max_size=30) | st.text(max_size=20)
                | st.just('x' * 200) | st.just('long word ' * 40), max_size=12))
def test_no_text_is_lost_or_doubled(increments):
    sentences = split(*increments)
    blank = re.compile(r'\s+')
    assert blank.sub('', ''.join(sentences)) == blank.sub('', ''.join(increments))
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@settings(max_examples=200, deadline=None)
@given(st.text('abc .!?"\n。」', max_size=250), st.lists(st.integers(1, 9), max_size=80))
def test_sentences_do_not_depend_on_how_the_text_came(text, sizes):
    increments, rest = [], text
    for size in sizes:
        increments.append(rest[:size])
        rest = rest[size:]
    assert split(*increments, rest) == split(*text)


def test_texts_that_stream_at_the_same_time_are_kept_apart():
    stream = SentenceStream()
    assert stream.push(1, 'Hello ', False) == []
    assert stream.push(2, 'Good ', False) == []
    assert stream.push(1, 'there. ', False) == ['Hello there.']
    assert stream.push(2, 'day', True) == ['Good day']
    assert stream.push(1, 'Bye', True) == ['Bye']


@pytest.mark.parametrize('end', ['clear', 'finish'])
def test_nothing_of_a_text_that_has_ended_is_kept(end):
    stream = SentenceStream()
    stream.push(1, 'Hello', False)
    stream.clear() if end == 'clear' else stream.push(1, '', True)
    assert stream.push(1, 'new', True) == ['new']
    assert stream.push(2, '', True) == []
