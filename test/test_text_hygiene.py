"""What never reaches a listener: thinking, special tokens, endless repetition, what follows a stop string, NUL."""

import json
from pathlib import Path

import pytest
from engine_fakes import FakeClock, FakeModel, Rig
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.engine.markup_filter import MarkupFilter
from oxygen_ros.engine.repetition import LEAST_TOKENS, RepetitionRule
from oxygen_ros.engine.requests import FinishReason, SamplingParams
from oxygen_ros.engine.stop_strings import StopStrings

CASES = Path(__file__).parent / 'data' / 'cases'


def read(case, name):
    return json.loads((CASES / case / name).read_text())


def filtered(*pieces):
    markup = MarkupFilter()
    return ''.join([*map(markup.push, pieces), markup.flush()])


def stopped(strings, *pieces):
    stop = StopStrings(strings)
    text = ''.join(stop.push(piece) for piece in pieces)
    return text + stop.flush(), stop.found


# -- thinking and special tokens -------------------------------------------------------------------------------------

def test_thinking_between_tags_is_never_spoken():
    case = read('60-thinking-tags-spoken', 'stream.json'), read('60-thinking-tags-spoken', 'case.json')
    assert filtered(*case[0]['pieces']) == case[1]['expected']['text']


def test_thinking_is_not_spoken_by_the_engine_either():
    pieces = read('60-thinking-tags-spoken', 'stream.json')['pieces']
    rig = Rig(FakeModel(FakeClock()), branch_tokens=300)
    rig.model.says['speech'] = ''.join(pieces).encode()
    rig.observe(1)
    number = rig.submit('speech', max_tokens=200)
    rig.run()
    assert rig.texts()[number] == 'Here is your cup. 2 < 3.'
    assert rig.ends()[number] is FinishReason.STOP


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 12), max_size=40))
def test_pieces_may_cut_a_tag_anywhere(sizes):
    text = 'I<|im_start|> see <think>if a < b, then\n</thought> the </think>2 < 3 <end_of_turn>cups <COT>no</cot>.</s>'
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert filtered(*pieces, rest) == 'I see 2 < 3 cups .'


@pytest.mark.parametrize('text', ['a < b', '<', 'x <y', '<b>bold</b>', '<3', '< think>', 'if a<b and c>d', '<|', '<<>>',
                                  '\N{WINKING FACE}<\N{WINKING FACE}', '<' * 100, '<' + 'x' * 100])
def test_what_only_looks_like_a_tag_comes_through(text):
    assert filtered(text) == filtered(*text) == ('' if text == '<|' else text)


def test_thinking_without_an_end_is_not_spoken_nor_is_half_a_tag():
    assert filtered('Yes. <think>I wonder', ' what') == 'Yes. '
    assert filtered('Yes. <thin') == 'Yes. '
    assert filtered('Yes.</think> Good.') == 'Yes. Good.'


def test_blanks_between_thinking_and_the_first_word_are_dropped():
    assert filtered('<think>', '\n', '</think>', '\n', '\n', ' Hello') == 'Hello'
    assert filtered(' Hello ', '<think>x</think>', ' you') == ' Hello  you'


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_characters='<\0')))
def test_any_text_without_a_tag_is_left_as_it_is(text):
    assert filtered(*text) == text


def test_nul_does_not_cut_a_message():
    rig = Rig()
    rig.model.says['speech'] = b'a\0b'
    rig.observe(1)
    number = rig.submit('speech')
    rig.run()
    assert rig.texts()[number] == 'a\N{REPLACEMENT CHARACTER}b'


# -- stop strings ----------------------------------------------------------------------------------------------------

def test_text_ends_before_its_stop_string():
    rig = Rig(FakeModel(FakeClock()))
    rig.model.says['speech'] = b'A cup. Human: and you?'
    rig.observe(1)
    number = rig.submit('speech', sampling=SamplingParams(40, stop=('Human:', '\n\n')))
    rig.run()
    assert rig.texts()[number] == 'A cup. '
    assert rig.ends()[number] is FinishReason.STOP
    last = [event for event in rig.events if event.request.request_id == number][-1]
    assert last.tokens == len('A cup. Human:')


@settings(max_examples=300, deadline=None)
@given(st.text('ab', max_size=30), st.lists(st.text('ab', min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_up_to_the_stop_string_that_ends_first_comes_whole(text, strings):
    ends = [text.find(string) + len(string) for string in strings if string in text]
    got, found = stopped(strings, *text)
    assert found is bool(ends)
    if not ends:
        assert got == text
    else:
        assert any(got + string == text[:min(ends)] for string in strings)


def test_beginning_of_a_stop_string_is_not_spoken_too_early_and_not_lost():
    stop = StopStrings(['###'])
    assert [stop.push(piece) for piece in ('a#', '#', 'b#')] == ['a', '', '##b']
    assert stop.flush() == '#'


@pytest.mark.parametrize('strings', [('',), ('x' * 201,), ('a',) * 17])
def test_stop_strings_out_of_range_are_refused(strings):
    with pytest.raises(ValueError, match='stop has'):
        SamplingParams(stop=strings)


# -- repetition ------------------------------------------------------------------------------------------------------

def ends_at(rule, tokens):
    return next((number for number, token in enumerate(tokens, 1) if rule.push(token)), None)


def test_model_that_says_the_same_for_ever_is_ended_and_it_is_told_why():
    case = read('58-repetition-without-end', 'tokens.json')
    words = {word: number for number, word in enumerate(dict.fromkeys(case['repeat']))}
    rule = RepetitionRule(4)
    most = case['limits']['max_new_tokens']
    assert ends_at(rule, [words[word] for word in case['repeat'] * most]) == 4 * len(case['repeat']) < most
    assert rule.period == len(case['repeat'])


def test_repeating_text_ends_with_its_reason_while_actions_keep_their_rate():
    sentence = ''.join(read('58-repetition-without-end', 'tokens.json')['repeat'])
    rig = Rig(FakeModel(FakeClock()), repetitions=3, branch_tokens=600)
    rig.model.says['speech'] = sentence.encode() * 100
    rig.act_every(0.25, until=110.0)
    number = rig.submit('speech', max_tokens=500)
    rig.run(110.5)
    assert rig.ends()[number] is FinishReason.REPETITION
    last = [event for event in rig.events if getattr(event, 'finish', None)][-1]
    assert last.tokens == 3 * len(sentence) and f'{len(sentence)} tokens' in last.message
    assert len(rig.chunks()) == 40


@pytest.mark.parametrize('tokens', [
    [1] * (LEAST_TOKENS - 1),                                   # "....", a line of dashes
    [1, 2, 3, 4, 5, 6, 7, 8, 9] * 3 + [10],                     # three times is allowed
    list(range(200)), [1, 2] * 5 + [3] + [1, 2] * 5,
    [token for number in range(40) for token in (1, 2, 100 + number)]])  # "I see 1. I see 2. ..."
def test_what_repeats_a_little_goes_on(tokens):
    assert ends_at(RepetitionRule(4), tokens) is None


def test_repetition_is_found_behind_any_beginning_and_can_be_switched_off():
    assert ends_at(RepetitionRule(4), list(range(30)) + [7, 8, 9, 5, 5, 2] * 9) == 30 + 24
    assert ends_at(RepetitionRule(0), [1] * 1000) is None
