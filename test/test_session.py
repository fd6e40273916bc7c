"""A whole session without ROS: observations in, chunks, sentences and notes out."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from engine_fakes import FakeClock
from small_policy import SIZES, small_config

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.requests import ActionChunk, FinishReason, SamplingParams, TextDelta
from oxygen_ros.errors import ConfigError
from oxygen_ros.observation import Observation
from oxygen_ros.robot.chunk import JointChunk
from oxygen_ros.robot.chunk_buffer import PushResult
from oxygen_ros.tasks.session import Session, SessionSettings, TextSettings
from oxygen_ros.tasks.text import TextTask


@pytest.fixture(scope='module')
def model_file(tmp_path_factory):
    """The built-in policy, small, with as many actions and as much room as the robot needs."""
    path = tmp_path_factory.mktemp('models') / 'small.yaml'
    path.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'prompt_tokens': 60})))
    return str(path)


class Life:
    """A session with a clock that ticks at every look, and what came out of it."""

    def __init__(self, model_file, **settings):
        self.clock, self.events = FakeClock(), []
        settings = {'engine': EngineConfig(max_branches=4), **settings}
        self.session = Session(SessionSettings(model=model_file, **settings), self.events.append, self.tick,
                               lambda: int(self.clock.now * 1e9))
        self.numbers = itertools.count(1)

    def tick(self):
        self.clock.now += 0.0005
        return self.clock.now

    def observe(self):
        session = self.session
        names = session.action.robot.joint_names
        random = np.random.default_rng(1)
        images = {name: random.integers(0, 256, (24, 32, 3), dtype=np.uint8) for name in session.spec.cameras}
        seen = Observation(next(self.numbers), int(self.clock.now * 1e9), images, names,
                           np.zeros(len(names)), tf_frame='base')
        session.commands.measured(seen.joint_names, seen.joint_positions)
        session.engine.observe(session.action.policy_input(seen))

    def run(self):
        while self.session.engine.run_cycle() is None:
            self.session.engine.check_integrity()


def test_session_acts_speaks_and_remembers(model_file):
    life = Life(model_file, speech=TextSettings(max_tokens=6), memory=TextSettings(max_tokens=5))
    session = life.session
    for _ in range(3):
        life.observe()
        for task in ('speech', 'memory'):
            session.engine.submit(session.texts[task].request(life.clock.now))
        session.engine.submit(session.texts['answer'].request(life.clock.now, 'what is this'))
        session.engine.request_action(life.clock.now)
        life.run()
    chunks = [event for event in life.events if isinstance(event, ActionChunk)]
    assert [chunk.inputs.number for chunk in chunks] == [1, 2, 3]
    result, trajectory = session.commands.push(session.action.joint_chunk(chunks[-1]), int(life.clock.now * 1e9))
    assert result is PushResult.STARTED and trajectory.names == session.action.joints
    assert session.commands.command(int(life.clock.now * 1e9)) is not None
    notes, sentences, spoken = [], [], {}
    for event in life.events:
        if isinstance(event, TextDelta):
            if event.request.task == 'memory':
                notes.append(session.notes.push(event))
            else:
                spoken[event.request.request_id] = spoken.get(event.request.request_id, '') + event.delta
                sentences += session.sentences.push(event.request.request_id, event.delta, event.finish is not None)
    notes = [note for note in notes if note]
    assert [note.frame_number for note in notes] == [1, 2, 3] and {note.tf_frame for note in notes} == {'base'}
    assert len(spoken) == 6 and sorted(' '.join(sentences).split()) == sorted(' '.join(spoken.values()).split())


def test_two_sessions_with_one_seed_do_the_same(model_file):
    def outputs():
        life = Life(model_file, speech=TextSettings(max_tokens=12, temperature=1.0, top_p=0.9), seed=4)
        life.observe()
        for _ in range(2):
            life.session.engine.submit(life.session.texts['speech'].request(life.clock.now))
        life.session.engine.request_action(life.clock.now)
        life.run()
        texts = {}
        for event in life.events:
            if isinstance(event, TextDelta):
                texts[event.request.request_id] = texts.get(event.request.request_id, '') + event.delta
        return texts, next(event.actions for event in life.events if isinstance(event, ActionChunk))

    (one, actions), (other, same_actions) = outputs(), outputs()
    assert one == other and np.array_equal(actions, same_actions)
    assert one[1] != one[2]


def test_new_note_takes_the_place_of_a_waiting_one_and_speech_is_refused(model_file):
    life = Life(model_file)
    session = life.session
    for _ in range(3):
        session.engine.submit(session.texts['memory'].request(life.clock.now))
    assert [event.finish for event in life.events] == [FinishReason.DROPPED] * 2
    for _ in range(2):
        session.engine.submit(session.texts['speech'].request(life.clock.now))
    with pytest.raises(Exception, match='wait already'):
        session.engine.submit(session.texts['speech'].request(life.clock.now))


def test_question_starts_before_speech_and_notes(model_file):
    life = Life(model_file, engine=EngineConfig(max_branches=1))
    for task in ('memory', 'speech', 'answer'):
        life.session.engine.submit(life.session.texts[task].request(life.clock.now, 'hi'))
    life.observe()
    life.run()
    assert [event.request.task for event in life.events if event.finish] == ['answer', 'speech', 'memory']


def test_forget_drops_what_is_half_done(model_file):
    life = Life(model_file)
    session = life.session
    session.sentences.push(1, 'half a sentence', False)
    session.forget()
    assert session.sentences.push(1, 'new', True) == ['new']
    assert session.commands.command(0) is None


@pytest.mark.parametrize(('wrong', 'message'), [
    ({'model': 'giant'}, "unknown model 'giant'"), ({'robot': 'unknown_bot'}, "unknown robot 'unknown_bot'"),
    ({'dtype': 'float8'}, "dtype is 'float8'"), ({'when_empty': 'dance'}, "when_empty is 'dance'"),
    ({'device': 'warp'}, "device 'warp' is not available"), ({'checkpoint': '/nowhere'}, 'is not a directory'),
    ({'engine': EngineConfig(kv_budget_mib=0.01)}, 'budget is 0.0 MiB'),
    ({'engine': EngineConfig(branch_tokens=10**6)}, 'branch_tokens is 1000000')])
def test_wrong_settings_are_one_clear_line(model_file, wrong, message):
    with pytest.raises(ConfigError, match=message) as error:
        Session(replace(SessionSettings(model=model_file), **wrong), print)
    assert '\n' not in str(error.value)


def text_task(**fields):
    return TextTask(**{'name': 'answer', 'priority': 0, 'sampling': SamplingParams(20, 0.5, seed=3), 'timeout': 5.0,
                       'ids': itertools.count(1), **fields})


def test_robot_without_the_layout_of_the_model_is_refused_before_weights_are_made(monkeypatch):
    monkeypatch.setattr('oxygen_ros.tasks.session.load_model', lambda *_: pytest.fail('weights are made'))
    with pytest.raises(ConfigError, match="'unitree_g1' has no layout 'aloha'"):
        Session(SessionSettings(model='pi05_aloha'), emit=print)


def test_requests_of_a_task_carry_its_settings():
    request = text_task().request(100.0, 'why')
    assert (request.request_id, request.task, request.text, request.priority) == (1, 'answer', 'why', 0)
    assert (request.arrived, request.expires) == (100.0, 105.0)
    assert (request.sampling.max_tokens, request.sampling.temperature) == (20, 0.5)


def test_request_can_differ_from_the_task():
    request = text_task().request(100.0, 'why', timeout=1.5, max_tokens=3, seed=8)
    assert (request.expires, request.sampling.max_tokens, request.sampling.seed) == (101.5, 3, 8)
    assert request.sampling.temperature == 0.5
    with pytest.raises(ValueError, match='temperature'):
        text_task().request(100.0, temperature=-1.0)


def test_seeds_differ_from_text_to_text_and_are_the_same_in_every_run():
    def seeds(seed):
        task = text_task(sampling=SamplingParams(seed=seed))
        return [task.request(0.0).sampling.seed for _ in range(5)]

    assert len(set(seeds(3))) == 5 and seeds(3) == seeds(3) and not set(seeds(3)) & set(seeds(4))
    assert all(0 <= seed < 2**63 for seed in seeds(2**62))


def test_kv_budget_is_refused_before_any_weight_is_made(monkeypatch):
    def too_early(*_):
        raise AssertionError('weights were made')

    monkeypatch.setattr('oxygen_ros.models.pi05._load_network', too_early)
    settings = SessionSettings(model='bench_l', robot='unitree_g1', engine=EngineConfig(kv_budget_mib=1.0))
    with pytest.raises(ConfigError, match='KV cache of 10 frames and 8 branches needs .* raise kv_budget_mib'):
        Session(settings, lambda event: None)


@pytest.mark.parametrize(('of_model', 'of_settings', 'expected'), [(0.5, -1.0, 2.0), (0.5, 0.0, 3.0), (0.0, -1.0, 3.0)])
def test_chunks_are_averaged_as_the_model_file_says_or_the_settings(model_file, tmp_path, of_model, of_settings,
                                                                    expected):
    content = yaml.safe_load(Path(model_file).read_text())
    (tmp_path / 'small.yaml').write_text(yaml.safe_dump({**content, 'ensemble': of_model}))
    life = Life(str(tmp_path / 'small.yaml'), ensemble=of_settings, blend_time=0.0)
    life.observe()
    commands, names = life.session.commands, life.session.action.joints
    now = int(life.clock.now * 1e9)
    sent = [commands.push(JointChunk(names, np.full((9, len(names)), value * 1e-3), now, 10**8, number, now), now)[0]
            for number, value in ((1, 1.0), (2, 3.0))]
    assert sent == [PushResult.STARTED, PushResult.BLENDED]
    assert commands.command(now)[0].positions == pytest.approx(expected * 1e-3, abs=1e-9)
