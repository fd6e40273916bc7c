"""States that the model was not trained for, or that no joint can have, are told by joint name."""

import numpy as np

from oxygen_ros.robot.joints import Joint
from oxygen_ros.robot.layout import Layout
from oxygen_ros.robot.normalization import Statistics, StatisticsMode
from oxygen_ros.robot.state_check import StateCheck

JOINTS = (Joint('waist', -1.0, 1.0, 1.0), Joint('elbow', -2.0, 2.0, 1.0),
          Joint('input', -1.0, 1.0, 1.0, measured=False))
NAMES = ('waist', 'elbow')


def problems(mode, offset, scale, positions):
    layout = Layout(NAMES, NAMES, state_statistics=Statistics(mode, np.array(offset), np.array(scale)))
    positions = np.array(positions)
    return StateCheck(JOINTS, layout).problems(NAMES, positions, layout.encode_state(NAMES, positions))


def test_usual_state_is_no_problem():
    assert problems(StatisticsMode.QUANTILE, [-0.5, -1.0], [1.0, 2.0], [0.55, -1.1]) == {}  # just beyond q01, q99


def test_state_outside_the_statistics_is_named():
    found = problems(StatisticsMode.QUANTILE, [-0.1, -1.0], [0.2, 2.0], [0.5, 0.0])
    assert list(found) == ['waist'] and 'is at 5.0' in found['waist']
    found = problems(StatisticsMode.MEAN_STD, [0.0, 0.0], [1.0, 0.1], [0.5, 1.0])
    assert list(found) == ['elbow'] and '10.0 deviations' in found['elbow']


def test_position_that_no_joint_can_have_is_named_and_degrees_suspected():
    found = problems(StatisticsMode.MIN_MAX, [-2.0, -90.0], [4.0, 180.0], [1.3, 45.0])
    assert 'outside its limits -1 to 1' in found['waist'] and 'degrees' not in found['waist']
    assert 'degrees' in found['elbow']


def test_joints_without_statistics_are_held_to_their_limits_and_inputs_to_nothing():
    layout = Layout(NAMES, NAMES)
    check = StateCheck(JOINTS, layout)
    state = np.array([1.05, 2.0])
    assert check.problems((*NAMES, 'input', 'unknown'), np.array([1.05, 2.0, 9.0, 99.0]), state) == {}
