"""The figures, warnings and failures at the end of the demo, and its view while it runs."""

import json
import re

import pytest
from rich.console import Console

from oxygen_ros.demo.cycles import Cycle, Span, Trace
from oxygen_ros.demo.record import Instruction, MemoryAnswer, Note, Question, Record
from oxygen_ros.demo.summary import Measured, failures, summarise, table_of
from oxygen_ros.demo.view import RANDOM_WEIGHTS, Show, plain_line, render
from oxygen_ros.msg import EngineStatus

ANSWER = 'a [red] cup'
END = 115.1  # just after the last chunk


def full_record(random=True, chunks=51):
    """Ten seconds in which all went well."""
    record = Record(started=100.0)
    for number in range(chunks):
        record.take_chunk(105.0 + 0.2 * number)
    record.commands = [105.0 + 0.02 * number for number in range(500)]
    for tokens, time in ((100, 106.0), (900, 114.0)):
        record.take_status(EngineStatus(
            model='tiny', weights='random, seed 0' if random else 'run 7', mode='continuous_batching', state='active',
            random_weights=random, action_rate_set=5.0, tokens=tokens, texts_finished=17, deadline_misses=2,
            late_decodes=1, kv_bytes_peak=4096, kv_bytes_allocated=8192, frames_received=100, chunks=50), time)
    speech = record.text(1, 'speech')
    speech.finish = 'stop'
    record.sentences.append('the table')
    record.questions.append(Question('What is there?', 107.0, accepted=True, request_id=2))
    answer = record.text(2, 'answer')
    answer.text, answer.tokens, answer.finish = ANSWER, 3, 'length'
    answer.first_token, answer.first_seen = 0.030, 107.05
    record.questions.append(Question('Tell me all.', 109.0, cancel=True, accepted=True, request_id=9, cancelled=[9]))
    cancelled = record.text(9, 'answer')
    cancelled.text, cancelled.finish = 'so [far]', 'cancelled'
    record.instructions.append(Instruction('Sit.', accepted=True))
    record.note, record.note_messages = Note(4, 'a cup', 3), 5
    record.memory = MemoryAnswer(True, '', ('a cup', 'a box'))
    record.diagnostics = {'inputs: head': (0, '10 Hz')}
    return record


def trace_of(*lateness):
    return Trace((Span('denoise', 0.0, 0.030), Span('denoise', 1.0, 1.040), Span('denoise', 2.0, 2.070)), (),
                 tuple(Cycle(1, 0.0, 1.0 + late, 1.0, 1.0) for late in lateness), skipped=1)


def summary_of(record, trace=None):
    trace = trace or trace_of(-0.02, -0.01, 0.03)
    return summarise(Measured(record, trace, end=END), {'robot': 'unitree_g1'})


def text_of(renderable):
    console = Console(width=140, record=True, file=open('/dev/null', 'w'))
    console.print(renderable)
    return console.export_text()


def test_the_summary_holds_the_figures_that_were_measured():
    summary = summary_of(full_record())
    assert {name: summary[name] for name in (
        'action_rate_set_hz', 'action_rate_achieved_hz', 'cycles', 'deadline_misses', 'late_decodes',
        'lateness_p50_ms', 'lateness_max_ms', 'tokens_per_second', 'texts_finished', 'memory_entries', 'kv_bytes_peak',
        'first_chunk_after_seconds', 'stage_median_ms')} == {
        'action_rate_set_hz': 5.0, 'action_rate_achieved_hz': 5.0, 'cycles': 51, 'deadline_misses': 1,
        'late_decodes': 1, 'lateness_p50_ms': -10.0, 'lateness_max_ms': 30.0, 'tokens_per_second': 100.0,
        'texts_finished': 17, 'memory_entries': 2, 'kv_bytes_peak': 4096, 'first_chunk_after_seconds': 5.0,
        'stage_median_ms': {'denoise': 40.0}}
    assert summary['questions'][0] == {
        'question': 'What is there?', 'accepted': True, 'cancelled': False, 'answer': ANSWER, 'finish': 'length',
        'tokens': 3, 'frame_number': 0, 'first_token_ms': 30.0, 'first_token_seen_ms': 50.0}
    assert summary['warnings'] == []
    json.dumps(summary, allow_nan=False)


def test_modes_that_do_not_plan_decoding_have_no_late_decodes():
    record = full_record()
    record.status.mode = 'shared_kv'
    assert summary_of(record)['late_decodes'] is None


def test_without_a_trace_its_figures_are_unknown_not_zero():
    summary = summary_of(full_record(), Trace((), (), ()))
    assert summary['lateness_p99_ms'] is None and summary['stage_median_ms'] == {}
    assert '5.000 Hz achieved' in text_of(table_of(summary))


@pytest.mark.parametrize('random', [True, False])
def test_random_weights_are_announced_wherever_texts_are_shown(random):
    record = full_record(random)
    summary = summary_of(record)
    assert (RANDOM_WEIGHTS in text_of(table_of(summary))) is random
    assert (RANDOM_WEIGHTS in text_of(render(record, Show('demo', 45.0, now=115.0)))) is random
    assert ('(random words)' in plain_line(record, Show('demo', 45.0, now=115.0))) is random
    assert summary['random_weights'] is random and (summary.get('note') == RANDOM_WEIGHTS) is random


def test_brackets_in_a_text_are_shown_and_not_read_as_markup():
    record = full_record()
    assert 'so [far] [cancelled]' in text_of(render(record, Show('demo', 45.0, now=115.0)))
    assert ANSWER in text_of(table_of(summary_of(record)))


def test_an_action_rate_below_98_percent_is_a_warning_and_no_failure():
    record = full_record(chunks=50)
    record.chunks = [105.0 + 0.21 * number for number in range(48)]
    assert '4.76 Hz is below 98% of the set 5.00 Hz' in summary_of(record)['warnings'][0]
    assert failures(record, END) == []


def test_notes_that_get_no_time_in_modes_that_do_not_share_it_are_a_warning_and_no_failure():
    record = spoil('no memory note')
    record.status.mode = 'isolated'
    assert 'no memory note' in summary_of(record)['warnings'][0]
    assert failures(record, END) == []


def test_an_input_that_is_late_is_a_warning():
    record = full_record()
    record.diagnostics['inputs: head'] = (2, 'nothing for 2 s')
    assert summary_of(record)['warnings'] == ['inputs: head: nothing for 2 s']


def spoil(name):
    record = full_record()
    if name == 'no joint command':
        record.commands.clear()
    elif name == 'no action chunk came in the last 6.1 s':
        record.chunks = record.chunks[:21]
    elif name == 'no narration':
        record.texts[1].finish = 'cancelled'
    elif name == 'no memory note':
        record.note_messages = 0
    elif name == 'query_memory':
        record.memory = None
    elif name == 'disk full':
        record.memory = MemoryAnswer(False, 'disk full', ())
    elif name == 'no question was answered':
        record.questions[0].accepted = None
    elif name == 'no question could be cancelled':
        record.questions[1].cancelled = None
    elif name == 'Sit.':
        record.instructions[0].accepted = None
    return record


@pytest.mark.parametrize('name', [
    'no action chunk came in the last 6.1 s', 'no joint command', 'no narration', 'no memory note', 'query_memory',
    'disk full', 'no question was answered', 'no question could be cancelled', 'Sit.'])
def test_what_did_not_happen_is_a_failure_that_names_it(name):
    assert failures(full_record(), END) == []
    assert name in failures(spoil(name), END)[0]


@pytest.mark.parametrize('change, named', [
    ({'accepted': None}, 'not answered in time'), ({'accepted': False, 'message': 'queue full'}, 'queue full'),
    ({'request_id': 77}, 'not answered in time'), ({'request_id': 3}, 'ended early: timed out')])
def test_a_question_without_an_answer_is_a_warning_while_others_are_answered(change, named):
    record = full_record()
    record.text(3, 'answer').finish = 'timed out'
    question = Question('Why?', 108.0, **{'accepted': True, 'request_id': 3, **change})
    record.questions.append(question)
    assert failures(record, END) == []
    assert named in summary_of(record)['warnings'][0]


def test_a_cancelled_question_shows_that_it_was_cancelled():
    summary = summary_of(full_record())
    assert summary['questions'][1]['cancelled'] is True and summary['questions'][1]['answer'] == 'so [far] [cancelled]'


def test_while_setting_up_the_view_names_what_is_awaited():
    record = Record(started=100.0)
    record.take_status(EngineStatus(random_weights=True), 108.0)
    show = Show('demo', 45.0, now=110.0, doing='waiting for frames')
    assert plain_line(record, show) == ('[ 10.0 s] waiting for: first frame reached the model (waiting for frames)')
    view = text_of(render(record, show))
    assert re.search(r'model loaded and warmed up +after 8.0 s', view) and 'waiting for frames' in view
