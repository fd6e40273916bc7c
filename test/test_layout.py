"""State and actions of a model mapped to joints, by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.robot.joints import Joint, MissingJoint, select
from oxygen_ros.robot.layout import ActionMode, Layout, Units
from oxygen_ros.robot.normalization import Statistics, StatisticsMode
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.robot.safety import ChunkRejected, RejectReason

CASES = Path(__file__).parent / 'data' / 'cases'
LIMITS = Statistics(StatisticsMode.QUANTILE, np.array([-1.0, 0.0]), np.array([2.0, 4.0]))


def test_permuted_joints_reach_their_own_place():
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert select(['a', 'b', 'c'], values, ['c', 'a']).tolist() == [[3.0, 1.0], [6.0, 4.0]]
    assert select(['a', 'b', 'c'], values, []).shape == (2, 0)


def test_selected_values_are_a_copy():
    values = np.zeros(2)
    select(['a', 'b'], values, ['a', 'b'])[0] = 1.0
    assert values.tolist() == [0.0, 0.0]


def test_missing_joints_are_all_named():
    with pytest.raises(MissingJoint, match="no value for joint 'x', 'y'") as error:
        select(['a'], np.zeros(1), ['x', 'a', 'y'])
    assert error.value.names == ('x', 'y')


def test_ambiguous_or_misfit_names_are_refused():
    with pytest.raises(ValueError, match='more than once'):
        select(['a', 'b', 'a'], np.zeros(3), ['a'])
    assert select(['a', 'b', 'a'], np.arange(3), ['b']).tolist() == [1.0]
    with pytest.raises(ValueError, match='3 joint names but values of shape'):
        select(['a', 'b', 'c'], np.zeros(2), ['a'])


@pytest.mark.parametrize('wrong', [{'lower': 1.0}, {'default': 2.0}, {'velocity': 0.0}, {'upper': float('nan')}])
def test_joint_keeps_its_invariants(wrong):
    with pytest.raises(ValueError, match="joint 'j'"):
        Joint('j', **{'lower': -1.0, 'upper': 1.0, 'velocity': 1.0, **wrong})


def test_state_is_ordered_and_normalised():
    layout = Layout(('a', 'b'), ('b',), state_statistics=LIMITS)
    assert layout.encode_state(['b', 'x', 'a'], [2.0, 9.0, 1.0]) == pytest.approx([1.0, 0.0], abs=1e-5)
    with pytest.raises(MissingJoint, match="'b'"):
        layout.encode_state(['a'], [0.0])


def test_delta_actions_start_from_the_joints_of_the_frame():
    layout = Layout(('a', 'b'), ('b', 'a'), ActionMode.DELTA, action_statistics=LIMITS)
    output = np.zeros((3, 5))  # the middle of both ranges: 0 and 2; three columns of padding
    targets = layout.decode_actions(output, ['x', 'a', 'b'], np.array([7.0, 0.25, 0.5]))
    assert targets == pytest.approx(np.tile([0.5, 2.25], (3, 1)), abs=1e-5)
    absolute = Layout(('a', 'b'), ('b', 'a'), ActionMode.ABSOLUTE, action_statistics=LIMITS)
    assert absolute.decode_actions(output, [], np.zeros(0)) == pytest.approx(np.tile([0.0, 2.0], (3, 1)), abs=1e-5)


def test_policy_in_degrees_sees_and_says_degrees():
    case = json.loads((CASES / '41-degrees-and-radians' / 'input.json').read_text())
    expected = json.loads((CASES / '41-degrees-and-radians' / 'case.json').read_text())['expected']
    names = tuple(case['joints'])
    layout = Layout(names, names, units=Units.DEGREES)
    assert layout.encode_state(names, case['joint_state_rad']) == pytest.approx(expected['state_for_policy'], abs=1e-4)
    command = layout.decode_actions(np.array([case['policy_action']]), names, case['joint_state_rad'])
    assert command[0] == pytest.approx(expected['command_rad'], abs=expected['tolerance'])


def test_padding_of_the_model_is_dropped_and_too_few_numbers_are_refused():
    folder = CASES / '40-action-width-differs'
    chunks = {name: json.loads((folder / f'{name}.json').read_text())['actions']
              for name in ('chunk_32', 'chunk_10', 'chunk_empty')}
    names = tuple(f'joint{i}' for i in range(29))
    layout = Layout(names, names)
    expected = json.loads((folder / 'case.json').read_text())['expected']['published_from_32']
    assert layout.decode_actions(chunks['chunk_32'], names, np.zeros(29)) == pytest.approx(np.tile(expected, (4, 1)))
    with pytest.raises(ChunkRejected, match=r'shape \[4, 10\] for 29 joints') as error:
        layout.decode_actions(chunks['chunk_10'], names, np.zeros(29))
    assert error.value.reason is RejectReason.WIDTH
    with pytest.raises(ChunkRejected, match=r'shape \[0\]\) for 29 joints') as error:
        layout.decode_actions(chunks['chunk_empty'], names, np.zeros(29))
    assert error.value.reason is RejectReason.EMPTY


def test_layout_needs_statistics_that_fit():
    with pytest.raises(ValueError, match='actions have 1 joints, but statistics for 2'):
        Layout(('a', 'b'), ('b',), action_statistics=LIMITS)
    with pytest.raises(ValueError, match='state name a joint twice'):
        Layout(('a', 'a'), ('b',))


def test_grippers_can_stay_absolute_among_deltas():
    layout = Layout(('a', 'grip'), ('grip', 'a'), ActionMode.DELTA, action_statistics=LIMITS, absolute=('grip',))
    targets = layout.decode_actions(np.zeros((2, 4)), ['a', 'grip'], np.array([0.25, 7.0]))
    assert targets == pytest.approx(np.array([[0.0, 2.25]] * 2), abs=1e-5)
    with pytest.raises(ValueError, match='absolute names'):
        Layout(('a',), ('a',), ActionMode.DELTA, absolute=('b',))


def test_aloha_is_seen_as_the_base_model_was_trained():
    """Against openpi's `adapt_to_pi`, written out: flips, gripper linkage, deltas from what the model sees."""
    layout = load_robot('aloha').layout('aloha')
    names = list(layout.state)
    flips = np.array([1, -1, -1, 1, 1, 1, 1] * 2)
    joints = np.linspace(-0.9, 0.9, 14)
    joints[[6, 13]] = 0.25, 0.75
    opening = joints[[6, 13]] * (0.058 - 0.01844) + 0.01844
    angle = np.arcsin((0.022**2 + opening**2 - 0.036**2) / (2 * 0.022 * opening))
    seen = joints * flips
    seen[[6, 13]] = (angle - 0.5476) / (1.6296 - 0.5476)
    assert layout.encode_state(names, joints) == pytest.approx(seen)

    output = np.tile(np.linspace(-0.2, 0.2, 32), (3, 1))
    absolute = output[:, :14] + np.where(np.arange(14) % 7 == 6, 0.0, seen)
    expected = absolute * flips
    expected[:, [6, 13]] = (output[:, [6, 13]] + 0.5476 + 0.6213) / (1.4910 + 0.6213)
    assert layout.decode_actions(output, names, joints) == pytest.approx(expected, abs=1e-5)
    assert layout.encode_actions(expected, names, joints) == pytest.approx(output[:, :14], abs=1e-5)
    # Whatever the order in which the robot names its joints.
    turned = layout.decode_actions(output, names[::-1], joints[::-1])
    assert turned == pytest.approx(expected, abs=1e-5)


def test_droid_velocities_add_up_from_the_joints_of_the_frame():
    layout = load_robot('franka_droid').layout('droid')
    joints = np.array([0.1, -0.6, 0.2, -2.5, 0.0, 1.9, 0.3, 0.5])
    output = np.zeros((3, 32))
    output[:, 0], output[:, 3], output[:, 7] = 1.0, [0.5, 0.0, -0.5], [0.0, 0.4, 1.0]
    targets = layout.decode_actions(output, layout.state, joints)
    assert targets[:, 0] == pytest.approx([0.3, 0.5, 0.7])
    assert targets[:, 3] == pytest.approx([-2.4, -2.4, -2.5])
    assert targets[:, 7] == pytest.approx([0.0, 0.4, 1.0])  # the gripper's are absolute
    assert (targets[:, [1, 2, 4, 5, 6]] == joints[[1, 2, 4, 5, 6]]).all()
    with pytest.raises(ValueError, match='steps cannot be encoded'):
        layout.encode_actions(targets, layout.state, joints)


@pytest.mark.parametrize('mode', [ActionMode.ABSOLUTE, ActionMode.DELTA])
@pytest.mark.parametrize('units', list(Units))
def test_encoding_undoes_decoding(mode, units):
    layout = Layout(('a', 'b'), ('b', 'a'), mode, units, action_statistics=LIMITS)
    output = np.array([[0.1, -0.3], [0.7, 0.9]])
    targets = layout.decode_actions(output, ['a', 'b'], np.array([0.2, 0.4]))
    assert layout.encode_actions(targets, ['a', 'b'], np.array([0.2, 0.4])) == pytest.approx(output)
