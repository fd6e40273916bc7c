"""From chunks to a smooth stream of commands: alignment in time, blending, running dry, expiry."""

import json
from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.robot.chunk import CommandSource, JointChunk
from oxygen_ros.robot.chunk_buffer import ChunkBuffer, PushResult, WhenEmpty
from oxygen_ros.robot.interpolation import Curve, Interpolation, decay
from oxygen_ros.robot.joints import MissingJoint
from oxygen_ros.robot.safety import ChunkRejected

CASES = Path(__file__).parent / 'data' / 'cases'
MS = 1_000_000
NAMES = ('a', 'b')


def chunk(rows, start_ms, period_ms=100, frame=1, names=NAMES):
    """Return a chunk whose first row is for the time of its observation; a flat list is the same for every joint."""
    positions = np.array(rows, dtype=np.float64)
    if positions.ndim == 1:
        positions = np.repeat(positions[:, None], len(names), axis=1)
    return JointChunk(names, positions, start_ms * MS, period_ms * MS, frame, start_ms * MS)


def started(positions=(0.0, 0.0), **options):
    buffer = ChunkBuffer(NAMES, **options)
    buffer.start(np.array(positions))
    return buffer


def replay(case, blend_ticks=0):
    """Run the timeline of a case tick by tick; return tick -> value (None: no command) and tick -> source."""
    timeline = json.loads((CASES / case / 'timeline.json').read_text())
    tick = 10**9 // timeline['fps']
    buffer = ChunkBuffer(['j'], blend_ns=blend_ticks * tick, lifetime_ns=10**10, interpolation=Interpolation.LINEAR)
    buffer.start(np.zeros(1))
    values, sources = {}, {}
    for now in range(timeline['ticks']):
        for inference in timeline['inferences']:
            if inference['ready_tick'] == now:
                rows = 1000.0 * inference['chunk'] + np.arange(timeline['chunk_size'])[:, None]
                start = inference['start_tick'] * tick
                # Values as large as 2000 are no joint positions: scale them down on the way in, and up again.
                buffer.push(JointChunk(('j',), rows / 1e4, start, tick, inference['chunk'], start), now * tick)
        command = buffer.sample(now * tick)
        values[now] = None if command is None else command.positions[0] * 1e4
        sources[now] = None if command is None else command.source
    return values, sources


def test_first_chunk_begins_with_its_first_step_and_later_ones_skip_what_was_executed():
    case = '44-first-chunk-not-skipped'
    values, _ = replay(case)
    assert all(values[tick] is None for tick in range(21))
    for tick, action in json.loads((CASES / case / 'case.json').read_text())['expected']['executed'].items():
        assert values[int(tick)] == pytest.approx(action), tick


def test_blending_first_chunk_does_not_skip_either():
    values, _ = replay('44-first-chunk-not-skipped', blend_ticks=3)
    assert values[21] == pytest.approx(0)
    assert 0 < values[24] <= 3
    assert values[48] == pytest.approx(1012)


def test_dry_buffer_holds_the_last_step_and_goes_on_with_the_next_chunk():
    values, sources = replay('46-queue-runs-dry')
    assert [values[tick] for tick in range(10, 60)] == pytest.approx(range(50))
    assert [values[tick] for tick in range(60, 100)] == pytest.approx([49] * 40)
    held = [tick for tick, source in sources.items() if source is CommandSource.HOLD]
    assert held == [*range(60, 100), *range(160, 180)]
    # Chunk 1 was computed while nothing was executed; chunk 2 while 10 steps were.
    assert [values[tick] for tick in (100, 101, 119, 120, 121)] == pytest.approx([1000, 1001, 1019, 2010, 2011])
    assert sum(value is not None for value in values.values()) >= 150


def test_only_steps_executed_since_the_inference_began_are_skipped():
    buffer = started(blend_ns=0, interpolation='linear')
    buffer.push(chunk([0, 1, 2, 3], 0), 0)  # the last step lasts until 400 ms
    assert buffer.push(chunk([10, 11, 12, 13, 14], 200, frame=2), 1000 * MS) is PushResult.STARTED
    assert buffer.sample(1000 * MS).positions[0] == pytest.approx(12)


def test_dry_buffer_can_stop_instead():
    buffer = started(when_empty='stop')
    buffer.push(chunk([0, 0.1, 0.2], 0), 0)
    assert buffer.sample(299 * MS) is not None
    assert buffer.sample(300 * MS) is None
    assert WhenEmpty.STOP == 'stop'


def test_position_measured_while_nothing_is_commanded_is_where_the_next_chunk_begins():
    buffer = started(when_empty='stop', blend_ns=100 * MS)
    buffer.start([0.1, 0.1])  # moved by hand before the first chunk
    assert not buffer.commanding
    buffer.push(chunk([0, 0.1, 0.2], 0), 0)
    assert buffer.commanding
    assert buffer.sample(0).positions == pytest.approx([0.1, 0.1])
    assert buffer.commanding
    assert buffer.sample(500 * MS) is None
    assert not buffer.commanding
    buffer.start([0.7, 0.7])  # moved by hand after the last one
    assert buffer.push(chunk([0, 0, 0], -10, frame=9), 600 * MS) is PushResult.OLDER_FRAME
    assert buffer.push(chunk([0.5, 0.6, 0.7], 550, frame=2), 600 * MS) is PushResult.STARTED
    assert buffer.sample(600 * MS).positions == pytest.approx([0.7, 0.7])


def test_commands_carry_the_observation_that_they_answer():
    buffer = started()
    buffer.push(chunk([0, 0.1], 40, frame=7), 50 * MS)
    command = buffer.sample(60 * MS)
    assert (command.names, command.frame_number, command.stamp_ns) == (NAMES, 7, 40 * MS)


def test_nothing_is_commanded_before_the_measured_position_is_known():
    buffer = ChunkBuffer(NAMES)
    assert buffer.push(chunk([0, 1], 0), 0) is PushResult.NOT_STARTED
    assert buffer.sample(0) is None
    assert buffer.trajectory(0) is None
    buffer.start(np.zeros(2))
    assert buffer.sample(0) is None
    with pytest.raises(ValueError, match='finite'):
        buffer.start([0.0, np.nan])


def test_first_chunk_blends_in_from_the_measured_position():
    buffer = started([0.5, -0.5], blend_ns=200 * MS)
    buffer.push(chunk([0.0, 0.0, 0.0, 0.0], 0), 0)
    first = buffer.sample(0)
    assert first.positions == pytest.approx([0.5, -0.5])
    assert first.velocities == pytest.approx([0, 0])
    ways = np.array([buffer.sample(t * MS).positions for t in range(0, 201, 10)])
    assert (np.diff(ways[:, 0]) < 0).all() and (np.diff(ways[:, 1]) > 0).all()
    assert ways[-1] == pytest.approx([0, 0])


def test_first_chunk_takes_its_own_time_and_later_ones_do_not_shorten_it():
    buffer = started([0.5, 0.5], blend_ns=50 * MS, start_ns=400 * MS)
    ways = []
    for now in range(0, 401, 10):
        if now % 100 == 0 and now < 400:
            buffer.push(chunk([0.0] * 10, now, frame=now), now * MS)  # takes over what is left of the way
        ways.append(buffer.sample(now * MS).positions[0])
    speeds = np.diff(ways) / 0.01
    assert ways[0] == pytest.approx(0.5) and ways[-1] == pytest.approx(0.0, abs=1e-9)
    assert (speeds <= 1e-9).all() and speeds.min() > -2.5  # 50 ms would take 15 rad/s
    assert np.abs(np.diff(speeds)).max() < 0.4
    buffer.push(chunk([0.2] * 10, 500, frame=3), 500 * MS)
    assert buffer.sample(550 * MS).positions[0] == pytest.approx(0.2)  # from then on the usual time


@pytest.mark.parametrize('interpolation', Interpolation)
def test_position_and_velocity_are_continuous_when_chunks_take_over(interpolation):
    generator = np.random.default_rng(1)
    buffer = started(interpolation=interpolation, blend_ns=150 * MS)
    for frame in range(1, 12):
        now = frame * 130 * MS
        before = buffer.sample(now)
        buffer.push(chunk(generator.uniform(-1, 1, (6, 2)), frame * 130 - 60, frame=frame), now)
        after = buffer.sample(now)
        if before is not None:
            assert after.positions == pytest.approx(before.positions, abs=1e-12)
            assert after.velocities == pytest.approx(before.velocities, abs=1e-9)
    buffer.sample(2_000 * MS)  # runs dry within a blend: still continuous
    assert buffer.sample(3_000 * MS).velocities == pytest.approx([0, 0])


@pytest.mark.parametrize('interpolation', Interpolation)
def test_velocities_are_the_derivative_of_the_positions(interpolation):
    generator = np.random.default_rng(2)
    buffer = started([0.3, 0.1], interpolation=interpolation, blend_ns=250 * MS)
    buffer.push(chunk(generator.uniform(-1, 1, (8, 2)), 0), 0)
    step = 1000  # ns
    for time in (15, 133, 251, 399, 620):
        before, middle, after = (buffer.sample(time * MS + i * step) for i in range(3))
        difference = (after.positions - before.positions) / (2 * step * 1e-9)
        assert middle.velocities == pytest.approx(difference, abs=1e-4)


def test_steady_motion_passes_through_chunks_without_a_step_back():
    buffer = started(blend_ns=100 * MS)
    positions = []
    for tick in range(0, 1500, 20):
        if tick % 200 == 0:  # each chunk goes on along the same line: 1 rad/s from the time of its frame
            rows = (max(tick - 50, 0) + np.arange(11) * 100) / 1000
            buffer.push(chunk(rows, max(tick - 50, 0), frame=tick + 1), tick * MS)
        positions.append(buffer.sample(tick * MS).positions[0])
    assert (np.diff(positions) > 0).all()
    assert positions[-1] == pytest.approx(1.48, abs=0.01)


def test_cubic_curve_stays_between_its_rows_and_ends_at_rest():
    rows = np.random.default_rng(3).uniform(-1, 1, (9, 2))
    curve = Curve(rows, 0, 100, Interpolation.CUBIC)
    for time in range(801):
        row = min(time // 100, 7)
        low, high = np.sort(rows[row:row + 2], axis=0)
        position, _ = curve.at(time)
        assert (position >= low - 1e-12).all() and (position <= high + 1e-12).all()
        if time % 100 == 0:
            assert position == pytest.approx(rows[time // 100])
    assert np.abs(curve.at(799)[1]).max() < 0.05 * np.abs(np.diff(rows, axis=0)).max() / 100e-9
    assert curve.at(800)[1].tolist() == [0, 0]


@pytest.mark.parametrize('interpolation', Interpolation)
def test_curve_of_one_row_is_a_point(interpolation):
    curve = Curve(np.array([[1.0, 2.0]]), 50, 10, interpolation)
    for time in (0, 50, 51, 1000):
        position, velocity = curve.at(time)
        assert (position.tolist(), velocity.tolist()) == ([1.0, 2.0], [0.0, 0.0])


def test_difference_fades_to_nothing():
    offset, velocity = np.array([1.0]), np.array([-3.0])
    assert decay(offset, velocity, 0, 100)[0].tolist() == [1.0]
    assert decay(offset, velocity, 0, 100)[1].tolist() == [-3.0]
    assert decay(offset, velocity, 100, 100)[0].tolist() == [0.0]
    assert decay(offset, velocity, 0, 0)[0].tolist() == [0.0]


def test_result_of_an_older_frame_is_ignored():
    buffer = started()
    assert buffer.push(chunk([0, 0.1, 0.2], 100, frame=5), 100 * MS) is PushResult.STARTED
    assert buffer.push(chunk([9, 9, 9], 50, frame=4), 120 * MS) is PushResult.OLDER_FRAME
    assert buffer.push(chunk([9, 9, 9], 50, frame=4), 900 * MS) is PushResult.OLDER_FRAME
    assert buffer.sample(900 * MS).frame_number == 5


def test_frames_that_count_from_one_again_are_not_older():
    """The perception node was started again: its numbers begin at 1, its stamps go on."""
    buffer = started()
    buffer.push(chunk([0, 0.1, 0.2], 100, frame=500), 100 * MS)
    assert buffer.push(chunk([0, 0.1, 0.2], 150, frame=1), 160 * MS) is PushResult.BLENDED


def test_chunk_that_lies_in_the_past_is_ignored():
    buffer = started()
    buffer.push(chunk(np.zeros(20), 0), 0)
    assert buffer.push(chunk([1, 1, 1], 100, frame=2), 1000 * MS) is PushResult.PAST
    assert buffer.sample(1000 * MS).frame_number == 1


@pytest.mark.parametrize('steps', [1, 2])
def test_short_chunks_that_always_come_late_are_executed_all_the_same(steps):
    buffer = started(blend_ns=0)
    for frame in range(1, 6):
        late = chunk(np.full(steps, frame / 10), frame * 200, frame=frame)
        assert buffer.push(late, (frame * 200 + 350) * MS) is PushResult.STARTED
        assert buffer.sample((frame * 200 + 350) * MS).positions[0] == pytest.approx(frame / 10)


def test_chunk_for_the_future_begins_now():
    buffer = started(blend_ns=0, interpolation='linear')
    assert buffer.push(chunk([0, 1], 500), 0) is PushResult.STARTED
    assert buffer.sample(50 * MS).positions[0] == pytest.approx(0.5)


def test_commands_expire():
    buffer = started(blend_ns=0, interpolation='linear', lifetime_ns=250 * MS)
    buffer.push(chunk(np.arange(10) / 10, 0), 0)
    assert buffer.sample(249 * MS).source is CommandSource.CHUNK
    expired = buffer.sample(400 * MS)
    assert expired.source is CommandSource.HOLD
    assert expired.positions == pytest.approx([0.25, 0.25])
    assert expired.velocities.tolist() == [0, 0]
    assert buffer.push(chunk(np.arange(10), 140, frame=2), 400 * MS) is PushResult.EXPIRED


def test_hold_stops_at_once_and_a_newer_chunk_goes_on_from_there():
    buffer = started(blend_ns=0, interpolation='linear')
    buffer.hold(0)
    assert buffer.sample(0) is None  # nothing was commanded yet
    buffer.push(chunk(np.arange(10) / 10, 0), 0)
    buffer.hold(250 * MS)
    for time in (250, 400, 5000):
        command = buffer.sample(time * MS)
        assert command.source is CommandSource.HOLD
        assert command.positions == pytest.approx([0.25, 0.25])
        assert command.velocities.tolist() == [0, 0]
    buffer.hold(5500 * MS, np.array([0.2, 0.3]))
    assert buffer.sample(5500 * MS).positions.tolist() == [0.2, 0.3]
    assert buffer.trajectory(6000 * MS) is None
    assert buffer.push(chunk([0.5, 0.6, 0.7], 6000, frame=2), 6200 * MS) is PushResult.STARTED
    assert buffer.sample(6200 * MS).positions == pytest.approx([0.5, 0.5])


def test_clear_forgets_everything_so_that_a_clock_may_go_back():
    buffer = started()
    buffer.push(chunk([0, 1], 5000, frame=9), 5000 * MS)
    buffer.clear()
    assert buffer.sample(5010 * MS) is None
    assert buffer.push(chunk([0, 1], 10), 10 * MS) is PushResult.NOT_STARTED
    buffer.start(np.zeros(2))
    assert buffer.push(chunk([0, 1], 10), 10 * MS) is PushResult.STARTED
    assert buffer.sample(20 * MS) is not None


def test_time_that_goes_back_a_little_does_not_move_the_robot_back():
    buffer = started(interpolation='linear')
    buffer.push(chunk([0, 1, 2], 0), 0)
    forward = buffer.sample(150 * MS)
    assert buffer.sample(140 * MS).positions.tolist() == forward.positions.tolist()


def test_chunk_with_a_faulty_number_is_refused_and_the_other_goes_on():
    buffer = started()
    buffer.push(chunk([0, 0.1, 0.2], 0), 0)
    with pytest.raises(ChunkRejected):
        buffer.push(chunk([0, np.nan, 0], 50, frame=2), 60 * MS)
    assert buffer.sample(100 * MS).frame_number == 1
    assert np.isfinite(buffer.sample(110 * MS).positions).all()


def test_permuted_joints_reach_their_own_actuator():
    buffer = started(blend_ns=0)
    buffer.push(chunk([[3.0, 2.0, 1.0]], 0, names=('x', 'b', 'a')), 0)
    assert buffer.sample(0).positions.tolist() == [1.0, 2.0]
    with pytest.raises(MissingJoint, match="'b'"):
        buffer.push(chunk([[1.0]], 10, frame=2, names=('a',)), 10 * MS)


def test_trajectory_holds_the_steps_that_sample_will_give():
    buffer = started([0.4, 0.0], blend_ns=150 * MS)
    buffer.push(chunk(np.linspace(0, 0.5, 6), 0), 30 * MS)
    trajectory = buffer.trajectory(175 * MS)
    assert trajectory.start_ns == 175 * MS
    assert trajectory.times_ns == (55 * MS, 155 * MS, 255 * MS, 355 * MS)
    for time, positions, velocities in zip(trajectory.times_ns, trajectory.positions, trajectory.velocities):
        command = buffer.sample(trajectory.start_ns + time)
        assert command.positions.tolist() == positions.tolist()
        assert command.velocities.tolist() == velocities.tolist()
    assert buffer.trajectory(600 * MS) is None


def test_trajectory_that_is_cut_short_ends_at_rest():
    buffer = started(blend_ns=0, interpolation='linear', lifetime_ns=250 * MS)
    buffer.push(chunk(np.arange(10) / 10, 0), 0)
    trajectory = buffer.trajectory(0)
    assert trajectory.positions[:, 0] == pytest.approx([0, 0.1, 0.2])
    assert trajectory.velocities[:, 0] == pytest.approx([1, 1, 0])


def test_trajectory_of_a_whole_chunk_has_strictly_increasing_times():
    case = json.loads((CASES / '43-bad-trajectory-times' / 'chunk.json').read_text())
    expected = json.loads((CASES / '43-bad-trajectory-times' / 'case.json').read_text())['expected']
    names, actions = tuple(case['joints']), np.array(case['actions'])
    buffer = ChunkBuffer(names, blend_ns=0)
    buffer.start(np.zeros(29))
    now = 1_700_000_000_123_456_789
    buffer.push(JointChunk(names, actions, now, 10**9 // case['fps'], 1, now), now)
    trajectory = buffer.trajectory(now)
    assert trajectory.names == names
    assert len(trajectory.times_ns) == expected['points']
    assert trajectory.times_ns[0] == 0
    assert np.diff(trajectory.times_ns) * 1e-9 == pytest.approx([expected['dt_s']] * 9, abs=expected['tolerance_s'])
    assert trajectory.positions == pytest.approx(actions)
    assert trajectory.velocities.shape == (10, 29)
    assert np.isfinite(trajectory.velocities).all()


@pytest.mark.parametrize('wrong', [{'positions': np.zeros((0, 2))}, {'positions': np.zeros((3, 3))}, {'period_ns': 0},
                                   {'names': ('a', 'a')}])
def test_chunk_keeps_its_invariants(wrong):
    fields = {'names': NAMES, 'positions': np.zeros((3, 2)), 'period_ns': 1, **wrong}
    with pytest.raises(ValueError):
        JointChunk(start_ns=0, frame_number=1, stamp_ns=0, **fields)


def test_ensemble_averages_chunks_where_they_overlap():
    buffer = started(blend_ns=0, ensemble=0.25, interpolation=Interpolation.LINEAR)
    buffer.push(chunk([1.0] * 4, 0), 0)  # rows until 300 ms
    assert buffer.push(chunk([3.0] * 6, 200, frame=2), 200 * MS) is PushResult.BLENDED
    assert [buffer.sample(ms * MS).positions[0] for ms in (200, 300, 400, 700)] == [2.5, 2.5, 3.0, 3.0]
    buffer.push(chunk([5.0] * 2, 700, frame=3), 700 * MS)  # the average goes on with the average
    assert buffer.sample(700 * MS).positions[0] == 0.25 * 3 + 0.75 * 5


def test_ensemble_does_not_remember_beyond_a_hold():
    buffer = started(blend_ns=0, ensemble=0.5)
    buffer.push(chunk([1.0] * 4, 0), 0)
    buffer.hold(100 * MS)
    buffer.push(chunk([3.0] * 4, 200, frame=2), 200 * MS)
    assert buffer.sample(250 * MS).positions[0] == pytest.approx(3.0)


@pytest.mark.parametrize('ensemble', [-0.1, 1.0, float('nan')])
def test_ensemble_outside_its_range_is_refused(ensemble):
    with pytest.raises(ValueError, match='must be from 0 to below 1'):
        ChunkBuffer(NAMES, ensemble=ensemble)
