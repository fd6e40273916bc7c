"""
The modes isolated, shared_kv and continuous_batching give the same actions and the same text.

All are compared with the model alone: prefill, denoise, and one token after the other, with no engine at all.
"""

import functools
import json
from pathlib import Path

import pytest
import torch
from engine_fakes import FakeClock
from small_policy import policy_input, small_policy

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.requests import ActionChunk, FinishReason, SamplingParams, TextDelta, TextRequest
from oxygen_ros.engine.sampling import Sampler, choose_tokens
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig

CASES = Path(__file__).parent / 'data' / 'cases'
INSTRUCTION = 'pick the red cup'
TOKENS = 40
QUESTIONS = ('where is the cup', 'what is left of the big green ball on the table', 'hi')


@pytest.fixture(scope='module')
def model():
    return small_policy()


class TickingClock(FakeClock):
    """Every look at it takes a millisecond, so that all work takes some time."""

    def __call__(self):
        self.now += 0.001
        return self.now


@functools.cache
@torch.inference_mode()
def actions_alone(model, number, noise_seed):
    """Return the actions of a frame, computed without an engine."""
    cache = UnifiedKVCache(model.spec.cache_spec(2, 1, 128))
    frame = cache.acquire_frame(0)
    model.prefill(policy_input(number), INSTRUCTION, cache, frame)
    noise = torch.randn((model.spec.horizon, model.spec.action_dim),
                        generator=torch.Generator().manual_seed(noise_seed))
    return model.denoise(cache, frame, noise, model.spec.denoise_steps)


@functools.cache
@torch.inference_mode()
def text_alone(model, number, task, question, sampling):
    """Return a text about a frame, computed without an engine, token by token."""
    cache = UnifiedKVCache(model.spec.cache_spec(2, 1, 128))
    frame = cache.acquire_frame(0)
    model.prefill(policy_input(number), INSTRUCTION, cache, frame)
    branch, sampler = cache.open_branch(frame), Sampler(sampling)
    suppressed, text = torch.tensor(model.spec.suppressed_tokens), b''
    prompt = model.branch_prompt(task, question)
    for _ in range(sampling.max_tokens):
        for token in prompt:
            logits = model.extend(cache, [branch], [[token]])
        token = choose_tokens([sampler], logits, suppressed)[0]
        if token in model.spec.stop_tokens:
            break
        text += model.tokenizer.token_bytes(token)
        prompt = [token]
    return text.decode().removeprefix(' ')


def requests_of(frame, texts, temperature):
    kinds = [('speech', ''), *(('answer', question) for question in QUESTIONS), ('memory', '')]
    for i in range(texts):
        task, text = kinds[(frame + i) % len(kinds)]
        yield TextRequest(100 * frame + i + 1, task, text,
                          SamplingParams(3 + (7 * i + 5 * frame) % TOKENS, temperature, 0.9 if temperature else 1.0,
                                         seed=10 * frame + i), priority=0, queue_limit=99)


def run(model, mode, branches, texts, temperature=0.0, frames=5, **scheduler):
    """Run some frames with `texts` new texts on each; return the events in order."""
    clock, events = TickingClock(), []
    config = EngineConfig(SchedulerConfig(mode, **scheduler), max_branches=branches, seed=3)
    engine = Engine(model, config, events.append, clock, lambda: int(clock.now * 1e9))
    engine.set_instruction(INSTRUCTION)
    for number in range(1, frames + 1):
        engine.observe(policy_input(number, int(clock.now * 1e9)))
        engine.request_action(clock.now + 0.05)
        for request in requests_of(number, texts, temperature):
            engine.submit(request)
        while not (events and isinstance(events[-1], ActionChunk) and events[-1].inputs.number == number):
            engine.run_cycle()
            engine.check_integrity()
    engine.cancel_action()
    while engine.run_cycle() is None:
        engine.check_integrity()
    assert engine.cache.free_branches == branches
    return events


def check(model, events, texts, frames=5):
    chunks = [event for event in events if isinstance(event, ActionChunk)]
    assert [chunk.inputs.number for chunk in chunks] == list(range(1, frames + 1))
    for chunk in chunks:
        expected = actions_alone(model, chunk.inputs.number, 3 * 1_000_003 + chunk.inputs.number)
        torch.testing.assert_close(torch.from_numpy(chunk.actions), expected, rtol=0, atol=1e-5)
    spoken: dict[int, str] = {}
    ends = {}
    for event in events:
        if isinstance(event, TextDelta):
            spoken[event.request.request_id] = spoken.get(event.request.request_id, '') + event.delta
            if event.finish:
                ends[event.request.request_id] = event
    assert len(ends) == frames * texts
    for request_id, end in ends.items():
        assert end.finish in (FinishReason.STOP, FinishReason.LENGTH)
        request = end.request
        assert spoken[request_id] == text_alone(model, end.inputs.number, request.task, request.text, request.sampling)
    return ends


@pytest.mark.parametrize('temperature', [0.0, 1.0])
@pytest.mark.parametrize('branches', [1, 2, 3, 8])
def test_continuous_batching_gives_what_the_model_gives_alone(model, branches, temperature):
    events = run(model, Mode.CONTINUOUS_BATCHING, branches, 3, temperature)
    ends = check(model, events, 3)
    if branches == 8:
        # Texts did run over frame boundaries, several frames in one batch.
        over = [end for end in ends.values() if any(isinstance(event, ActionChunk) and event.inputs.number >
                                                    end.inputs.number for event in events[:events.index(end)])]
        assert len(over) >= 5
        assert len({end.inputs.number for end in ends.values()}) >= 4


@pytest.mark.parametrize('temperature', [0.0, 1.0])
@pytest.mark.parametrize('mode', [Mode.ISOLATED, Mode.SHARED_KV])
def test_modes_of_comparison_give_what_the_model_gives_alone(model, mode, temperature):
    check(model, run(model, mode, 4, 3, temperature), 3)


def test_fixed_tokens_per_cycle_give_what_the_model_gives_alone(model):
    check(model, run(model, Mode.CONTINUOUS_BATCHING, 8, 2, tokens_per_cycle=4), 2)


def test_texts_of_the_test_model_depend_on_what_it_sees(model):
    """Else nothing here could fail."""
    texts = {text_alone(model, number, 'speech', '', SamplingParams(30)) for number in range(1, 6)}
    assert len(texts) == 5 and all(len(set(text.split())) > 3 for text in texts), texts


@pytest.mark.parametrize('branches', range(1, 9))
def test_any_number_of_branches_on_one_frame_gives_the_same_text(model, branches):
    check(model, run(model, Mode.CONTINUOUS_BATCHING, branches, branches, frames=1), branches, frames=1)


def test_texts_on_one_frame_differ_by_their_seed(model):
    events = run(model, Mode.SHARED_KV, 1, 5, temperature=1.0, frames=1)
    texts = {event.request.request_id: event.delta for event in events if isinstance(event, TextDelta)}
    assert len(set(texts.values())) > 1


def test_warm_engine_gives_what_a_cold_one_gives(model):
    case = json.loads((CASES / '66-warm-equals-cold' / 'requests.json').read_text())
    expected = json.loads((CASES / '66-warm-equals-cold' / 'case.json').read_text())['expected']
    pictures = {'A': 1, 'B': 2}
    tasks = {'speech': 'answer', 'memory': 'memory'}

    def engine():
        clock, events = TickingClock(), []
        # A slot for one text and two frames: everything is used again at once.
        return Engine(model, EngineConfig(SchedulerConfig(text_frame_age=0.0), max_branches=1, max_frames=2),
                      events.append, clock, lambda: int(clock.now * 1e9)), events

    def answer(engine, events, number, request):
        events.clear()
        picture = pictures[request['image']]
        engine.set_instruction(INSTRUCTION)
        engine.observe(policy_input(picture, int(engine.clock() * 1e9), picture))
        if request['task'] == 'action':
            engine.request_action(engine.clock())
        else:
            engine.submit(TextRequest(number + 1, tasks[request['task']], request['prompt'], SamplingParams(20)))
        while not events or isinstance(events[-1], TextDelta) and events[-1].finish is None:
            engine.run_cycle()
            engine.check_integrity()
        return events[-1].actions if request['task'] == 'action' else ''.join(event.delta for event in events)

    warm = engine()
    results = [answer(*warm, number, request) for number, request in enumerate(case['sequence'])]
    cold = [answer(*engine(), number, request) for number, request in enumerate(case['sequence'])]
    texts, actions = expected['equal_groups']
    assert len({results[i] for i in texts}) == 1
    for i, (one, other) in enumerate(zip(results, cold)):
        if isinstance(one, str):
            assert one == other, i
        else:
            assert abs(one - other).max() <= expected['tolerance']
            assert abs(one - results[actions[0]]).max() <= expected['tolerance']
    assert results[6] != results[0] and results[4] != results[0]
