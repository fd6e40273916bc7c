"""The simulated robot: physics, its oracle, its robot file. Without pictures, so that no OpenGL is needed."""

from __future__ import annotations

import sys
from importlib import metadata

import numpy as np
import pytest

pytest.importorskip('mujoco', reason='the optional part simulation is not installed')
pytest.importorskip('openarm_mujoco', reason='the optional part simulation is not installed')

from oxygen_ros.errors import ConfigError
from oxygen_ros.robot.joints import MissingJoint
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.simulation import robot_model as robot
from oxygen_ros.simulation.controller import TrajectoryFollower
from oxygen_ros.simulation.episode import Judge, Outcome, make_episode
from oxygen_ros.simulation.oracle import APPROACH, MIRROR, PERIOD, TOP_SPEED
from oxygen_ros.simulation.simulation import Simulation
from oxygen_ros.simulation.viewer import open_viewer


@pytest.fixture(scope='module')
def simulation():
    return Simulation(render=False)


def follow_oracle(simulation: Simulation, goal: np.ndarray, seconds: float, watch=lambda: None) -> None:
    """Command the chunks of the oracle, a new one every two steps, as a policy would."""
    for step in range(round(seconds / PERIOD)):
        if step % 2 == 0:
            chunk = simulation.oracle.chunk(simulation.truth().joints, goal)
        simulation.command(chunk[step % 2])
        simulation.step(PERIOD)
        watch()


@pytest.mark.parametrize('seed', [0, 1, 2, 3])
def test_oracle_ends_within_millimetres_of_each_point(simulation, seed):
    scene = simulation.reset(seed)
    for item in scene.objects[:2]:
        follow_oracle(simulation, simulation.oracle.goal(item.arm, item.point_above), 2.5)
        error = np.linalg.norm(simulation.truth().fingertips[item.arm] - item.point_above)
        assert error < 0.005


def test_oracle_succeeds_in_episodes_of_each_kind(simulation):
    kinds = {}
    for seed in range(40):
        scene = simulation.reset(seed)
        episode = make_episode(seed, scene.objects)
        if episode.kind in kinds:
            continue
        episode.begin(simulation)
        judge = Judge(episode)
        item = next((item for item in scene.objects if item.name == episode.name), None)
        goal = simulation.oracle.goal(item.arm, item.point_above) if item else simulation.oracle.rest
        follow_oracle(simulation, goal, 3.5, lambda judge=judge: judge.watch(
            simulation.truth(), simulation.time_ns * 1e-9))
        kinds[episode.kind] = judge.outcome
    assert kinds == dict.fromkeys(('reach', 'absent', 'rest'), Outcome.SUCCESS)


def test_goals_reach_every_place_and_change_little_from_place_to_place(simulation):
    oracle, random = simulation.oracle, np.random.default_rng(0)
    for _ in range(40):
        point = random.uniform((0.245, 0.02, 0.44), (0.475, 0.265, 0.48))
        goal = oracle.goal('left', point)
        assert np.linalg.norm(oracle.fingertip(goal, 'left') - point) < 1e-3
        beside = oracle.goal('left', point + random.normal(0, 0.003, 3))
        assert np.abs(goal - beside).max() < 0.15
        assert goal[7:] == pytest.approx(oracle.rest[7:])


def test_right_arm_does_what_the_left_one_does(simulation):
    oracle, point = simulation.oracle, np.array((0.35, 0.12, 0.45))
    left, right = oracle.goal('left', point), oracle.goal('right', point * (1, -1, 1))
    assert right[7:] == pytest.approx(left[:7] * MIRROR, abs=1e-6)


def test_chunk_goes_to_the_goal_no_quicker_than_it_may(simulation):
    oracle = simulation.oracle
    goal = oracle.goal('left', np.array((0.45, 0.2, 0.45)))
    chunk = oracle.chunk(oracle.rest, goal, 60)
    steps = np.diff(np.vstack([oracle.rest, chunk]), axis=0)
    assert np.abs(steps).max() <= TOP_SPEED * PERIOD + 1e-9
    assert chunk[-1] == pytest.approx(goal, abs=1e-3)
    longest = np.abs(goal - oracle.rest).argmax()
    assert np.abs(np.diff(chunk[:, longest])[-3:]).max() < APPROACH * 0.02  # slowly at its end
    assert oracle.chunk(goal, goal)[0] == pytest.approx(goal)


def test_arms_do_not_sag(simulation):
    simulation.reset(0)
    simulation.step(2.0)
    assert simulation.truth().from_rest < 0.005


def test_time_goes_on_over_a_reset_and_in_parts_of_a_physics_step(simulation):
    start = simulation.time_ns
    simulation.reset(1)
    assert simulation.time_ns == start
    for _ in range(10):
        simulation.step(robot.TIMESTEP / 4)
    assert simulation.time_ns - start == round(2 * robot.TIMESTEP * 1e9)


def test_commands_are_clipped_to_the_limits_and_may_name_some_joints(simulation):
    simulation.reset(0)
    before = simulation.commanded
    simulation.command(np.array([9.0, -9.0]), (robot.JOINTS[12], robot.JOINTS[3]))
    after = simulation.commanded
    assert after[12] == pytest.approx(0.7854, abs=1e-3) and after[3] == 0.0
    assert np.delete(after, [3, 12]) == pytest.approx(np.delete(before, [3, 12]))
    with pytest.raises(MissingJoint, match='knee'):
        simulation.command(np.zeros(1), ('knee',))
    for wrong in ([np.nan], [0.1, 0.2]):
        with pytest.raises(ValueError, match='positions'):
            simulation.command(np.array(wrong), (robot.JOINTS[0],))


def test_equal_seeds_are_equal_scenes_in_motion_as_well(simulation):
    runs = []
    for _ in range(2):
        scene = simulation.reset(5)
        simulation.command(simulation.oracle.goal(scene.objects[0].arm, scene.objects[0].point_above))
        simulation.step(0.5)
        runs.append((scene, simulation.truth().joints.tolist()))
    assert runs[0] == runs[1]
    assert simulation.reset(6) != runs[0][0]


def test_observation_without_pictures_has_the_joint_state(simulation):
    simulation.reset(0)
    observation = simulation.observe()
    assert observation.joint_names == robot.ACTUATED and not observation.images
    assert observation.joint_positions == pytest.approx(simulation.commanded)
    assert observation.stamp_ns == simulation.time_ns
    with pytest.raises(ConfigError, match='no view'):
        simulation.view()


def test_robot_file_agrees_with_the_model(simulation):
    model, robot_file = simulation.model, load_robot('openarm')
    assert tuple(joint.name for joint in robot_file.joints) == robot.ACTUATED
    actuators = {model.actuator_trnid[number, 0]: number for number in range(model.nu)}
    for joint in robot_file.joints:
        number = model.joint(joint.name).id
        lower = max(model.jnt_range[number, 0], model.actuator_ctrlrange[actuators[number], 0])
        upper = min(model.jnt_range[number, 1], model.actuator_ctrlrange[actuators[number], 1])
        assert 0 <= joint.lower - lower + 1e-9 < 1e-4 and 0 <= upper - joint.upper + 1e-9 < 1e-4
        assert joint.default == pytest.approx(robot.rest_pose()[joint.name])
        assert joint.velocity > TOP_SPEED
    layout = robot_file.layouts['joints']
    assert layout.state == layout.actions == robot.JOINTS
    assert tuple(robot_file.cameras) == tuple(robot.CAMERAS)


def test_trajectory_is_followed_from_where_the_robot_is():
    follower = TrajectoryFollower(('a', 'b'), np.array([0.0, 5.0]))
    follower.follow(('a',), [[1.0], [2.0]], [100, 200], now_ns=0)
    assert [follower.sample(now)[0] for now in (0, 50, 100, 150, 200, 900)] == pytest.approx([0, 0.5, 1, 1.5, 2, 2])
    assert follower.sample(150)[1] == 5.0
    follower.follow(('b', 'a'), [[0.0, 9.0], [6.0, 2.5]], [100, 250], now_ns=150)  # its first point has passed
    assert follower.sample(200) == pytest.approx([2.0, 5.5])
    follower.follow(('a',), [[0.0]], [100], now_ns=250)  # all of it has passed: to its end at once
    assert follower.sample(251) == pytest.approx([0.0, 6.0])


@pytest.mark.parametrize(('names', 'positions', 'times'), [
    (('a',), [], []), (('a',), [[np.nan]], [10]), (('a',), [[1.0], [2.0]], [10, 10]), (('a', 'b'), [[1.0]], [10])])
def test_trajectory_that_makes_no_sense_is_refused(names, positions, times):
    follower = TrajectoryFollower(('a', 'b'), np.zeros(2))
    with pytest.raises(ValueError):
        follower.follow(names, positions, times, now_ns=0)
    with pytest.raises(MissingJoint):
        follower.follow(('c',), [[1.0]], [10], now_ns=0)
    assert follower.sample(10**9) == pytest.approx([0, 0])


def test_viewer_without_a_display_says_so(simulation, monkeypatch):
    if not sys.platform.startswith('linux'):
        pytest.skip('displays of other systems are found otherwise')
    monkeypatch.delenv('DISPLAY', raising=False)
    monkeypatch.delenv('WAYLAND_DISPLAY', raising=False)
    with pytest.raises(ConfigError, match='needs a display'):
        open_viewer(simulation)


def test_simulator_that_is_not_installed_says_how_to(monkeypatch):
    monkeypatch.setattr(metadata, 'files', lambda name: None)
    with pytest.raises(ConfigError, match=r'needs openarm-mujoco: .*oxygen_ros\[simulation\]'):
        robot.build_model()
    monkeypatch.setitem(sys.modules, 'mujoco', None)
    with pytest.raises(ConfigError, match='needs mujoco'):
        robot.build_model()
