"""Chunks that continue the one in execution: weights, guidance, and the way through engine and robot layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.pi05 import Pi05Model
from oxygen_ros.models.realtime_chunking import ChunkingMethod, GuidanceSchedule, PreviousChunk
from oxygen_ros.models.registry import LoadOptions
from oxygen_ros.observation import Observation
from oxygen_ros.robot.joints import Joint
from oxygen_ros.robot.layout import ActionMode, Layout
from oxygen_ros.robot.normalization import Statistics, StatisticsMode
from oxygen_ros.robot.robot_file import Robot
from oxygen_ros.tasks.action import ActionTask
from oxygen_ros.tasks.continuation import ContinuationSettings, ContinuingModel
from oxygen_ros.tasks.parameters import PARAMETERS, session_settings
from oxygen_ros.tasks.session import Session, SessionSettings
from oxygen_ros.verify.case import NumberTokenizer, read_case

GOLDEN = Path(__file__).parent / 'data' / 'golden' / 'pi05' / 'a_mqa3cam'
GUIDED, TRAINED = ChunkingMethod.GUIDED, ChunkingMethod.TRAINED
PERIOD = 100_000_000  # ns
NAMES = ('a', 'b', 'c')


def chunk(rows=8, **changes):
    return PreviousChunk(**{'actions': torch.ones(rows, 2), 'delay': 2, 'reach': 5, **changes})


@pytest.mark.parametrize(('schedule', 'expected'), [
    (GuidanceSchedule.LINEAR, [1, 1, 0.75, 0.5, 0.25, 0, 0]), (GuidanceSchedule.ONES, [1, 1, 1, 1, 1, 0, 0]),
    (GuidanceSchedule.ZEROS, [1, 1, 0, 0, 0, 0, 0]),
    (GuidanceSchedule.EXP, [1, 1, 0.4876, 0.1888, 0.0413, 0, 0])])
def test_the_old_chunk_binds_less_and_less(schedule, expected):
    assert chunk(schedule=schedule).weights(7).tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(('rows', 'delay', 'reach', 'horizon'), [
    (3, 3, 9, 5), (8, 8, 8, 5), (4, 0, 0, 5), (2, 1, 1, 1)])
def test_weights_stay_inside_what_is_left(rows, delay, reach, horizon):
    weights = chunk(rows, delay=delay, reach=reach).weights(horizon)
    assert len(weights) == horizon and weights.min() >= 0 and weights.max() <= 1
    assert not weights[min(rows, reach):].any()
    assert chunk(rows, delay=delay, reach=reach).padded(horizon).shape == (horizon, 2)


def test_guidance_pulls_to_the_old_chunk_and_leaves_the_rest_alone():
    x, velocity = torch.zeros(7, 2), torch.zeros(7, 2)
    guided = chunk().guide(velocity, x, 0.5)
    assert (guided[:5] < 0).all()  # x - velocity * dt goes up, to the ones
    assert not guided[5:].any()
    assert torch.equal(chunk(max_weight=0.0).guide(velocity, x, 0.5), velocity)
    assert chunk().guide(velocity, x, 1.0).isfinite().all()  # where the formula divides by 0


@pytest.mark.parametrize('wrong', [{'delay': -1}, {'delay': 9}, {'reach': -1}, {'actions': torch.ones(3)}])
def test_impossible_chunks_are_refused(wrong):
    with pytest.raises(ValueError, match='previous chunk'):
        chunk(**wrong)


# -- through the engine ----------------------------------------------------------------------------------------------

class Rig:
    """A small model on a small robot, with a clock of observations that the test sets."""

    def __init__(self, settings, mode=ActionMode.DELTA, trained=0):
        case = read_case(GOLDEN)
        self.model = Pi05Model(case.model_file(), LoadOptions(GOLDEN), NumberTokenizer(case.vocabulary))
        self.model.longest_trained_delay = trained
        statistics = Statistics(StatisticsMode.QUANTILE, np.full(3, -1.5), np.full(3, 3.0))
        layout = Layout(NAMES, NAMES, mode, action_statistics=statistics)
        robot = Robot('r', tuple(Joint(name, -9.0, 9.0, 1.0) for name in NAMES), {'joints': layout},
                      dict.fromkeys(self.model.spec.cameras, '/c'))
        self.task = ActionTask(robot, 'joints', self.model.spec)
        self.now_ns = 0
        self.chunks = []
        if settings is not None:
            self.continuing = ContinuingModel(self.model, self.task, settings, lambda: self.now_ns)
        self.engine = Engine(self.continuing if settings else self.model, EngineConfig(max_frame_age=1e3),
                             self.chunks.append, observation_clock=lambda: self.now_ns)
        self.engine.set_instruction('2 30 31')

    def act(self, number, stamp_ns, pose, late=0):
        rng = np.random.default_rng(number)
        images = {name: rng.integers(0, 256, (56, 56, 3), dtype=np.uint8) for name in self.model.spec.cameras}
        self.now_ns = stamp_ns + late
        observation = Observation(number, stamp_ns, images, NAMES, np.array(pose))
        self.engine.observe(self.task.policy_input(observation))
        self.engine.request_action(self.engine.clock())
        self.engine.run_cycle()
        return self.task.joint_chunk(self.chunks[-1]).positions


def two_chunks(settings, **options):
    """Return two chunks in joint space, 3 periods apart: what the second should continue, and the second."""
    rig = Rig(settings, **options)
    first = rig.act(1, 1 * PERIOD, [0.0, 0.1, 0.2], late=2 * PERIOD)
    second = rig.act(2, 4 * PERIOD, [0.3, -0.2, 0.4], late=2 * PERIOD)
    return first[3:], second


@pytest.mark.parametrize('mode', [ActionMode.ABSOLUTE, ActionMode.DELTA])
def test_a_guided_chunk_goes_on_where_the_old_one_is(mode):
    old, free = two_chunks(None, mode=mode)
    old_again, guided = two_chunks(ContinuationSettings(GUIDED), mode=mode)
    assert np.array_equal(old, old_again)  # nothing to continue for the first
    gap = np.abs(free[:2] - old[:2]).max()
    assert np.abs(guided[:2] - old[:2]).max() < 0.2 * gap  # the two actions that are executed meanwhile


@pytest.mark.parametrize('mode', [ActionMode.ABSOLUTE, ActionMode.DELTA])
def test_a_trained_chunk_starts_with_exactly_the_old_actions(mode):
    old, new = two_chunks(ContinuationSettings(TRAINED), mode=mode, trained=5)
    assert new[:2] == pytest.approx(old[:2], abs=1e-5)
    assert np.abs(new[2:7] - old[2:7]).max() > 0.1


def test_a_trained_delay_is_not_exceeded():
    old, new = two_chunks(ContinuationSettings(TRAINED), trained=1)
    assert new[:1] == pytest.approx(old[:1], abs=1e-5)
    assert np.abs(new[1] - old[1]).max() > 1e-3


def test_rows_between_two_actions_are_interpolated():
    rig = Rig(ContinuationSettings(GUIDED), mode=ActionMode.ABSOLUTE)
    rig.act(1, 0, [0.0, 0.0, 0.0])
    actions = rig.chunks[0].actions
    later = Observation(2, 5 * PERIOD // 2, {}, NAMES, np.zeros(3))
    left = rig.continuing.previous(rig.task.policy_input(later)).actions.numpy()
    assert left == pytest.approx((actions[2:-1] + actions[3:]) / 2, abs=1e-6)


@pytest.mark.parametrize('stamp', [0, 7 * PERIOD, 10**12])
def test_chunks_from_another_time_are_not_continued(stamp):
    rig = Rig(ContinuationSettings(GUIDED))
    rig.act(1, PERIOD, [0.0, 0.0, 0.0])
    observation = Observation(2, stamp, {}, NAMES, np.zeros(3))
    assert rig.continuing.previous(rig.task.policy_input(observation)) is None


def test_warming_up_leaves_nothing_to_continue():
    rig = Rig(ContinuationSettings(GUIDED))
    rig.engine.warm_up(rig.task.example(), rounds=1)
    first = Observation(1, PERIOD, {}, NAMES, np.zeros(3))
    assert rig.continuing.previous(rig.task.policy_input(first)) is None


def test_the_same_frame_gives_the_same_chunk_however_it_was_reached():
    """Off means off: a model without continuation does not depend on what was before."""
    rig = Rig(None)
    first = rig.act(1, PERIOD, [0.0, 0.0, 0.0])
    rig.act(2, 2 * PERIOD, [0.1, 0.0, 0.0])
    assert np.array_equal(first, rig.act(1, PERIOD, [0.0, 0.0, 0.0]))


def test_models_that_cannot_are_refused():
    with pytest.raises(ConfigError, match='not trained for real-time chunking'):
        Rig(ContinuationSettings(TRAINED))
    with pytest.raises(ConfigError, match='gives steps, which cannot be continued'):
        Rig(ContinuationSettings(GUIDED), mode=ActionMode.STEP)
    rig = Rig(None)
    del rig.model.longest_trained_delay
    with pytest.raises(ConfigError, match='cannot continue chunks'):
        ContinuingModel(rig.model, rig.task, ContinuationSettings(GUIDED))


@pytest.mark.parametrize(('value', 'method'), [('off', None), ('guided', GUIDED), ('trained', TRAINED)])
def test_the_node_has_it_as_a_parameter_and_off(value, method):
    values = {parameter.name: parameter.default for parameter in PARAMETERS}
    assert values['action.chunking'] == 'off'
    settings = session_settings(values | {'action.chunking': value, 'action.chunking_reach': 7})
    assert settings.continuation == ContinuationSettings(method, reach=7)


def test_a_session_hands_it_to_the_engine():
    settings = SessionSettings(continuation=ContinuationSettings(GUIDED))
    assert isinstance(Session(settings, print).engine.model, ContinuingModel)
    with pytest.raises(ConfigError, match='model tiny was not trained for real-time chunking'):
        Session(SessionSettings(continuation=ContinuationSettings(TRAINED)), print)


def test_all_else_is_the_models_own():
    rig = Rig(ContinuationSettings(GUIDED))
    assert rig.continuing.spec is rig.model.spec and rig.continuing.branch_prompt('speech', '') == []
