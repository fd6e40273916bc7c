"""The engine on a fake clock and a fake model: what runs when, what ends how, and that no slot is ever lost."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_fakes import EOS, FakeClock, FakeModel, Rig

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.cost_model import Stage
from oxygen_ros.engine.requests import ActionFailed, AdmissionError, FinishReason, Refusal, SamplingParams, TextRequest
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.observation import Observation

CASES = Path(__file__).parent / 'data' / 'cases'


def model(**seconds):
    return FakeModel(FakeClock(), **seconds)


def warm(rig):
    """Let the engine learn what the model costs; the record begins afterwards."""
    image = np.zeros((2, 2, 3), np.uint8)
    rig.engine.warm_up(PolicyInput(Observation(999, int(rig.clock.now * 1e9), {'head': image})))
    rig.engine.check_integrity()
    rig.model.calls.clear()
    return rig


# -- texts -------------------------------------------------------------------------------------------------------------

def test_text_comes_in_pieces_and_ends_with_the_stop_token():
    rig = Rig()
    rig.model.says['speech'] = b'Hello.'
    rig.observe(1)
    text = rig.submit(max_tokens=50)
    rig.run()
    assert rig.texts() == {text: 'Hello.'} and rig.ends() == {text: FinishReason.STOP}
    assert [event.sequence for event in rig.events] == list(range(len(rig.events)))
    assert len(rig.events) == 7 and rig.events[-1].inputs.number == 1
    assert rig.engine.cache.free_branches == 8


def test_text_ends_at_its_most_tokens_with_length():
    rig = Rig()
    rig.observe(1)
    text = rig.submit(max_tokens=4)
    rig.run()
    assert rig.texts() == {text: 'abcd'} and rig.ends() == {text: FinishReason.LENGTH}


def test_stop_token_as_the_last_allowed_is_a_stop():
    rig = Rig()
    rig.model.says['speech'] = b'abc'
    rig.observe(1)
    text = rig.submit(max_tokens=4)
    rig.run()
    assert rig.ends() == {text: FinishReason.STOP}


def test_text_ends_with_length_when_its_branch_is_full():
    rig = Rig(branch_tokens=10)
    rig.observe(1)
    text = rig.submit('answer', 'abcde', max_tokens=100)  # 7 prompt tokens
    rig.run()
    # 3 places left; the last token chosen needs none.
    assert rig.texts() == {text: 'abcd'} and rig.ends() == {text: FinishReason.LENGTH}


def test_text_without_end_ends_at_its_limit_while_actions_keep_their_rate():
    case = json.loads((CASES / '58-repetition-without-end' / 'tokens.json').read_text())
    rig = warm(Rig(branch_tokens=200))
    most = case['limits']['max_new_tokens']
    rig.model.says['speech'] = ''.join(case['repeat'] * 1000).encode()
    rig.act_every(0.5, rig.clock.now + 10)
    text = rig.submit(max_tokens=most)
    rig.run(rig.clock.now + 10.1)
    assert rig.ends() == {text: FinishReason.LENGTH} and len(rig.texts()[text]) == most
    assert len(rig.chunks()) == 20 and rig.engine.statistics.counters.deadline_misses == 0


def test_any_of_several_end_tokens_ends_the_text_and_is_not_spoken():
    case = json.loads((CASES / '59-two-end-tokens' / 'setup.json').read_text())
    assert len(case['generation_config']['eos_token_id']) == 1  # the other one is the tokenizer's
    from dataclasses import replace
    rig = Rig()
    rig.model.spec = replace(rig.model.spec, stop_tokens=frozenset({EOS, 7}))
    rig.model.says['speech'] = b'Good morning.\x07user secret'
    rig.observe(1)
    text = rig.submit(max_tokens=50)
    rig.run()
    assert rig.texts() == {text: 'Good morning.'} and rig.ends() == {text: FinishReason.STOP}


def test_text_without_a_prompt_begins_with_what_the_prefix_says():
    rig = Rig()
    rig.model.says['unprompted'] = b'xy'
    rig.observe(1)
    texts = [rig.submit('unprompted'), rig.submit('speech', max_tokens=2), rig.submit('unprompted')]
    rig.run()
    assert rig.texts() == dict(zip(texts, ('xy', 'ab', 'xy')))


def test_characters_split_over_tokens_are_never_sent_in_halves():
    rig = Rig()
    spoken = 'Hi 👋🏽! é ☕'
    rig.model.says['speech'] = spoken.encode()
    rig.observe(1)
    text = rig.submit(max_tokens=100)
    rig.run()
    assert rig.texts() == {text: spoken}
    assert not any('\ufffd' in event.delta for event in rig.events)
    rig.submit(max_tokens=5)  # in the middle of the first emoji
    rig.run()
    assert rig.events[-1].delta.count('\ufffd') <= 1


def test_stream_interval_joins_pieces_and_loses_none():
    rig = Rig(model(decode=0.01), stream_interval=0.1)
    rig.observe(1)
    text = rig.submit(max_tokens=60)
    rig.run()
    assert rig.texts()[text] == ''.join(chr(ord('a') + i % 26) for i in range(60))
    times = [event.elapsed for event in rig.events]
    assert len(times) <= 8
    assert all(b - a >= 0.1 - 1e-9 for a, b in zip(times, times[1:-1]))


def test_question_between_frames_starts_without_a_prefill():
    rig = warm(Rig())
    rig.act_every(0.4, rig.clock.now + 0.8)
    rig.run(rig.clock.now + 0.45)
    assert rig.model.count('prefill') == 1
    question = rig.submit('answer', 'hm?', max_tokens=3)
    rig.run(rig.clock.now + 0.1)
    assert rig.ends() == {question: FinishReason.LENGTH}
    assert rig.model.count('prefill') == 1
    assert rig.events[-1].inputs.number == 1  # the frame that was there, not the newer observation


def test_text_on_a_frame_that_is_too_old_prefills_the_newest_and_the_action_uses_it():
    rig = Rig()
    rig.observe(1)
    rig.submit(max_tokens=1)
    rig.run()
    rig.clock.now += 1.0
    rig.observe(2)
    rig.submit(max_tokens=1)
    rig.run()
    assert [what for stage, _, _, what in rig.model.calls if stage == 'prefill'] == [1, 2]
    rig.engine.request_action(rig.clock.now)
    rig.run()
    assert rig.model.count('prefill') == 2 and rig.chunks()[0].inputs.number == 2


def test_text_is_about_the_newest_observation_also_when_stamps_run_backwards():
    rig = Rig()
    for number, age in ((1, 0.0), (2, 2.0)):
        rig.observe(number, age)
        rig.submit(max_tokens=1)
        rig.run()
    assert [event.inputs.number for event in rig.events] == [1, 2]


def test_all_texts_of_all_frames_decode_in_one_batch():
    rig = Rig(model(prefill=0, denoise=0, extend=0, decode=0.01))
    for number in range(1, 4):
        rig.observe(number)
        rig.submit(max_tokens=40)
        rig.engine.request_action(rig.clock.now)
        rig.run(rig.clock.now + 0.05)
    rig.run()
    batches = [len(what) for stage, _, _, what in rig.model.calls if stage == 'decode']
    assert max(batches) == 3 and batches == sorted(batches[:20]) + sorted(batches[20:], reverse=True)
    assert len({event.inputs.number for event in rig.events if hasattr(event, 'delta')}) == 3


def test_waiting_text_takes_a_slot_as_soon_as_it_is_free():
    rig = Rig(model(decode=0.01, extend=0.01), max_branches=2)
    rig.observe(1)
    short, long = rig.submit(max_tokens=3), rig.submit(max_tokens=50)
    late = rig.submit(max_tokens=3)
    rig.run()
    assert list(rig.ends()) == [short, late, long]


def test_last_branch_is_left_for_whoever_waits_for_an_answer():
    rig = Rig(model(decode=0.01, extend=0.01), max_branches=3)
    rig.observe(1)
    speech = [rig.submit(max_tokens=50, priority=1) for _ in range(3)]
    question = []
    rig.at(rig.clock.now + 0.2, lambda: question.append(rig.submit('answer', 'where?', max_tokens=5)))
    rig.run()
    ends = list(rig.ends())
    assert ends == [*question, *speech]
    first = next(event for event in rig.events if event.request.request_id == question[0])
    assert first.elapsed == pytest.approx(0.01, abs=0.011)


def test_priority_decides_who_gets_the_slot():
    rig = Rig(max_branches=1)
    rig.observe(1)
    ids = [rig.submit('memory', priority=2), rig.submit('speech', priority=1), rig.submit('answer', 'q', priority=0)]
    rig.run()
    assert list(rig.ends()) == ids[::-1]


# -- ends --------------------------------------------------------------------------------------------------------------

def test_cancel_between_decode_steps_frees_the_slot_at_once():
    rig = Rig(model(decode=0.01))
    rig.observe(1)
    text, other = rig.submit(max_tokens=50), rig.submit(max_tokens=20)
    free = []
    rig.at(rig.clock.now + 0.1, lambda: (rig.engine.cancel(text), free.append(rig.engine.cache.free_branches)))
    rig.run()
    assert free == [7]
    assert rig.ends() == {text: FinishReason.CANCELLED, other: FinishReason.LENGTH}
    assert 0 < len(rig.texts()[text]) < 10 and len(rig.texts()[other]) == 20


@pytest.mark.parametrize('mode', Mode)
def test_cancel_all_works_in_every_mode_for_waiting_and_running(mode):
    rig = Rig(model(decode=0.01), mode=mode)
    rig.observe(1)
    texts = [rig.submit(max_tokens=50) for _ in range(3)]
    cancelled = []
    rig.at(rig.clock.now + 0.1, lambda: cancelled.extend(rig.engine.cancel()))
    rig.run()
    assert sorted(cancelled) == texts and set(rig.ends().values()) == {FinishReason.CANCELLED}
    assert rig.engine.cache.free_branches == 8


def test_cancel_of_an_unknown_text_says_so():
    rig = Rig()
    rig.observe(1)
    text = rig.submit(max_tokens=1)
    rig.run()
    assert rig.engine.cancel(text) == [] and rig.engine.cancel(99) == []


@pytest.mark.parametrize('mode', Mode)
def test_text_that_takes_too_long_times_out(mode):
    rig = Rig(model(decode=0.01), mode=mode)
    rig.observe(1)
    text, other = rig.submit(max_tokens=100, timeout=0.305), rig.submit(max_tokens=10)
    rig.run()
    assert rig.ends()[text] is FinishReason.TIMED_OUT and 20 < len(rig.texts()[text]) < 32
    assert rig.ends()[other] is FinishReason.LENGTH


def test_waiting_text_times_out_in_time_though_others_go_on():
    rig = Rig(model(decode=0.01), max_branches=1)
    rig.observe(1)
    rig.submit(max_tokens=100)
    waiting = rig.submit(timeout=0.3)
    rig.run()
    end = next(event for event in rig.events if event.request.request_id == waiting)
    assert end.finish is FinishReason.TIMED_OUT and end.inputs is None
    assert end.elapsed == pytest.approx(0.3, abs=0.011)


def test_text_that_expired_before_it_came_ends_too():
    rig = Rig()
    rig.observe(1)
    text = rig.submit(timeout=-1.0)
    rig.run()
    assert rig.ends() == {text: FinishReason.TIMED_OUT} and not rig.model.calls


def test_text_without_any_frame_waits_then_times_out():
    rig = Rig()
    text = rig.submit(timeout=2.0)
    start = rig.clock.now
    rig.run()
    assert rig.ends() == {text: FinishReason.TIMED_OUT} and rig.clock.now == pytest.approx(start + 2.0)


def test_oldest_waiting_note_is_dropped_and_counted():
    rig = Rig()
    texts = []
    for _ in range(4):
        texts.append(rig.submit('memory', queue_limit=2, drop_oldest=True))
        rig.clock.now += 0.1
    assert rig.ends() == {texts[0]: FinishReason.DROPPED, texts[1]: FinishReason.DROPPED}
    assert rig.engine.statistics.counters.notes_dropped == 2
    rig.observe(1)
    rig.run()
    assert rig.ends()[texts[2]] is rig.ends()[texts[3]] is FinishReason.LENGTH


def test_speech_is_refused_with_a_reason_never_dropped():
    rig = Rig()
    texts = [rig.submit(queue_limit=2), rig.submit(queue_limit=2)]
    with pytest.raises(AdmissionError, match='2 requests of task speech wait') as refused:
        rig.submit(queue_limit=2)
    assert refused.value.refusal is Refusal.QUEUE_FULL
    rig.submit('memory', queue_limit=2)  # the limit is per task
    rig.observe(1)
    rig.run()
    assert all(rig.ends()[text] is FinishReason.LENGTH for text in texts)


@pytest.mark.parametrize('length', [99, 100, 10**7])
def test_prompt_that_does_not_fit_is_refused_and_a_huge_one_not_even_tokenized(length, monkeypatch):
    rig = Rig(branch_tokens=101)
    if length > 10**6:
        monkeypatch.setattr(rig.model.tokenizer, 'encode', lambda text: pytest.fail('tokenized'), raising=False)
    with pytest.raises(AdmissionError) as refused:
        rig.submit('answer', 'x' * length)
    assert refused.value.refusal is Refusal.PROMPT_TOO_LONG and 'shorten' in str(refused.value)
    rig.engine.check_integrity()


def test_longest_prompt_that_fits_gets_an_answer():
    rig = Rig(branch_tokens=101)
    rig.observe(1)
    text = rig.submit('answer', 'x' * 98)
    rig.run()
    assert rig.texts() == {text: 'ab'}


def test_window_never_overflows_whatever_is_asked():
    case = json.loads((CASES / '68-context-window-overflow' / 'requests.json').read_text())
    rig = Rig(branch_tokens=case['window_tokens'], max_branches=3)
    refused = []
    for number, request in enumerate(case['requests'], 1):
        rig.observe(number)
        if request['task'] == 'action':
            rig.engine.request_action(rig.clock.now)
        else:
            try:
                rig.submit('answer', 'x' * (request['tokens'] - 2), max_tokens=3, queue_limit=99)
            except AdmissionError:
                refused.append(request['tokens'])
        rig.run(rig.clock.now + 0.1)
    rig.run()
    assert len(rig.chunks()) == sum(r['task'] == 'action' for r in case['requests'])
    # 256 tokens fill the window and leave no room for an answer.
    assert sorted(set(refused)) == [256, 257, 300]
    assert set(rig.ends().values()) == {FinishReason.LENGTH}


def test_text_that_breaks_the_tokenizer_is_refused_and_the_others_go_on():
    rig = Rig()
    rig.observe(1)
    text = rig.submit()
    with pytest.raises(AdmissionError, match='UnicodeEncodeError') as refused:
        rig.submit('answer', 'half a pair: \ud83d')
    assert refused.value.refusal is Refusal.BAD_PROMPT
    rig.run()
    assert rig.ends() == {text: FinishReason.LENGTH}


def test_two_texts_with_one_id_are_refused():
    rig = Rig()
    rig.engine.submit(TextRequest(5, 'speech'))
    with pytest.raises(ValueError, match='5 is in use'):
        rig.engine.submit(TextRequest(5, 'memory'))


# -- faults of the model -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize('fault', ['extend', 'decode', 'undefined'])
def test_request_that_breaks_the_model_ends_with_error_and_the_others_go_on(fault):
    rig = Rig()
    bad = ord('X')
    if fault == 'undefined':
        rig.model.undefined = lambda content: bad in content
    else:
        rig.model.raises = lambda stage, what: stage == fault and any(bad in content for content in what)
    rig.observe(1)
    texts = [rig.submit('answer', 'one'), rig.submit('answer', 'X'), rig.submit('answer', 'two')]
    rig.run()
    assert [rig.ends()[text] for text in texts] == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    assert rig.texts()[texts[0]] == rig.texts()[texts[2]] == 'abcde'
    message = next(event.message for event in rig.events if event.finish is FinishReason.ERROR)
    assert 'NaN' in message if fault == 'undefined' else f'RuntimeError: {fault} failed' in message
    again = rig.submit('answer', 'three')
    rig.run()
    assert rig.texts()[again] == 'abcde'


def test_slot_of_a_broken_request_is_wiped():
    rig = Rig()
    rig.model.undefined = lambda content: True
    rig.observe(1)
    rig.submit()
    rig.run()
    assert not rig.engine.cache.branch_k.any()


def test_prefix_without_logits_ends_only_the_texts_that_need_them():
    rig = Rig()
    rig.model.raises = lambda stage, what: stage == 'prefix'
    rig.observe(1)
    texts = [rig.submit('unprompted'), rig.submit('speech')]
    rig.run()
    assert [rig.ends()[text] for text in texts] == [FinishReason.ERROR, FinishReason.LENGTH]


@pytest.mark.parametrize('mode', Mode)
def test_prefill_that_fails_for_a_text_ends_that_text(mode):
    rig = Rig(mode=mode)
    rig.model.raises = lambda stage, what: stage == 'prefill' and what == 1
    rig.observe(1)
    text = rig.submit()
    rig.run()
    assert rig.ends() == {text: FinishReason.ERROR}
    rig.observe(2)
    after = rig.submit()
    rig.run()
    assert rig.ends()[after] is FinishReason.LENGTH


@pytest.mark.parametrize('stage', ['prefill', 'denoise'])
def test_action_that_fails_raises_and_leaves_the_cache_whole(stage):
    rig = Rig(max_branches=1, max_frames=2)
    rig.observe(1)
    rig.submit(max_tokens=50)
    rig.run(rig.clock.now + 0.1)
    for number in (2, 3):
        rig.observe(number)
        rig.engine.request_action(rig.clock.now)
        rig.model.raises = lambda what, _: what == stage
        with pytest.raises(RuntimeError, match=f'{stage} failed'):
            rig.engine.run_cycle()
        rig.engine.check_integrity()
    rig.model.raises = lambda stage, what: False
    rig.engine.request_action(rig.clock.now)
    rig.run()
    assert rig.chunks()[-1].inputs.number == 3


@pytest.mark.parametrize('stage', ['prefill', 'denoise'])
def test_actions_that_fail_are_counted_until_there_are_too_many_in_a_row(stage):
    rig = Rig(max_branches=1, max_frames=2, failures_allowed=2)
    rig.observe(0)
    text = rig.submit(max_tokens=900)
    rig.run(rig.clock.now + 0.1)

    def act(number, fails):
        rig.observe(number)
        rig.model.raises = lambda what, _: fails and what == stage
        rig.engine.request_action(rig.clock.now)
        rig.engine.run_cycle()
        rig.engine.check_integrity()

    for number, fails in enumerate((True, True, False, True, True), start=1):
        act(number, fails)
    failed = [event for event in rig.events if isinstance(event, ActionFailed)]
    assert [event.frame_number for event in failed] == [1, 2, 4, 5]
    assert failed[0].reason == f'RuntimeError: {stage} failed'
    assert [chunk.inputs.number for chunk in rig.chunks()] == [3]
    counters = rig.engine.status().counters
    assert (counters.action_failures, counters.deadline_misses) == (4, 5)  # the fake chunk is late as well
    assert text not in rig.ends()  # texts go on meanwhile
    with pytest.raises(RuntimeError, match=f'{stage} failed'):
        act(6, True)
    rig.engine.check_integrity()


def test_frame_of_numbers_that_are_not_finite_is_zeroed_before_it_is_used_again():
    rig = Rig(max_branches=1, max_frames=2)
    prefill, denoise = rig.model.prefill, rig.model.denoise

    def broken(inputs, instruction, cache, frame):
        prefill(inputs, instruction, cache, frame)
        cache.frame_v[:, frame] = torch.nan

    rig.model.prefill, rig.model.denoise = broken, lambda *arguments: denoise(*arguments) * torch.nan
    rig.observe(1)
    rig.engine.request_action(rig.clock.now)
    rig.run()
    assert np.isnan(rig.chunks()[0].actions).all()
    assert rig.engine.status().counters.action_failures == 1
    assert rig.engine.cache.frame_kv.isfinite().all()
    rig.engine.check_integrity()


def test_choice_of_a_token_that_fails_ends_that_text_alone():
    rig = Rig()
    rig.observe(1)
    sampled = SamplingParams(max_tokens=20, temperature=1.0)
    first, second = rig.submit(sampling=sampled), rig.submit(sampling=sampled)
    rig.engine._texts.find(first)[0].sampler.choose = None  # to call it raises
    rig.run()
    assert rig.ends() == {first: FinishReason.ERROR, second: FinishReason.LENGTH}


# -- actions -----------------------------------------------------------------------------------------------------------

def test_actions_keep_their_deadlines_and_no_text_work_runs_into_them():
    rig = warm(Rig(model(prefill=0.03, denoise=0.05, extend=0.02, decode=0.007)))
    start = rig.clock.now
    rig.act_every(0.2, start + 10)
    for i in range(100):
        rig.at(start + i * 0.1 + 0.013, lambda: rig.submit(max_tokens=20, queue_limit=99))
    rig.run(start + 10.3)
    chunks = rig.chunks()
    assert len(chunks) == 50 and all(chunk.finished <= chunk.deadline for chunk in chunks)
    assert rig.engine.statistics.counters.deadline_misses == rig.engine.statistics.counters.late_decodes == 0
    for stage, begin, end, _ in rig.model.calls:
        if stage in ('extend', 'decode'):
            due = next((chunk.deadline - 0.08 for chunk in chunks if chunk.started > begin), float('inf'))
            assert end <= due + 1e-9, (stage, begin, due)
    # The time in between is used.
    assert set(rig.ends().values()) == {FinishReason.LENGTH} and len(rig.ends()) == 100


@pytest.mark.parametrize('phase', [0.0, 0.05, 0.1, 0.15, 0.19])
def test_frame_that_comes_late_in_the_cycle_makes_no_action_late(phase):
    """Frames at the rate of the actions, in any phase: the newest frame may come just before the action begins."""
    rig = warm(Rig(model(prefill=0.05, denoise=0.03, extend=0.004, decode=0.004)))
    start = rig.clock.now
    rig.submit(max_tokens=110)
    for i in range(20):
        rig.at(start + i * 0.2 + phase, lambda i=i: rig.observe(i + 1))
        rig.at(start + i * 0.2, lambda i=i: rig.engine.request_action(start + (i + 1) * 0.2))
    rig.run(start + 4)
    late = [chunk.finished - chunk.deadline for chunk in rig.chunks()]
    # Only a frame that comes after the action should have begun can delay it, and by no more than its prefill.
    assert max(late) <= (max(0.0, phase - 0.2 + 0.08) if phase < 0.165 else 0.0) + 1e-9
    assert len(rig.chunks()) >= 19 and len(rig.texts()[1]) > 100


def test_long_prompt_is_not_begun_in_the_gap_before_the_next_deadline_is_set():
    rig = warm(Rig(model(prefill=0.03, denoise=0.05, extend=0.15, decode=0.007)))
    start = rig.clock.now
    rig.act_every(0.2, start + 3)
    rig.at(start + 0.99, lambda: rig.submit(timeout=1.5))
    rig.run(start + 3.1)
    assert len(rig.chunks()) == 15 and rig.engine.statistics.counters.deadline_misses == 0
    assert set(rig.ends().values()) == {FinishReason.TIMED_OUT}  # it never fits: 0.15 + 0.08 is more than a cycle


class SlowReader(FakeModel):
    """Takes a millisecond for every token of a prompt."""

    def extend(self, cache, slots, tokens):
        self.seconds['extend'] = 0.001 * len(slots) * max(map(len, tokens))
        return super().extend(cache, slots, tokens)


def test_prompt_longer_than_a_cycle_is_taken_in_piece_by_piece_between_actions():
    rig = warm(Rig(SlowReader(FakeClock(), prefill=0.03, denoise=0.05, decode=0.005), branch_tokens=600))
    for tokens in range(16, 520, 8):  # it knows what prompts cost
        rig.engine.costs.observe(Stage.EXTEND, tokens, 0.001 * tokens)
    rig.engine.costs.relax([Stage.EXTEND] * 60)
    rig.model.says['x' * 400] = b'yes'
    start = rig.clock.now
    rig.act_every(0.2, start + 3)
    rig.at(start + 0.45, lambda: rig.submit('answer', 'x' * 400))
    rig.at(start + 0.46, lambda: rig.submit(max_tokens=30))  # another text goes on beside it
    rig.run(start + 3.1)
    assert rig.texts()[1] == 'yes' and set(rig.ends()) == {1, 2}
    assert len(rig.chunks()) == 15 and rig.engine.statistics.counters.deadline_misses == 0
    pieces = [end - begin for stage, begin, end, what in rig.model.calls if stage == 'extend' and end - begin > 0.007]
    assert len(pieces) > 4 and sum(pieces) == pytest.approx(0.4, abs=0.03) and max(pieces) < 0.12


@pytest.mark.parametrize('cancelled', [True, False])
def test_text_whose_prompt_is_half_taken_in_can_be_cancelled_and_times_out(cancelled):
    rig = warm(Rig(SlowReader(FakeClock(), prefill=0.03, denoise=0.05, decode=0.005), branch_tokens=600))
    for tokens in range(16, 520, 8):
        rig.engine.costs.observe(Stage.EXTEND, tokens, 0.001 * tokens)
    start = rig.clock.now
    rig.act_every(0.2, start + 2)
    rig.at(start + 0.45, lambda: rig.submit('answer', 'x' * 400, timeout=None if cancelled else 0.4))
    if cancelled:
        rig.at(start + 0.9, lambda: rig.engine.cancel(1))
    rig.run(start + 2)
    assert rig.ends() == {1: FinishReason.CANCELLED if cancelled else FinishReason.TIMED_OUT}
    assert rig.engine.cache.free_branches == rig.engine.cache.spec.branches


def test_text_goes_on_when_an_expected_deadline_is_never_set():
    rig = warm(Rig(model(prefill=0.03, denoise=0.05, extend=0.15, decode=0.007)))
    rig.observe(1)
    for deadline in (0.2, 0.4):
        rig.engine.request_action(rig.clock.now + deadline)
    rig.submit(max_tokens=60)
    rig.run()
    assert set(rig.ends().values()) == {FinishReason.LENGTH} and len(rig.chunks()) == 2


def test_every_action_is_made_of_the_newest_observation():
    rig = warm(Rig())
    start = rig.clock.now
    rig.act_every(0.5, start + 3)
    rig.at(start + 1.2, lambda: rig.observe(77))
    rig.run(start + 3.1)
    assert [chunk.inputs.number for chunk in rig.chunks()] == [1, 2, 77, 4, 5, 6]
    assert [what for stage, _, _, what in rig.model.calls if stage == 'denoise'] == [1, 2, 77, 4, 5, 6]


def test_noise_depends_on_frame_and_seed_alone():
    def actions(seed, number, text=False):
        rig = Rig(seed=seed)
        if text:
            rig.observe(3)
            rig.submit(sampling=SamplingParams(max_tokens=3, temperature=1.0))
            rig.run()
        rig.observe(number)
        rig.engine.request_action(rig.clock.now)
        rig.run()
        return rig.chunks()[0].actions - number % 1000

    assert np.array_equal(actions(0, 5), actions(0, 5, text=True))
    assert not np.array_equal(actions(0, 5), actions(0, 6))
    assert not np.array_equal(actions(0, 5), actions(1, 5))
    assert actions(2**31 - 1, 2**64 - 1).shape == (3, 2)


def test_stale_frame_is_not_acted_on_and_counted():
    rig = Rig(max_frame_age=0.5)
    rig.observe(1)
    rig.clock.now += 0.6
    rig.engine.request_action(rig.clock.now)
    rig.run()
    assert not rig.chunks() and not rig.model.calls
    assert '0.60 s old, max_frame_age is 0.50 s' in rig.skipped()[0].reason
    counters = rig.engine.statistics.counters
    assert (counters.stale_frames, counters.deadline_misses) == (1, 1)
    rig.observe(2)
    rig.engine.request_action(rig.clock.now)
    rig.run()
    assert len(rig.chunks()) == 1


def test_frame_from_the_future_is_not_acted_on():
    rig = Rig(max_frame_age=0.5)
    rig.observe(1, age=-3.0)
    rig.engine.request_action(rig.clock.now)
    rig.run()
    assert not rig.chunks() and 'in the future' in rig.skipped()[0].reason


def test_no_frame_is_told_once_per_deadline_and_ends_no_text():
    rig = Rig()
    for i in range(3):
        rig.engine.request_action(rig.clock.now + i)
    rig.run()
    assert [event.reason for event in rig.skipped()] == ['no frame has arrived'] * 3
    assert rig.engine.statistics.counters.stale_frames == 0


def test_actions_slower_than_their_period_go_on_at_the_rate_possible():
    rig = warm(Rig(model(prefill=0.1, denoise=0.2, decode=0.01, extend=0.01)))
    start = rig.clock.now
    rig.act_every(0.2, start + 12)
    for i in range(20):
        rig.at(start + i * 0.5, lambda: rig.submit(max_tokens=20, timeout=2.0, queue_limit=99))
    rig.run(start + 12)
    assert len(rig.chunks()) >= 12 / 0.3 - 2
    gaps = np.diff([chunk.finished for chunk in rig.chunks()])
    assert gaps.max() < 0.35
    # Every deadline is answered or counted, and the queue of deadlines does not grow.
    answered = rig.engine.statistics.counters
    assert answered.deadline_misses >= 60 - 3
    assert len(rig.engine._deadlines) <= 2
    assert set(rig.ends().values()) <= {FinishReason.TIMED_OUT, FinishReason.LENGTH}


def test_one_hiccup_costs_no_more_than_the_chunk_that_it_delayed():
    rig = warm(Rig(model(prefill=0.03, denoise=0.03, decode=0.01)))
    start = rig.clock.now
    rig.act_every(0.2, start + 4)
    rig.submit(max_tokens=100)

    def slow_step():
        rig.clock.now += 0.1  # as if the machine stood still

    rig.at(start + 1.1, slow_step)
    rig.run(start + 4.1)
    assert len(rig.chunks()) == 20
    assert rig.engine.statistics.counters.deadline_misses <= 1


def test_new_instruction_prefills_again_only_when_the_prefix_holds_it():
    for in_prefix, prefills in ((True, 2), (False, 1)):
        rig = Rig(model(in_prefix=in_prefix))
        rig.observe(1)
        for instruction in ('walk', 'sit'):
            rig.engine.set_instruction(instruction)
            rig.engine.request_action(rig.clock.now)
            rig.run()
        assert rig.model.count('prefill') == prefills and len(rig.chunks()) == 2
        rig.engine.set_instruction('sit')
        rig.engine.request_action(rig.clock.now)
        rig.run()
        assert rig.model.count('prefill') == prefills


def test_no_action_comes_after_they_are_not_wanted_any_more():
    rig = Rig()
    rig.observe(1)
    rig.engine.request_action(rig.clock.now + 1)
    rig.engine.cancel_action()
    rig.run()
    assert not rig.chunks() and not rig.skipped()


def test_deadline_far_away_blocks_no_nearer_one():
    """As when simulated time stood still for a while and was taken for slow."""
    rig = warm(Rig(model(prefill=0.01, denoise=0.01), max_frame_age=60.0))
    rig.observe(1)
    for deadline in (30.0, 0.1, 0.4):
        rig.engine.request_action(rig.clock.now + deadline)
    start = rig.clock.now
    rig.run()
    assert [chunk.deadline - start for chunk in rig.chunks()] == pytest.approx([0.1, 0.4, 30.0])
    assert all(chunk.finished <= chunk.deadline for chunk in rig.chunks())


def test_fixed_number_of_decode_steps_per_cycle():
    rig = warm(Rig(model(prefill=0.02, denoise=0.02, extend=0.001, decode=0.005), tokens_per_cycle=5))
    start = rig.clock.now
    rig.act_every(0.2, start + 2)
    rig.at(start, lambda: rig.submit(max_tokens=100))
    rig.run(start + 1.95)
    times = [chunk.started for chunk in rig.chunks()]
    decodes = [begin for stage, begin, _, _ in rig.model.calls if stage == 'decode']
    for a, b in zip(times, times[1:]):
        assert sum(a < begin < b for begin in decodes) == 5
    rig.engine.cancel_action()
    rig.run()
    assert set(rig.ends().values()) == {FinishReason.LENGTH}


def test_text_is_not_put_off_for_ever_by_one_bad_measurement():
    rig = warm(Rig(model(prefill=0.02, denoise=0.02, extend=0.01, decode=0.01)))
    for size in (4, 8):
        rig.engine.costs._estimates[Stage.EXTEND].pop(size, None)
    for _ in range(3):
        rig.engine.costs.observe(Stage.EXTEND, 2, 0.01)
    rig.engine.costs._estimates[Stage.EXTEND][2].deviation = 0.2  # longer than a cycle
    start = rig.clock.now
    rig.act_every(0.2, start + 4)
    rig.at(start + 0.3, lambda: rig.submit(max_tokens=10))
    rig.run(start + 4)
    assert set(rig.ends().values()) == {FinishReason.LENGTH}


# -- frames ------------------------------------------------------------------------------------------------------------

def test_texts_of_the_oldest_frame_end_only_when_frames_are_scarce():
    for frames, expected in ((3, FinishReason.FRAME_BUDGET), (6, None)):
        rig = Rig(model(prefill=0.01, denoise=0.01, extend=0.001, decode=0.001), max_branches=4, max_frames=frames)
        texts = []
        for number in range(1, 5):
            rig.observe(number)
            rig.engine.request_action(rig.clock.now)
            rig.run(rig.clock.now + 0.03)
            texts.append(rig.submit(max_tokens=120))
            rig.run(rig.clock.now + 0.005)
        assert rig.ends().get(texts[0]) is expected
        assert all(text not in rig.ends() for text in texts[2:])
        assert len(rig.chunks()) == 4
        rig.engine.cancel()
        assert rig.engine.cache.spec.frames - rig.engine.cache.free_frames == 1


def test_oldest_frame_is_the_one_prefilled_first_whatever_the_numbers_say():
    """Frame numbers begin anew when the perception node restarts."""
    rig = Rig(model(prefill=0.01, denoise=0.01, extend=0.001, decode=0.001), max_branches=4, max_frames=2)
    texts = []
    for number in (500, 1, 2, 3):
        rig.observe(number)
        rig.engine.request_action(rig.clock.now)
        rig.run(rig.clock.now + 0.03)
        texts.append(rig.submit(max_tokens=120))
        rig.run(rig.clock.now + 0.005)
    assert len(rig.chunks()) == 4
    assert list(rig.ends()) == texts[:2] and set(rig.ends().values()) == {FinishReason.FRAME_BUDGET}


def test_two_frames_are_enough_for_texts_on_one_of_them():
    """The newest frame without texts makes room for the next: the texts of the other go on."""
    rig = Rig(model(prefill=0.01, denoise=0.01, extend=0.001, decode=0.001), max_branches=2, max_frames=2)
    rig.observe(1)
    text = rig.submit(max_tokens=100)
    for number in range(2, 6):
        rig.run(rig.clock.now + 0.01)
        rig.observe(number)
        rig.engine.request_action(rig.clock.now)
    rig.run()
    assert rig.ends() == {text: FinishReason.LENGTH} and len(rig.chunks()) == 4


def test_stale_observation_ends_no_text_for_want_of_frames():
    rig = Rig(model(prefill=0.01, denoise=0.01, extend=0.001, decode=0.001), max_branches=2, max_frames=2,
              max_frame_age=0.1)
    for number in (1, 2):
        rig.observe(number)
        rig.engine.request_action(rig.clock.now)
        rig.run(rig.clock.now + 0.021)
        rig.submit(max_tokens=110)
        rig.run(rig.clock.now + 0.005)
    rig.observe(3, age=0.2)
    rig.engine.request_action(rig.clock.now)
    rig.run()
    assert len(rig.skipped()) == 1 and set(rig.ends().values()) == {FinishReason.LENGTH}


def test_jump_of_the_clock_forgets_frames_but_lets_texts_go_on():
    rig = Rig(model(decode=0.01))
    rig.observe(1)
    text = rig.submit(max_tokens=30)
    rig.at(rig.clock.now + 0.15, rig.engine.forget_observations)
    rig.run()
    assert rig.ends() == {text: FinishReason.LENGTH}
    assert rig.engine.cache.free_frames == rig.engine.cache.spec.frames
    waiting = rig.submit()
    rig.run()
    assert waiting not in rig.ends()
    rig.observe(2)
    rig.run()
    assert rig.ends()[waiting] is FinishReason.LENGTH


def test_end_leaves_nothing_behind_and_the_engine_can_go_on():
    rig = warm(Rig())
    start = rig.clock.now
    rig.act_every(0.2, start + 1)
    texts = [rig.submit(max_tokens=100, queue_limit=99) for _ in range(10)]
    rig.run(start + 0.9)
    rig.engine.end()
    rig.engine.check_integrity()
    cache = rig.engine.cache
    assert cache.used_bytes() == 0 and set(rig.ends()) == set(texts)
    made = len(rig.chunks())
    rig.run()
    assert len(rig.chunks()) == made
    rig.observe(1)
    rig.engine.request_action(rig.clock.now)
    rig.run()
    assert len(rig.chunks()) == made + 1


# -- figures -----------------------------------------------------------------------------------------------------------

def test_warm_up_measures_every_stage_and_leaves_nothing():
    rig = Rig(model(prefill=0.03, denoise=0.05, extend=0.02, decode=0.007), max_branches=6)
    image = np.zeros((2, 2, 3), np.uint8)
    rig.engine.warm_up(PolicyInput(Observation(1, 0, {'head': image})))
    rig.engine.check_integrity()
    costs = rig.engine.costs
    assert costs.predict(Stage.PREFILL, deviations=0) == pytest.approx(0.03)
    assert costs.predict(Stage.DENOISE, deviations=0) == pytest.approx(0.05)
    for size in range(1, 7):
        assert costs.predict(Stage.DECODE, size, deviations=0) == pytest.approx(0.007)
        assert costs.predict(Stage.EXTEND, 8 * size, deviations=0) == pytest.approx(0.02)
    status = rig.engine.status()
    assert (status.kv_bytes, status.kv_bytes_peak, status.counters.tokens, status.frames_resident) == (0, 0, 0, 0)
    assert not rig.events


def test_first_round_of_the_warm_up_does_not_count():
    rig = Rig(model(denoise=5.0))

    def slow_at_first(stage, what):
        if stage == 'denoise':
            rig.model.seconds['denoise'] = 0.05
        return False

    rig.model.raises = slow_at_first
    warm(rig)
    assert rig.engine.costs.predict(Stage.DENOISE) < 0.1


def test_cost_of_prompts_is_that_of_the_padded_batch():
    rig = Rig()
    rig.observe(1)
    rig.submit(max_tokens=1)
    rig.submit('answer', 'x' * 20, max_tokens=1)
    rig.run()
    assert list(rig.engine.costs._estimates[Stage.EXTEND]) == [48]  # 2 x 22, in steps of 8


def test_sampling_counts_as_part_of_a_decode_step(monkeypatch):
    from oxygen_ros.engine import texts
    rig = Rig(model(extend=0.01, decode=0.01))
    choose = texts.choose_tokens

    def slow(*arguments):
        rig.clock.now += 0.02
        return choose(*arguments)

    monkeypatch.setattr(texts, 'choose_tokens', slow)
    rig.observe(1)
    rig.submit(max_tokens=5)
    rig.run()
    assert rig.engine.costs.predict(Stage.DECODE, deviations=0) == pytest.approx(0.03)


def test_status_tells_what_is_there():
    rig = Rig(model(decode=0.01), max_branches=2)
    rig.observe(1)
    for _ in range(3):
        rig.submit(max_tokens=50)
    rig.engine.request_action(rig.clock.now)
    rig.run(rig.clock.now + 0.3)
    status, cache = rig.engine.status(), rig.engine.cache
    assert (status.running, status.waiting, status.frames_resident, status.counters.chunks) == (2, 1, 1, 1)
    assert status.kv_bytes == status.kv_bytes_peak == cache.spec.frame_slot_bytes() + 2 * cache.spec.branch_slot_bytes()
    assert status.kv_bytes_allocated == cache.spec.total_bytes() <= status.kv_bytes_budget
    assert status.tokens_per_second > 0 and status.decode_step == pytest.approx(0.01)


def test_late_decodes_are_counted():
    rig = warm(Rig(model(prefill=0.01, denoise=0.01, extend=0.01, decode=0.01)))
    rig.observe(1)
    rig.engine.request_action(rig.clock.now + 0.2)
    rig.submit(max_tokens=60)
    slow = rig.clock.now + 0.1
    rig.model.raises = lambda stage, what: (setattr(rig.model, 'seconds', {
        **rig.model.seconds, 'decode': 0.5 if rig.clock.now > slow and not rig.chunks() else 0.01}), False)[1]
    rig.run()
    assert rig.engine.statistics.counters.late_decodes == 1
    assert rig.engine.statistics.counters.deadline_misses == 1


def test_late_decodes_are_counted_for_a_fixed_number_of_steps_too():
    rig = warm(Rig(model(prefill=0.02, denoise=0.02, extend=0.001, decode=0.05), tokens_per_cycle=5))
    start = rig.clock.now
    rig.act_every(0.2, start + 2)
    rig.at(start, lambda: rig.submit(max_tokens=100))
    rig.run(start + 2)
    assert rig.engine.statistics.counters.late_decodes >= 8


@pytest.mark.parametrize('wrong', [{'max_branches': 0}, {'branch_tokens': 7}, {'max_frames': -1}, {'max_frames': 1},
                                   {'denoise_steps': -1}, {'max_frame_age': float('nan')}, {'stream_interval': -0.1},
                                   {'branch_tokens': 1001}, {'kv_budget_mib': 0.001}])
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError):
        Rig(**wrong)
    assert EngineConfig().max_branches == 8


def test_random_life_keeps_the_cache_whole_and_ends_every_text_once():
    random = np.random.default_rng(4)
    for frames in (2, 3, 0):
        rig = Rig(model(prefill=0.01, denoise=0.02, extend=0.004, decode=0.003), max_branches=3, max_frames=frames,
                  branch_tokens=40)
        start, texts = rig.clock.now, []

        def submit(rig=rig, texts=texts):
            task = ('speech', 'memory', 'answer', 'unprompted')[random.integers(4)]
            try:
                texts.append(rig.submit(task, 'x' * int(random.integers(30)), int(random.integers(1, 60)),
                                        float(random.uniform(0.0, 1.5)), queue_limit=3, drop_oldest=task == 'memory',
                                        priority=int(random.integers(3))))
            except AdmissionError:
                pass

        rig.act_every(0.1, start + 5)
        for time in random.uniform(0, 5, 300):
            rig.at(start + time, submit)
        for time in random.uniform(0, 5, 30):
            rig.at(start + time, lambda rig=rig, texts=texts: rig.engine.cancel(
                texts[random.integers(len(texts))] if texts else 1))
        for time in random.uniform(0, 5, 5):
            rig.at(start + time, rig.engine.forget_observations)
        rig.model.undefined = lambda content: random.random() < 0.002
        rig.model.raises = lambda stage, what: stage in ('extend', 'decode') and random.random() < 0.002
        rig.run(start + 7)
        assert set(rig.ends()) == set(texts) and len(rig.chunks()) > 40
        assert rig.engine.cache.free_branches == 3
        assert torch.isfinite(rig.engine.cache.branch_k).all()
