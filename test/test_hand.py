"""A hand of several joints is one number to a model, on the way in and on the way out."""

import numpy as np
import pytest
import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.robot.hand import Hand
from oxygen_ros.robot.layout import ActionMode, Layout, Units
from oxygen_ros.robot.robot_file import load_robot

HAND = Hand(('thumb', 'finger'), np.array([0.0, 0.5]), np.array([1.0, -0.5]))
NAMES = ('finger', 'elbow', 'thumb', 'other')


def layout(mode=ActionMode.ABSOLUTE, **options):
    return Layout(('grip', 'elbow'), ('elbow', 'grip'), mode, hands={'grip': HAND}, **options)


def test_closing_is_the_nearest_pose_on_the_way_and_stays_in_range():
    assert HAND.closing(np.array([0.25, 0.25])) == pytest.approx(0.25)
    assert HAND.closing(np.array([0.35, 0.35])) == pytest.approx(0.25)  # off the way
    assert HAND.closing(np.array([9.0, -9.0])) == 1.0
    assert HAND.positions(np.array([0.0, 0.5, 7.0])).tolist() == [[0.0, 0.5], [0.5, 0.0], [1.0, -0.5]]


@pytest.mark.parametrize('units', list(Units))
@pytest.mark.parametrize('mode', list(ActionMode))
def test_hand_is_one_number_of_state_and_action_and_commands_its_joints(mode, units):
    made = layout(mode, units=units)
    assert made.commanded == ('elbow', 'thumb', 'finger')
    positions = np.array([0.25, 0.1, 0.25, 99.0])
    turn = np.rad2deg(1.0) if units is Units.DEGREES else 1.0
    assert made.encode_state(NAMES, positions) == pytest.approx([0.25, 0.1 * turn])
    moved = made.decode_actions(np.array([[0.2 * turn, 0.5], [0.2 * turn, 2.0]]), NAMES, positions)
    elbow = {ActionMode.ABSOLUTE: [0.2, 0.2], ActionMode.DELTA: [0.3, 0.3], ActionMode.STEP: [0.3, 0.5]}[mode]
    assert moved == pytest.approx(np.array([[elbow[0], 0.5, 0.0], [elbow[1], 1.0, -0.5]]))  # the hand stays absolute


@pytest.mark.parametrize('mode', [ActionMode.ABSOLUTE, ActionMode.DELTA])
def test_encoding_undoes_decoding_with_a_hand(mode):
    actions = np.array([[0.2, 0.5], [-0.3, 0.125]])
    made, positions = layout(mode), np.array([0.25, 0.1, 0.25, 0.0])
    targets = made.decode_actions(actions, NAMES, positions)
    assert made.encode_actions(targets, NAMES, positions) == pytest.approx(actions)


def test_joint_by_itself_and_in_a_hand_is_refused():
    with pytest.raises(ValueError, match='twice'):
        Layout(('grip',), ('grip', 'thumb'), hands={'grip': HAND})


def test_hands_of_the_g1_close_by_one_number_each():
    robot = load_robot('unitree_g1_hands')
    made = robot.layout('grippers')
    assert len(made.actions) == 19 and len(made.commanded) == 31
    pose = np.array([joint.default for joint in robot.joints])
    action = np.zeros((1, len(made.actions)))  # the middle of the statistics: half closed
    target = dict(zip(made.commanded, made.decode_actions(action, robot.joint_names, pose)[0]))
    limits = {joint.name: joint for joint in robot.joints}
    assert all(limits[name].lower <= value <= limits[name].upper for name, value in target.items())
    hand = made.hands['left_hand']
    assert [target[name] for name in hand.joints] == pytest.approx((hand.open + hand.closed) / 2)


def test_every_problem_of_a_hand_is_named(tmp_path):
    right = {'lower': -1.0, 'upper': 1.0, 'velocity': 1.0, 'default': 0.0}
    content = {
        'name': 'r', 'joints': [{**right, 'name': 'a'}, {**right, 'name': 'b'}], 'cameras': {},
        'hands': {'a': {'open': {'a': 0.0}, 'closed': {'a': 1.0}}, 'c': {'open': {'a': 0.0}, 'closed': {'b': 0.0}},
                  'd': {'open': {'x': 0.0}, 'closed': {'x': 0.0}}, 'e': {'open': {'a': 2.0}, 'closed': {'a': 0.0}},
                  'f': {'open': {'b': 0.5}, 'closed': {'b': 0.5}}, 'g': {'open': {'a': 0.0}}},
        'layouts': {}}
    path = tmp_path / 'robot.yaml'
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError) as error:
        load_robot(str(path))
    for words in ("hand 'a' has the name of a joint", "hand 'c': open and closed name different joints",
                  "hand 'd' names unknown joints ['x']", "hand 'e': open: a is 2 rad, outside [-1, 1]",
                  "hand 'f': open and closed are the same pose", "hand 'g' lacks ['closed']"):
        assert words in str(error.value)
