"""The ledger of the demo judges what is told, asked, said and noted by what was so at that moment."""

from __future__ import annotations

import json

import pytest
from demo_truth import BALL, CUBE, SECOND, pass_time, truth

from oxygen_ros.demo.events import Kind, Verdict
from oxygen_ros.demo.ledger import Ledger
from oxygen_ros.demo.verdicts import verdict_rows, verdicts_of


@pytest.fixture
def ledger():
    ledger = Ledger('rest')
    pass_time(ledger, 1.0, truth())
    return ledger


def newest(ledger):
    event = ledger.events[-1]
    return event.kind, event.text, event.verdict


def test_an_answer_is_judged_by_its_own_frame_and_not_by_what_is_so_now(ledger):
    then_ns = ledger.now_ns
    pass_time(ledger, 1.0, truth(objects=(BALL,)))
    for stamp_ns, verdict in ((then_ns, Verdict.TRUE), (ledger.now_ns, Verdict.FALSE)):
        number = ledger.asked('where is the red cube')
        ledger.answered(number, 'where is the red cube', 'near left', 'stop', stamp_ns)
        assert newest(ledger) == (Kind.ANSWERED, 'near left', verdict)
        assert ledger.events[-1].number == number == ledger.events[-2].number
    assert ledger.events[-1].detail == 'right is: not here'


@pytest.mark.parametrize(('question', 'finish', 'age'), [
    ('who are you', 'stop', 0), ('where is the red cube', 'cancelled', 0), ('where is the red cube', 'stop', 5)])
def test_what_cannot_be_known_is_not_judged(ledger, question, finish, age):
    ledger.answered(ledger.asked(question), question, 'near left', finish, ledger.now_ns - age * SECOND)
    assert ledger.events[-1].verdict is Verdict.OPEN


def test_an_answer_about_a_half_hidden_object_is_a_matter_of_opinion(ledger):
    half = CUBE.with_pixels(40)
    pass_time(ledger, 0.1, truth(objects=(half, BALL)))
    ledger.answered(ledger.asked('where is the red cube'), 'where is the red cube', 'not here', 'stop', ledger.now_ns)
    assert ledger.events[-1].verdict is Verdict.OPEN and 'opinion' in ledger.events[-1].detail


def test_a_spoken_line_is_judged_by_the_instruction_of_its_frame(ledger):
    ledger.said('i rest', 'stop', ledger.now_ns)
    assert ledger.events[-1].verdict is Verdict.TRUE
    told_ns = ledger.now_ns
    ledger.instructed('go to the red cube')
    pass_time(ledger, 2.0, truth())
    line = 'i reach for the red cube with my left hand'
    for text, age_ns, verdict in ((line, 0, Verdict.TRUE), ('i rest', 0, Verdict.FALSE)):
        ledger.said(text, 'stop', ledger.now_ns - age_ns)
        assert ledger.events[-1].verdict is verdict
    for text in (line, 'i rest'):  # just when it was told either may be meant
        ledger.said(text, 'stop', told_ns)
        assert ledger.events[-1].verdict is Verdict.TRUE
    ledger.said('i see no red cube', 'stop', told_ns)
    assert ledger.events[-1].verdict is Verdict.FALSE


def test_a_line_that_was_cut_off_is_no_line(ledger):
    count = len(ledger.events)
    ledger.said('i reach', 'superseded', ledger.now_ns)
    assert len(ledger.events) == count


def test_an_object_is_reached_when_a_fingertip_was_above_it_for_a_second(ledger):
    ledger.instructed('go to the red cube')
    pass_time(ledger, 1.0, truth())
    pass_time(ledger, 1.0, truth(CUBE.point_above))
    assert ledger.told[0].reached_ns is None
    pass_time(ledger, 0.2, truth(CUBE.point_above))
    assert newest(ledger) == (Kind.DID, 'reached the red cube after 2.1 s', Verdict.TRUE)
    ledger.conclude()
    assert ledger.told[0].outcome == 'success' and len(ledger.events) == 2


@pytest.mark.parametrize(('instruction', 'seconds', 'tip', 'from_rest', 'outcome', 'verdict'), [
    ('go to the red cube', 6.0, None, 0.0, 'missed', Verdict.FALSE),
    ('go to the red cube', 6.0, BALL.point_above, 0.0, 'wrong_object', Verdict.FALSE),
    ('go to the red cube', 2.0, None, 0.0, 'cut short', Verdict.OPEN),
    ('reach for the cyan ball', 6.0, None, 0.0, 'success', Verdict.TRUE),
    ('reach for the cyan ball', 6.0, None, 0.9, 'not_at_rest', Verdict.FALSE),
    ('go home', 6.0, None, 0.9, 'not_at_rest', Verdict.FALSE),
    ('go home', 6.0, None, 0.05, 'success', Verdict.TRUE)])
def test_what_comes_of_an_instruction_is_told(ledger, instruction, seconds, tip, from_rest, outcome, verdict):
    ledger.instructed(instruction)
    pass_time(ledger, 0.5, truth())
    pass_time(ledger, seconds - 0.5, truth(*([tip] if tip else []), from_rest=from_rest))
    ledger.instructed('rest')
    assert ledger.told[0].outcome == outcome
    did, told = ledger.events[-2:]
    assert (did.kind, did.verdict) == (Kind.DID, verdict) and (told.kind, told.text) == (Kind.TOLD, 'rest')


def test_an_instruction_of_another_language_is_not_judged(ledger):
    ledger.instructed('dance')
    pass_time(ledger, 7.0, truth())
    ledger.stop('holds')
    assert ledger.told[0].outcome is None and newest(ledger) == (Kind.INFORMED, 'holds', Verdict.OPEN)
    assert ledger.stopped and ledger.told[0].until_ns == ledger.now_ns


def test_notes_count_by_their_facts_and_show_when_they_are_new(ledger):
    right, wrong = 'red cube near left, blue ball far right', 'red cube near left, blue ball near right'
    for note, new in ((right, True), (right, False), (wrong, True)):
        ledger.noted(note, ledger.now_ns, new)
    assert [event.verdict for event in ledger.events if event.kind is Kind.NOTED] == [Verdict.TRUE, Verdict.FALSE]
    assert [(fact.true, fact.total) for fact in ledger.facts] == [(6, 6), (6, 6), (5, 6)]


def test_a_note_about_a_half_hidden_object_is_not_called_true(ledger):
    pass_time(ledger, 0.1, truth(objects=(CUBE.with_pixels(40), BALL)))
    ledger.noted('red cube far right, blue ball far right', ledger.now_ns, True)
    assert newest(ledger)[2] is Verdict.OPEN and 'half hidden: red cube' in ledger.events[-1].detail
    ledger.noted('red cube far right, blue ball near right', ledger.now_ns, True)
    assert newest(ledger)[2] is Verdict.FALSE


def test_what_memory_has_is_judged_by_the_frame_of_the_note(ledger):
    then_ns = ledger.now_ns
    pass_time(ledger, 1.0, truth(objects=(BALL,)))
    ledger.recalled('red cube', [('red cube near left, blue ball far right', 4, then_ns)])
    assert newest(ledger)[2] is Verdict.TRUE and 'seen 4×' in ledger.events[-1].detail
    ledger.recalled('cyan cube', [])
    assert newest(ledger) == (Kind.RECALLED, 'nothing about cyan cube', Verdict.OPEN)


def test_listeners_hear_every_event_when_it_happens(ledger):
    heard = []
    ledger.listeners.append(heard.append)
    ledger.instructed('rest')
    ledger.said('i rest', 'stop', ledger.now_ns)
    assert heard == ledger.events[-2:]


def test_speed_is_that_of_simulated_time(ledger):
    for tenth in range(20):
        ledger.take_truth(ledger.now_ns + SECOND // 10, truth(), 100.0 + 0.4 * tenth)
    assert ledger.speed(since=100.0) == pytest.approx(0.25)


def test_summary_and_table_hold_the_verdicts_and_fit_into_json(ledger):
    began_ns = ledger.now_ns
    ledger.instructed('go to the red cube')
    pass_time(ledger, 6.0, truth())
    ledger.answered(ledger.asked('is there a red cube'), 'is there a red cube', 'yes', 'stop', ledger.now_ns)
    ledger.answered(ledger.asked('is there a red cube'), 'is there a red cube', 'no', 'stop', ledger.now_ns)
    ledger.asked('what is leftmost')
    ledger.noted('red cube near left', ledger.now_ns, True)
    ledger.conclude()
    summary = json.loads(json.dumps(verdicts_of(ledger, began_ns), allow_nan=False))
    assert summary['tally'] == {'instructions': [0, 1], 'answers': [1, 2], 'spoken_lines': [0, 0], 'notes': [0, 1],
                                'facts_of_notes': [3, 6], 'recalled': [0, 0]}
    assert summary['told'][0]['outcome'] == 'missed' and summary['told'][0]['reached_after_seconds'] is None
    assert [(answer['question'], answer['text'], answer['true']) for answer in summary['answers']] == [
        ('is there a red cube', 'yes', True), ('is there a red cube', 'no', False)]
    assert summary['scene'] == ['red cube near left', 'blue ball far right']
    rows = {name: (text, verdict) for name, text, verdict in verdict_rows({**summary, 'simulated_time_speed': 1.0})}
    assert rows['told'][0].startswith('go to the red cube: missed') and rows['told'][1] is Verdict.FALSE
    assert rows['answers'] == ('1 of 2 true', Verdict.OPEN)
