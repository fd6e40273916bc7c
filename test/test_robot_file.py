"""Robot files: the shipped ones are right, wrong ones are refused with every problem at once."""

import json
import math
import re
from pathlib import Path

import pytest
import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_names
from oxygen_ros.robot.layout import ActionMode, Units
from oxygen_ros.robot.robot_file import load_robot

CASES = Path(__file__).parent / 'data' / 'cases'

PROBLEMS = '''
unknown keys ['speed']
joint 'a' is there twice
joint 'c': lower 1.0 must be less than upper -1.0
joint 'd': default 1.5 is outside
joint 'e': lower must be a finite number, not nan
joint 'e': upper must be a finite number, not inf
joint 'e': velocity must be a finite number, not 'fast'
joint 'e': default must be a finite number, not True
joint 'f': limits -90 and 90 rad are several turns: declare units: degrees
joint 'g': velocity -1.0 must be positive
joint 'h' lacks ['default', 'upper', 'velocity']
joint True: name must be text, not True
camera 'head': topic must be text
actions names unknown joints ['nose']
actions names joints twice: ['b']
action_mode must be one of ['absolute', 'delta', 'step'], not 'relative'
units must be one of ['radians', 'degrees'], not 'gradians'
state_statistics must be none
action_statistics has unknown keys ['q50']
lists of different lengths: q01 2, q99 1
'''


def two_joints():
    """Return the content of a small robot file without a problem."""
    return {
        'name': 'two',
        'joints': [{'name': 'a', 'lower': -1.0, 'upper': 1.0, 'velocity': 2.0, 'default': 0.0},
                   {'name': 'b', 'lower': 0.0, 'upper': 2, 'velocity': 1.0, 'default': 0.5}],
        'cameras': {'head': '/head'},
        'layouts': {'joints': {'state': 'all', 'actions': ['b'], 'action_mode': 'delta',
                               'state_statistics': 'joint_limits',
                               'action_statistics': {'mode': 'quantile', 'q01': -0.1, 'q99': [0.1]}}},
    }


def write(folder, content):
    path = folder / 'robot.yaml'
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding='utf-8')
    return str(path)


@pytest.mark.parametrize('name, joints, actions', [
    ('unitree_g1', 29, 17), ('unitree_g1_hands', 43, 31), ('booster_t1', 23, 11)])
def test_shipped_robots_load(name, joints, actions):
    robot = load_robot(name)
    assert robot.name == name
    assert len(robot.joints) == joints
    layout = robot.layout('joints')
    assert len(layout.actions) == actions
    assert len(layout.state) <= 32  # what the built-in model takes
    assert not any(re.search('hip|knee|ankle', joint.lower()) for joint in layout.actions)
    assert layout.action_mode is ActionMode.DELTA


def test_example_of_the_guide_loads(tmp_path):
    guide = (Path(__file__).parents[1] / 'doc' / 'robot.md').read_text(encoding='utf-8')
    (tmp_path / 'norm_stats.json').write_text(json.dumps({'state': {'q01': [-1.0, 0.0, 0.0], 'q99': [1.0, 1.0, 1.0]}}))
    robot = load_robot(write(tmp_path, guide.partition('```yaml\n')[2].partition('```')[0]))
    assert robot.layout('mine').commanded == robot.joint_names


def test_every_shipped_robot_file_is_sound():
    for name in config_names('robots'):
        load_robot(name)


def test_g1_limits_are_those_of_the_menagerie_model():
    limits = json.loads((CASES / '38-action-outside-joint-limits' / 'limits.json').read_text())
    assert {joint.name: [joint.lower, joint.upper] for joint in load_robot('unitree_g1').joints} == limits


def test_unknown_robot_names_the_choices():
    with pytest.raises(ConfigError, match="unknown robot 'r2d2'.*unitree_g1"):
        load_robot('r2d2')


def test_robot_file_by_path(tmp_path):
    robot = load_robot(write(tmp_path, two_joints()))
    assert robot.joint_names == ('a', 'b')
    assert robot.cameras == {'head': '/head'}
    layout = robot.layout('joints')
    assert layout.state == ('a', 'b')
    assert layout.actions == ('b',)
    assert layout.state_statistics.offset.tolist() == [-1.0, 0.0]
    assert layout.state_statistics.scale.tolist() == [2.0, 2.0]


def test_every_problem_is_listed_in_one_line(tmp_path):
    content = two_joints()
    content['speed'] = 3
    right = {'lower': -1.0, 'upper': 1.0, 'velocity': 1.0, 'default': 0.0}
    content['joints'] += [{**right, 'name': 'a'},
                          {**right, 'name': 'c', 'lower': 1.0, 'upper': -1.0},
                          {**right, 'name': 'd', 'default': 1.5},
                          {'name': 'e', 'lower': math.nan, 'upper': math.inf, 'velocity': 'fast', 'default': True},
                          {**right, 'name': 'f', 'lower': -90, 'upper': 90},
                          {**right, 'name': 'g', 'velocity': -1.0},
                          {'name': 'h', 'lower': -1.0},
                          {**right, 'name': True}]
    content['cameras'] = {'head': ''}
    content['layouts']['joints'].update(
        actions=['b', 'b', 'nose'], action_mode='relative', units='gradians',
        action_statistics={'mode': 'quantile', 'q01': [0.0, 0.0], 'q99': [1.0], 'q50': 0.5}, state_statistics='guess')
    with pytest.raises(ConfigError) as error:
        load_robot(write(tmp_path, content))
    message = str(error.value)
    assert '\n' not in message
    for part in PROBLEMS.strip().splitlines():
        assert part in message, part


@pytest.mark.parametrize('content', ['', '[]', '{a: b', 'name: only', '\x00', 'a: &x [*x]'])
def test_files_of_another_shape_are_refused(tmp_path, content):
    with pytest.raises(ConfigError, match='robot file'):
        load_robot(write(tmp_path, content))


def test_missing_statistics_are_refused_and_none_must_be_said(tmp_path):
    content = two_joints()
    del content['layouts']['joints']['action_statistics']
    with pytest.raises(ConfigError, match=r"layout 'joints' lacks \['action_statistics'\]"):
        load_robot(write(tmp_path, content))
    content['layouts']['joints']['action_statistics'] = 'none'
    assert load_robot(write(tmp_path, content)).layout('joints').action_statistics is None


def test_statistics_from_the_file_of_a_checkpoint(tmp_path):
    (tmp_path / 'norm_stats.json').write_text(json.dumps(
        {'norm_stats': {'actions': {'mean': [0.0], 'std': [1.0], 'q01': [-1.0], 'q99': [3.0]}}}))
    content = two_joints()
    content['layouts']['joints']['action_statistics'] = {
        'mode': 'quantile', 'file': 'norm_stats.json', 'key': 'actions'}
    statistics = load_robot(write(tmp_path, content)).layout('joints').action_statistics
    assert (statistics.offset.tolist(), statistics.scale.tolist()) == ([-1.0], [4.0])


def test_degrees_are_converted_when_declared(tmp_path):
    content = two_joints()
    content['units'] = 'degrees'
    content['joints'][0] = {'name': 'a', 'lower': -90, 'upper': 180, 'velocity': 45, 'default': 30}
    content['layouts']['joints']['units'] = 'degrees'
    robot = load_robot(write(tmp_path, content))
    joint = robot.joints[0]
    assert (joint.lower, joint.upper) == pytest.approx((-math.pi / 2, math.pi))
    assert (joint.velocity, joint.default) == pytest.approx((math.pi / 4, math.pi / 6))
    layout = robot.layout('joints')
    assert layout.units is Units.DEGREES
    assert layout.state_statistics.offset == pytest.approx([-90, 0])


def test_statistics_in_degrees_are_refused_unless_declared(tmp_path):
    content = two_joints()
    content['layouts']['joints'].update(
        state_statistics={'mode': 'mean_std', 'mean': [0.0, 40.0], 'std': [0.5, 30.0]},
        action_statistics={'mode': 'min_max', 'min': -90, 'max': 90})
    with pytest.raises(ConfigError) as error:
        load_robot(write(tmp_path, content))
    assert "statistics of state reach several turns for ['b']: declare units: degrees" in str(error.value)
    assert "statistics of actions reach several turns for ['b']" in str(error.value)
    content['layouts']['joints']['units'] = 'degrees'
    assert load_robot(write(tmp_path, content)).layout('joints').units is Units.DEGREES


def test_unknown_joints_and_layouts_are_named():
    robot = load_robot('unitree_g1')
    with pytest.raises(ConfigError, match="no joint 'tail', 'wing'"):
        robot.select(['waist_yaw_joint', 'tail', 'wing'])
    with pytest.raises(ConfigError, match=r"no layout 'libero': choose one of \['joints'\]"):
        robot.layout('libero')
    assert [joint.name for joint in robot.select(['waist_roll_joint', 'waist_yaw_joint'])] == [
        'waist_roll_joint', 'waist_yaw_joint']


def test_camera_that_the_robot_does_not_have_is_named(tmp_path):
    case = json.loads((CASES / '54-camera-name-unknown-or-missing' / 'config.json').read_text())
    robot = load_robot(write(tmp_path, {**two_joints(), 'cameras': case['robot_cameras']}))
    with pytest.raises(ConfigError, match="no camera 'right_wrist'"):
        robot.require_cameras(case['checkpoint_cameras'])
    robot.require_cameras(case['robot_cameras'])


def test_absolute_joints_are_read_and_must_be_actions(tmp_path):
    content = two_joints()
    content['layouts']['joints']['absolute'] = ['b']
    assert load_robot(write(tmp_path, content)).layout('joints').absolute == ('b',)
    content['layouts']['joints']['absolute'] = ['a']
    with pytest.raises(ConfigError, match=r"absolute names \['a'\]"):
        load_robot(write(tmp_path, content))
    content['layouts']['joints'] |= {'absolute': ['b'], 'action_mode': 'absolute'}
    with pytest.raises(ConfigError, match='with action_mode delta'):
        load_robot(write(tmp_path, content))


@pytest.mark.parametrize(('maps', 'problem'), [
    ({'nose': {}}, r"names unknown joints \['nose'\]"), ({'a': 3}, 'a must be a mapping'),
    ({'a': {'state': {'scale': 'x'}}}, 'a: state must hold finite numbers'),
    ({'a': {'speed': {}}}, 'a must be a mapping'),
    ({'a': {'state': {'horn': 1.0}}}, 'a: state: .*missing'), ([1], 'maps must be a mapping'),
    ({'a': {'state': {'arm': 1, 'horn': 1, 'closed': 2, 'open': 1, 'low': 0, 'high': 1}}}, 'open beyond closed')])
def test_wrong_joint_maps_are_named(tmp_path, maps, problem):
    content = two_joints()
    content['layouts']['joints']['maps'] = maps
    with pytest.raises(ConfigError, match=problem):
        load_robot(write(tmp_path, content))
