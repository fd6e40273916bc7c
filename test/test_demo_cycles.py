"""What the demo reads out of a trace file, and the picture that it draws of it."""

import json
from types import SimpleNamespace

import pytest
import yaml

from oxygen_ros.demo.cycles import analyse, load_trace
from oxygen_ros.demo.timeline import draw_timeline


def span(name, start_ms, end_ms, **arguments):
    return {'name': name, 'ph': 'X', 'ts': 1e3 * start_ms, 'dur': 1e3 * (end_ms - start_ms), 'args': arguments}


def deadline(at_ms):
    return {'name': 'deadline', 'ph': 'i', 'ts': 1e3 * at_ms, 'args': {}}


def action(frame, begin_ms, own_prefill=True):
    """A chunk that takes 20 ms of prefill, 30 ms of denoising and is out 1 ms later."""
    prefill = [span('prefill', begin_ms - 20, begin_ms, frame=frame)] if own_prefill else []
    return [*prefill, span('denoise', begin_ms, begin_ms + 30, frame=frame),
            span('publish', begin_ms + 30, begin_ms + 31, frame=frame)]


def test_lateness_is_the_time_from_the_deadline_to_the_publication():
    trace = analyse([deadline(200), *action(1, 160), deadline(400), *action(2, 380)])
    assert [cycle.lateness for cycle in trace.cycles] == pytest.approx([-0.009, 0.011])


def test_a_cycle_begins_with_its_own_prefill_and_otherwise_with_its_denoising():
    shared = [span('prefill', 230, 250, frame=2), span('extend', 250, 255, branches=1), *action(2, 350, False)]
    trace = analyse([deadline(200), *action(1, 160), deadline(400), *shared])
    assert [cycle.begin for cycle in trace.cycles] == pytest.approx([0.140, 0.350])


def test_deadlines_that_passed_before_the_work_began_are_not_served():
    trace = analyse([deadline(200), deadline(400), deadline(600), *action(1, 550)])
    assert [cycle.deadline for cycle in trace.cycles] == pytest.approx([0.600])


def test_a_chunk_serves_the_deadline_that_the_engine_says():
    chunk = action(1, 250)
    chunk[-1]['args']['deadline'] = 0.2  # late, but the next one has time
    trace = analyse([deadline(200), deadline(400), *chunk, *action(2, 360)])
    assert [cycle.deadline for cycle in trace.cycles] == pytest.approx([0.2, 0.4])


def test_the_warm_up_before_the_first_deadline_is_left_out():
    trace = analyse([span('prefill', 0, 90, frame=0), span('decode', 90, 95, branches=8), deadline(200),
                     *action(1, 160)])
    assert trace.medians() == pytest.approx({'prefill': 0.020, 'denoise': 0.030, 'publish': 0.001})


@pytest.mark.parametrize('last_decode, past', [((190, 199), False), ((195, 204), False), ((201, 204), True)])
def test_decoding_past_the_deadline_is_noticed_beyond_one_step(last_decode, past):
    trace = analyse([deadline(200), span('decode', *last_decode, branches=2), *action(1, 230)])
    assert trace.cycles[0].decoded_past_deadline is past


def test_decoding_past_a_deadline_that_was_then_given_up_is_noticed():
    trace = analyse([deadline(200), deadline(400), span('decode', 205, 215, branches=2), *action(1, 250)])
    assert trace.cycles[0].deadline == pytest.approx(0.4) and trace.cycles[0].decoded_past_deadline


def test_decoding_after_an_early_chunk_is_not_counted_against_its_deadline():
    trace = analyse([deadline(200), *action(1, 100), span('decode', 195, 205, branches=1),
                     span('decode', 205, 215, branches=1), deadline(400), *action(2, 350)])
    assert not any(cycle.decoded_past_deadline for cycle in trace.cycles)


def test_a_trace_of_the_real_engine_gives_its_cycles_and_a_picture(engine_trace, tmp_path):
    trace = load_trace(engine_trace.path)
    assert len(trace.cycles) == engine_trace.chunks == 3
    assert set(trace.medians()) == {'prefill', 'denoise', 'extend', 'decode', 'publish'}
    assert {span.branches for span in trace.spans if span.stage == 'decode'} == {1, 2}
    assert draw_timeline(trace, tmp_path / 'timeline.png', 'test')
    assert (tmp_path / 'timeline.png').read_bytes().startswith(b'\x89PNG')


def test_a_trace_without_a_chunk_gives_no_picture(tmp_path):
    (tmp_path / 'trace.json').write_text('[\n' + json.dumps(deadline(200)) + ',\n{"name": "pre')
    assert not draw_timeline(load_trace(tmp_path / 'trace.json'), tmp_path / 'timeline.png', 'test')
    assert not (tmp_path / 'timeline.png').exists()


@pytest.fixture
def engine_trace(tmp_path):
    """A trace of three actions with two texts, made by the engine on a clock that moves 1 ms per look."""
    np, torch = pytest.importorskip('numpy'), pytest.importorskip('torch')
    from oxygen_ros.engine.engine import Engine, EngineConfig
    from oxygen_ros.engine.requests import ActionChunk, SamplingParams, TextRequest
    from oxygen_ros.engine.trace import Tracer
    from oxygen_ros.files import config_file
    from oxygen_ros.models.interface import PolicyInput
    from oxygen_ros.models.tiny import TinyModel
    from oxygen_ros.observation import Observation

    torch.set_num_threads(1)
    now, events, path = [0.0], [], tmp_path / 'trace.json'

    def clock():
        now[0] += 0.001
        return now[0]

    def chunks():
        return sum(isinstance(event, ActionChunk) for event in events)

    model = TinyModel(yaml.safe_load(config_file('models', 'tiny').read_text()))
    tracer = Tracer(path)
    engine = Engine(model, EngineConfig(), events.append, clock=clock, observation_clock=lambda: int(now[0] * 1e9),
                    tracer=tracer)
    for number in range(1, 4):
        images = {name: np.zeros((48, 64, 3), np.uint8) for name in model.spec.cameras}
        engine.observe(PolicyInput(Observation(number, int(now[0] * 1e9), images), np.zeros(29)))
        if number < 3:
            engine.submit(TextRequest(number, 'speech', sampling=SamplingParams(max_tokens=20), arrived=now[0]))
        engine.request_action(now[0] + 0.05)
        while chunks() < number:
            engine.run_cycle()
    tracer.close()
    return SimpleNamespace(path=path, chunks=chunks())


def test_deadlines_without_a_frame_to_act_on_are_nobodys_fault():
    skip = {'name': 'skip', 'ph': 'i', 'ts': 2e5, 'args': {'deadline': 0.2}}
    trace = analyse([deadline(200), skip, span('decode', 205, 215, branches=2), deadline(400), *action(1, 360)])
    assert trace.skipped == 1
    assert trace.cycles[0].due == pytest.approx(0.4) and not trace.cycles[0].decoded_past_deadline
