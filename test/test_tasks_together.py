"""Acting, speaking, remembering, service calls: all at once, and still every action comes in its time."""

import json
from pathlib import Path

import pytest
from engine_fakes import FakeClock, FakeModel, Rig

from oxygen_ros.engine.requests import AdmissionError, BargeIn, FinishReason

CASES = Path(__file__).parent / 'data' / 'cases'
UNTIL = 120.0


def warm(rig):
    """Let the cost model see every stage, as the warm-up of the node does."""
    rig.observe(0)
    rig.engine.warm_up(rig.engine._observation)
    rig.engine.forget_observations()


def life(busy, period=0.25):
    rig = Rig(FakeModel(FakeClock(), prefill=0.03, denoise=0.05, extend=0.012, decode=0.008), max_branches=6,
              branch_tokens=300)
    warm(rig)
    start = rig.clock.now
    rig.act_every(period, until=start + 20)
    if busy:
        def submit(*arguments, **fields):
            try:
                rig.submit(*arguments, **fields)
            except AdmissionError:
                pass  # a full queue is told, and delays nobody

        for number in range(28):
            rig.at(start + 0.7 * number, lambda number=number: submit(
                'answer', f'question {number}', max_tokens=200, conversation='talk',
                barge_in=list(BargeIn)[number % 3]))
        for number in range(40):
            rig.at(start + 0.11 + 0.5 * number, lambda: submit('memory', max_tokens=60, priority=3, queue_limit=1,
                                                               drop_oldest=True))
        for number in range(20):
            rig.at(start + 0.3 + number, lambda: submit('speech', max_tokens=60, priority=2, timeout=5.0))
            rig.at(start + 0.9 + number, lambda number=number: rig.engine.cancel(number))
            rig.at(start + 0.95 + number, rig.engine.status)
    rig.run(start + 21)
    return rig


def test_action_rate_is_the_same_with_everything_else_going_on():
    quiet, busy = life(False), life(True)
    assert len(quiet.chunks()) == len(busy.chunks()) == 80
    assert [chunk.inputs.number for chunk in busy.chunks()] == [chunk.inputs.number for chunk in quiet.chunks()]
    assert all(chunk.finished <= chunk.deadline + 1e-9 for chunk in busy.chunks())
    assert busy.engine.statistics.counters.deadline_misses == 0
    assert busy.engine.statistics.counters.tokens > 1000
    assert {FinishReason.LENGTH, FinishReason.SUPERSEDED, FinishReason.CANCELLED} <= set(busy.ends().values())


def test_slow_phase_of_a_periodic_task_is_followed_by_no_burst():
    """Case 93: what could not be done in its time is dropped and counted, not made up for."""
    scenario = json.loads((CASES / '93-slow-callback-then-burst' / 'scenario.json').read_text())
    gap = json.loads((CASES / '93-slow-callback-then-burst' / 'case.json').read_text())['expected']['min_gap_after_s']
    model = FakeModel(FakeClock(), prefill=0.0, extend=0.0, decode=0.01)
    rig = Rig(model)
    rig.model.says['memory'] = b'x'
    seconds = iter(scenario['callback_seconds'])
    begun = []
    extend = model.extend

    def slow(cache, slots, tokens):
        if any(len(new) > 1 for new in tokens):
            begun.append(rig.clock.now)
            rig.clock.now += next(seconds, 0.01)
        return extend(cache, slots, tokens)

    model.extend = slow
    rig.observe(1)
    start, period = rig.clock.now, scenario['period_s']
    for number in range(14):
        rig.at(start + number * period, lambda: rig.submit('memory', queue_limit=1, drop_oldest=True, priority=3))
    rig.run()
    slow_calls = sum(second > period for second in scenario['callback_seconds'])
    gaps = [after - before for before, after in zip(begun[slow_calls + 1:], begun[slow_calls + 2:])]
    assert gaps and all(found >= gap for found in gaps)
    assert len(begun) < 14
    dropped = rig.engine.statistics.counters.notes_dropped
    assert dropped == 14 - len(begun) > 0


@pytest.mark.parametrize('running', [0, 3])
def test_answer_on_an_existing_frame_begins_without_a_prefill_whatever_decodes(running):
    rig = Rig(FakeModel(FakeClock(), prefill=0.5), max_branches=6)
    rig.observe(1)
    for _ in range(running + 1):
        rig.submit('speech', max_tokens=200, priority=2)
    rig.run(rig.clock.now + 0.6)
    prefills, asked = rig.model.count('prefill'), rig.clock.now
    number = rig.submit('answer', 'what?')
    rig.run(asked + 0.2)
    first = next(event for event in rig.events if event.request.request_id == number)
    assert first.delta and first.elapsed <= 0.01 + 0.01 + 1e-9  # a step that ran already, and its own prompt
    assert rig.model.count('prefill') == prefills
