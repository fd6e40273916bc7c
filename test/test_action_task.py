"""Observations in, joint chunks out: by name, relative to the frame's own state, nothing made up."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_policy import small_policy

from oxygen_ros.engine.requests import ActionChunk
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.observation import Observation
from oxygen_ros.robot.joints import Joint, MissingJoint
from oxygen_ros.robot.layout import ActionMode, Layout
from oxygen_ros.robot.robot_file import Robot, load_robot
from oxygen_ros.robot.safety import ChunkRejected
from oxygen_ros.tasks.action import ActionTask

CASES = Path(__file__).parent / 'data' / 'cases'
SECOND = 10**9
JOINTS = tuple(Joint(name, -2.0, 2.0, 1.0, default) for name, default in (('a', 0.1), ('b', 0.2), ('c', 0.3)))
SPEC = replace(small_policy().spec, action_dim=4, horizon=2, first_action_offset=1, action_period=0.1)


def task(mode=ActionMode.ABSOLUTE, state=('c', 'a'), actions=('b', 'c'), spec=SPEC):
    robot = Robot('toy', JOINTS, {'joints': Layout(state, actions, mode)}, {'head': 'head', 'front': 'front'})
    return ActionTask(robot, 'joints', spec)


def observation(names='abc', stamp_ns=5 * SECOND, **changes):
    positions = {'a': 1.0, 'b': 2.0, 'c': 3.0, 'x': 9.0}
    return Observation(3, stamp_ns, {}, tuple(names), np.array([positions[name] for name in names]), **changes)


def chunk(actions, seen=None):
    return ActionChunk(PolicyInput(seen or observation()), np.array(actions, np.float32), 0.0, 0.0, 0.0)


@pytest.mark.parametrize('names', ['abc', 'cab', 'bxca'])
def test_state_is_mapped_by_name_whatever_the_order_of_the_observation(names):
    assert task().policy_input(observation(names)).state.tolist() == [3.0, 1.0]


def test_missing_joint_of_the_state_is_named():
    with pytest.raises(MissingJoint, match="'c'"):
        task().policy_input(observation('ab'))


@pytest.mark.parametrize('names', ['abc', 'cab', 'bxca'])
def test_deltas_count_from_the_state_of_the_own_frame_by_name(names):
    result = task(ActionMode.DELTA).joint_chunk(chunk([[0.1, 0.2, 9, 9], [0.3, 0.4, 9, 9]], observation(names)))
    assert result.names == ('b', 'c')
    assert result.positions == pytest.approx(np.array([[2.1, 3.2], [2.3, 3.4]]))


def test_absolute_actions_are_taken_as_they_are_without_padding():
    result = task().joint_chunk(chunk([[0.1, 0.2, 9, 9], [0.3, 0.4, 9, 9]]))
    assert result.positions == pytest.approx(np.array([[0.1, 0.2], [0.3, 0.4]]))


def test_times_count_from_the_stamp_of_the_frame():
    result = task().joint_chunk(chunk(np.zeros((2, 4))))
    assert (result.start_ns, result.period_ns) == (5 * SECOND + SECOND // 10, SECOND // 10)
    assert (result.frame_number, result.stamp_ns) == (3, 5 * SECOND)
    later = task(spec=replace(SPEC, first_action_offset=0)).joint_chunk(chunk(np.zeros((2, 4))))
    assert later.start_ns == 5 * SECOND


@pytest.mark.parametrize('broken', [np.nan, np.inf])
def test_chunk_with_a_broken_number_is_rejected_whole_but_not_for_padding(broken):
    actions = np.zeros((2, 4))
    actions[1, 1] = broken
    with pytest.raises(ChunkRejected):
        task().joint_chunk(chunk(actions))
    actions = np.zeros((2, 4))
    actions[1, 3] = broken
    assert task().joint_chunk(chunk(actions)).positions.shape == (2, 2)


def test_padded_actions_are_cut_and_too_few_refused():
    robot = load_robot('unitree_g1')
    folder, names = CASES / '40-action-width-differs', robot.joint_names
    expected = json.loads((folder / 'case.json').read_text())['expected']
    whole = replace(robot, layouts={'all': Layout(names, names)})
    seen = Observation(1, 0, {}, names, np.zeros(len(names)))
    actions = ActionTask(whole, 'all', replace(SPEC, action_dim=32))

    def read(name):
        return chunk(json.loads((folder / f'{name}.json').read_text())['actions'], seen)

    assert actions.joint_chunk(read('chunk_32')).positions[0] == pytest.approx(expected['published_from_32'])
    for name in expected['refused']:
        with pytest.raises(ChunkRejected):
            actions.joint_chunk(read(name))


def test_model_and_robot_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match='has 2 action joints.*gives 1 numbers'):
        task(spec=replace(SPEC, action_dim=1))
    with pytest.raises(ConfigError, match="no layout 'other'"):
        ActionTask(task().robot, 'other', SPEC)
    with pytest.raises(ConfigError, match="no camera 'tail'"):
        task(spec=replace(SPEC, cameras=('head', 'tail')))


def test_example_is_the_default_pose_with_every_camera():
    example = task().example()
    assert example.state.tolist() == [0.3, 0.1] and set(example.observation.images) == set(SPEC.cameras)
