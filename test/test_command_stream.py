"""From chunks to safe commands, with the stop latch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.robot.chunk import JointChunk
from oxygen_ros.robot.chunk_buffer import ChunkBuffer, PushResult, WhenEmpty
from oxygen_ros.robot.command_stream import CommandStream
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.robot.safety import ChunkRejected

MS = 1_000_000
NAMES = ('waist_yaw_joint', 'left_elbow_joint')
ROBOT = load_robot('unitree_g1')


@pytest.fixture
def stream():
    return CommandStream(ROBOT, ChunkBuffer(NAMES))


def chunk(positions, start_ms, frame=1):
    return JointChunk(NAMES, np.tile(positions, (10, 1)), start_ms * MS, 100 * MS, frame, start_ms * MS)


def commands(stream, start_ms, count=50):
    """Return the positions sent at 50 Hz."""
    return np.array([stream.command((start_ms + 20 * i) * MS)[1].positions for i in range(count)])


def test_nothing_is_commanded_without_measured_positions(stream):
    assert stream.push(chunk([0.1, 0.1], 0), 0) == (PushResult.NOT_STARTED, None)
    stream.measured(('waist_yaw_joint',), np.zeros(1))  # a joint is missing
    assert stream.push(chunk([0.1, 0.1], 0), 0) == (PushResult.NOT_STARTED, None)
    assert stream.command(20 * MS) is None


def test_commands_begin_at_the_position_measured_last_and_keep_the_velocity_limit(stream):
    stream.measured(NAMES, np.array([1.0, 1.0]))
    stream.measured(NAMES[::-1], np.array([0.5, -0.5]))  # moved by hand before the first chunk; joints in another order
    stream.push(chunk([0.5, 0.5], 100), 100 * MS)
    positions = commands(stream, 100)
    assert positions[0] == pytest.approx([-0.5, 0.5])
    speed = np.abs(np.diff(positions, axis=0)).max(axis=0) / 0.02
    assert (speed <= [joint.velocity + 1e-9 for joint in ROBOT.select(NAMES)]).all()
    assert positions[-1][0] > 0.3


def test_positions_measured_while_moving_do_not_disturb(stream):
    stream.measured(NAMES, np.zeros(2))
    stream.push(chunk([0.1, 0.1], 0), 0)
    before = commands(stream, 0)[-1]
    stream.measured(NAMES, np.ones(2))
    assert stream.command(1020 * MS)[1].positions == pytest.approx(before)


def test_stop_holds_at_once_until_resume(stream):
    stream.measured(NAMES, np.zeros(2))
    stream.push(chunk([0.5, 0.5], 0), 0)
    moving = commands(stream, 0, 5)[-1]
    stream.stop(80 * MS)
    assert stream.push(chunk([0.5, 0.5], 90, frame=2), 90 * MS) == (None, None)
    held = commands(stream, 100)
    assert held == pytest.approx(np.tile(moving, (50, 1)))  # although the velocity limit made it lag behind the chunk
    stream.resume()
    assert stream.push(chunk([0.5, 0.5], 1200, frame=3), 1200 * MS)[0] is PushResult.STARTED


def test_result_of_a_request_from_before_the_stop_is_ignored_after_it(stream):
    stream.measured(NAMES, np.zeros(2))
    stream.push(chunk([0.5, 0.5], 0), 0)
    stream.stop(100 * MS)
    stream.resume(200 * MS)
    assert stream.push(chunk([0.9, 0.9], 150, frame=2), 250 * MS) == (PushResult.OLDER_FRAME, None)
    assert stream.push(chunk([0.9, 0.9], 210, frame=3), 260 * MS)[0] is PushResult.STARTED
    stream.clear()  # the clock jumped back: times from before say nothing
    stream.measured(NAMES, np.zeros(2))
    assert stream.push(chunk([0.1, 0.1], 10, frame=4), 20 * MS)[0] is PushResult.STARTED


def test_trajectory_is_limited_like_the_commands(stream):
    stream.measured(NAMES, np.zeros(2))
    result, trajectory = stream.push(chunk([9.0, 9.0], 0), 0)
    assert result is PushResult.STARTED
    limits = np.array([joint.upper for joint in ROBOT.select(NAMES)])
    assert (trajectory.positions <= limits).all()
    assert trajectory.positions[0] == pytest.approx([0, 0])
    assert trajectory.velocities[-1].tolist() == [0, 0]


def test_clear_begins_anew_and_keeps_a_stop(stream):
    stream.measured(NAMES, np.zeros(2))
    stream.push(chunk([0.1, 0.1], 5000), 5000 * MS)
    stream.stop(5000 * MS)
    stream.clear()
    assert stream.command(5020 * MS) is None
    assert stream.stopped
    stream.resume()
    stream.measured(NAMES, np.zeros(2))
    assert stream.push(chunk([0.1, 0.1], 10), 10 * MS)[0] is PushResult.STARTED  # the clock went back


def test_pause_in_the_commands_allows_no_larger_step(stream):
    """As after commands have stopped because chunks ran out: the first command is the measured position."""
    paused = CommandStream(ROBOT, ChunkBuffer(NAMES, when_empty=WhenEmpty.STOP))
    paused.measured(NAMES, np.zeros(2))
    paused.push(chunk([0.5, 0.5], 0), 0)
    for i in range(100):
        paused.command(20 * i * MS)
    paused.measured(NAMES, np.zeros(2))  # moved back meanwhile
    assert paused.push(chunk([0.5, 0.5], 5000, frame=2), 5000 * MS)[0] is PushResult.STARTED
    positions = commands(paused, 5090, 5)  # the first command comes late
    assert positions[0].tolist() == [0, 0]
    speed = np.abs(np.diff(positions, axis=0)).max(axis=0) / 0.02
    assert (speed <= [joint.velocity + 1e-9 for joint in ROBOT.select(NAMES)]).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(['push', 'push', 'push', 'stop', 'resume', 'measured', 'wait', 'clear']),
                          st.one_of(st.floats(-900, 900), st.floats()), st.integers(0, 400)), max_size=25),
       st.sampled_from([0, 100, 500]), st.sampled_from([None, 0, 700]), st.sampled_from(WhenEmpty))
def test_whatever_happens_nothing_outside_the_limits_is_sent(happenings, blend_ms, start_ms, when_empty):
    start_ns = None if start_ms is None else start_ms * MS
    stream = CommandStream(ROBOT, ChunkBuffer(NAMES, blend_ns=blend_ms * MS, start_ns=start_ns, when_empty=when_empty))
    joints = ROBOT.select(NAMES)
    lower, upper = (np.array([getattr(joint, name) for joint in joints]) for name in ('lower', 'upper'))
    velocity = np.array([joint.velocity for joint in joints])
    stream.measured(NAMES, np.zeros(2))
    now, frame, last = 0, 0, None
    for what, value, wait in happenings:
        frame += 1
        trajectory = None
        if what == 'push':
            try:
                _, trajectory = stream.push(chunk([value, -value], now, frame), now * MS)
            except ChunkRejected:
                assert not abs(value) <= 1000
        elif what == 'stop':
            trajectory = stream.stop(now * MS)
        elif what == 'resume':
            stream.resume(now * MS)
        elif what == 'measured' and np.isfinite(value):  # as observations are
            stream.measured(NAMES, np.array([value, -value]))
            last = last if stream.command(now * MS) else None  # where it is, when nothing was commanded
        elif what == 'clear':
            stream.clear()
            stream.measured(NAMES, np.zeros(2))
            last = None
        if trajectory is not None:
            assert (trajectory.positions >= lower).all() and (trajectory.positions <= upper).all()
            assert (np.abs(trajectory.velocities) <= velocity).all() and not trajectory.velocities[-1].any()
        for _ in range(wait // 20 + 1):
            now += 20
            command = stream.command(now * MS)
            if command is None:
                continue
            positions, velocities = command[1].positions, command[1].velocities
            assert (positions >= lower).all() and (positions <= upper).all()
            assert (np.abs(velocities) <= velocity).all()
            assert last is None or (np.abs(positions - last) <= velocity * 0.02 + 1e-9).all()
            last = positions
