"""No command leaves the limits, whatever a model says."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oxygen_ros.robot.chunk import JointChunk, JointTrajectory
from oxygen_ros.robot.chunk_buffer import ChunkBuffer
from oxygen_ros.robot.interpolation import Interpolation
from oxygen_ros.robot.joints import Joint
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.robot.safety import (
    ChunkRejected,
    RejectReason,
    SafetyLimiter,
    check_actions,
    check_chunk,
)

CASES = Path(__file__).parent / 'data' / 'cases'
MS = 1_000_000
JOINTS = (Joint('a', -1.0, 1.0, 2.0), Joint('b', -0.1, 3.0, 0.5), Joint('c', -2.0, -1.0, 10.0, -1.5))
LOWER, UPPER, VELOCITY = (np.array([getattr(joint, key) for joint in JOINTS]) for key in ('lower', 'upper', 'velocity'))

any_float = st.floats(allow_nan=True, allow_infinity=True)
garbage = arrays(np.float64, 3, elements=any_float)


def limiter(positions=(0.0, 0.0, -1.5)):
    result = SafetyLimiter(JOINTS)
    result.start(np.array(positions))
    return result


def test_chunk_with_nan_is_refused_as_a_whole():
    case = json.loads((CASES / '37-action-with-nan' / 'chunk.json').read_text())
    actions = np.array([[float('nan') if value is None else float(value) for value in row] for row in case['actions']])
    assert check_actions(actions[:3], 29).shape == (3, 29)
    with pytest.raises(ChunkRejected, match='not a finite number, the first in row 3, column 5') as error:
        check_chunk(JointChunk(tuple(case['joints']), actions, 0, 1, 1, 0))
    assert error.value.reason is RejectReason.NOT_FINITE


def test_numbers_in_the_padding_do_not_matter():
    assert check_actions([[1.0, 2.0, np.nan]], 2).tolist() == [[1.0, 2.0]]


def test_numbers_that_no_joint_can_reach_are_refused():
    with pytest.raises(ChunkRejected, match='beyond 1000') as error:
        check_actions([[0.0, -1e30]], 2)
    assert error.value.reason is RejectReason.IMPLAUSIBLE


@pytest.mark.parametrize('shape', [(4, 2), (4,), (1, 4, 3)])
def test_actions_of_another_shape_are_refused(shape):
    with pytest.raises(ChunkRejected, match='for 3 joints') as error:
        check_actions(np.zeros(shape), 3)
    assert error.value.reason is RejectReason.WIDTH


def test_positions_outside_the_limits_are_cut_to_them_and_reported():
    case = CASES / '38-action-outside-joint-limits'
    positions = json.loads((case / 'action.json').read_text())['positions']
    robot = load_robot('unitree_g1')
    safety = SafetyLimiter(robot.joints)
    safety.start(np.array([joint.default for joint in robot.joints]))
    wanted = np.array([positions[joint.name] for joint in robot.joints])
    for _ in range(200):
        command = safety.limit(wanted, np.zeros(29), 100 * MS)
    clamped = json.loads((case / 'case.json').read_text())['expected']['clamped']
    assert dict(zip(robot.joint_names, command.positions)) == pytest.approx(clamped, abs=1e-4)
    assert set(command.at_limit) == set(robot.joint_names)
    assert command.slowed == ()


def test_change_of_a_command_is_cut_to_the_velocity_limit_and_reported():
    safety = limiter()
    command = safety.limit(np.array([1.0, 0.001, -1.5]), np.array([9.0, 0.05, 0.0]), 20 * MS)
    assert command.positions == pytest.approx([0.04, 0.001, -1.5])
    assert command.velocities == pytest.approx([2.0, 0.05, 0.0])
    assert (command.slowed, command.at_limit) == (('a',), ())


def test_a_long_pause_does_not_allow_a_leap():
    assert limiter().limit(np.array([1.0, 0.0, -1.5]), np.zeros(3), 10_000 * MS).positions[0] == pytest.approx(0.2)


@pytest.mark.parametrize('step_ns', [0, -5 * MS])
def test_without_time_nothing_moves(step_ns):
    command = limiter().limit(np.array([1.0, 1.0, -1.0]), np.ones(3), step_ns)
    assert command.positions.tolist() == [0.0, 0.0, -1.5]
    assert command.velocities.tolist() == [0.0, 0.0, 0.0]


def test_number_that_is_not_finite_keeps_the_last_command():
    command = limiter([0.3, 0.2, -1.2]).limit(np.array([np.nan, np.inf, -np.inf]), np.full(3, np.nan), 20 * MS)
    assert command.positions.tolist() == [0.3, 0.2, -1.2]
    assert command.velocities.tolist() == [0.0, 0.0, 0.0]


def test_robot_outside_its_limits_is_called_back_to_them():
    assert limiter([1.2, 0.0, -1.5]).limit(np.array([1.2, 0.0, -1.5]), np.zeros(3), 20 * MS).positions[0] == 1.0


def test_limiter_needs_the_measured_positions():
    with pytest.raises(RuntimeError, match='start'):
        SafetyLimiter(JOINTS).limit(np.zeros(3), np.zeros(3), MS)
    for wrong in (np.zeros(2), np.array([0.0, np.nan, -1.5])):
        with pytest.raises(ValueError, match='3 finite positions are needed'):
            SafetyLimiter(JOINTS).start(wrong)


def test_trajectory_keeps_the_limits_and_leaves_the_limiter_alone():
    safety = limiter()
    rows = np.array([[0.0, 0.0, -1.5], [9.0, 0.02, -1.5], [9.0, 0.04, -1.5]])
    times = (0, 100 * MS, 200 * MS)
    limited = safety.limit_trajectory(JointTrajectory(('a', 'b', 'c'), 5, times, rows, np.zeros((3, 3)), 1, 0))
    assert limited.positions == pytest.approx(np.array([[0, 0, -1.5], [0.2, 0.02, -1.5], [0.4, 0.04, -1.5]]))
    assert limited.velocities[:, 0] == pytest.approx([0, 2, 0])  # ends at rest
    assert (limited.start_ns, limited.times_ns) == (5, times)
    assert safety.limit(np.array([0.0, 0.0, -1.5]), np.zeros(3), MS).positions.tolist() == [0.0, 0.0, -1.5]


@pytest.mark.parametrize('times', [(), (0, 0, 1), (2, 1, 3), (-1, 0, 1)])
def test_trajectory_refuses_times_that_do_not_increase(times):
    with pytest.raises(ValueError):
        JointTrajectory(('a',), 0, times, np.zeros((len(times), 1)), np.zeros((len(times), 1)), 1, 0)


def assert_safe(positions, velocities, previous, seconds):
    assert np.isfinite(positions).all() and np.isfinite(velocities).all()
    assert (positions >= LOWER).all() and (positions <= UPPER).all()
    assert (np.abs(positions - previous) <= VELOCITY * seconds + 1e-12).all()
    assert (np.abs(velocities) <= VELOCITY).all()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(start=arrays(np.float64, 3, elements=st.floats(-10, 10)),
       commands=st.lists(st.tuples(garbage, garbage, st.integers(-10**9, 10**12)), min_size=1, max_size=5))
def test_garbage_never_gives_an_unsafe_command(start, commands):
    safety = limiter(start)
    previous = np.clip(start, LOWER, UPPER)
    for positions, velocities, step_ns in commands:
        command = safety.limit(positions, velocities, step_ns)
        assert_safe(command.positions, command.velocities, previous, min(max(step_ns, 0), 100 * MS) * 1e-9)
        previous = command.positions


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), interpolation=st.sampled_from(Interpolation), blend_ms=st.integers(0, 500))
def test_garbage_chunks_never_give_an_unsafe_command(data, interpolation, blend_ms):
    """The whole way: chunks with any numbers, at any times, through buffer and limiter."""
    names = ('a', 'b', 'c')
    buffer = ChunkBuffer(names, blend_ns=blend_ms * MS, interpolation=interpolation)
    buffer.start(np.array([0.0, 0.0, -1.5]))
    safety = limiter()
    previous, now = np.array([0.0, 0.0, -1.5]), 0
    numbers = st.one_of(st.floats(-3, 3), st.floats(-3, 3), any_float)
    for frame in range(1, data.draw(st.integers(1, 4)) + 1):
        now += data.draw(st.integers(0, 400)) * MS
        rows = data.draw(arrays(np.float64, (data.draw(st.integers(1, 4)), 3), elements=numbers, fill=st.just(0.5)))
        start = now - data.draw(st.integers(-100, 300)) * MS
        try:
            buffer.push(JointChunk(names, rows, start, data.draw(st.integers(1, 100)) * MS, frame, now), now)
        except ChunkRejected:
            assert not np.isfinite(rows).all() or np.abs(rows).max() > 1000
        trajectory = buffer.trajectory(now)
        if trajectory is not None:
            last, last_ns = previous, 0
            limited = safety.limit_trajectory(trajectory)
            for time_ns, positions, velocities in zip(limited.times_ns, limited.positions, limited.velocities):
                assert_safe(positions, velocities, last, (time_ns - last_ns) * 1e-9)
                last, last_ns = positions, time_ns
        for _ in range(3):
            now += 20 * MS
            command = buffer.sample(now)
            if command is not None:
                limited = safety.limit(command.positions, command.velocities, 20 * MS)
                assert_safe(limited.positions, limited.velocities, previous, 0.02)
                previous = limited.positions
