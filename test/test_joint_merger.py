"""Joint states of any order, with gaps and rubbish, become positions by name."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from oxygen_ros.perception.joint_merger import (
    MAX_JOINTS,
    MAX_LAYOUTS,
    MAX_NAMES,
    MAX_SAMPLES,
    JointFault,
    JointMerger,
)

CASES = Path(__file__).parent / 'data' / 'cases'
MS = 1_000_000


def states(case):
    """Yield (log time, stamp, message) of the joint states of a case."""
    with AnyReader([CASES / case / 'bag']) as bag:
        for connection, log_ns, raw in bag.messages():
            message = bag.deserialize(raw, connection.msgtype)
            yield log_ns, message.header.stamp.sec * 10**9 + message.header.stamp.nanosec, message


def play(case, merger):
    """Feed the joint states of a case; yield (milliseconds since the start, message, snapshot after it)."""
    start_ns = None
    for log_ns, stamp_ns, message in states(case):
        start_ns = log_ns if start_ns is None else start_ns
        merger.add(message.name, message.position, message.velocity, stamp_ns)
        yield (log_ns - start_ns) / MS, message, merger.snapshot(stamp_ns)


def model_order(case):
    content = json.loads((CASES / case / 'model_joint_order.json').read_text())
    return tuple(content if isinstance(content, list) else content['joints'])


def expected(case):
    return json.loads((CASES / case / 'case.json').read_text())['expected']


def test_permuted_joints_reach_their_own_place():
    case = '28-joint-order-shuffled'
    snapshots = [snapshot for _, _, snapshot in play(case, JointMerger(model_order(case)))]
    assert len(snapshots) == 10
    for snapshot in snapshots:
        assert snapshot.names == model_order(case)
        assert snapshot.positions.tolist() == expected(case)['vector']


def test_missing_joint_is_named_and_nothing_takes_its_place():
    case = '29-one-joint-missing'
    wanted = dict(zip(model_order(case), expected(case)['vector']))
    for milliseconds, _, snapshot in play(case, JointMerger(model_order(case))):
        complete = milliseconds >= expected(case)['complete_from_ms']
        assert snapshot.missing == (() if complete else (expected(case)['missing'],))
        assert dict(zip(snapshot.names, snapshot.positions)) == {
            name: value for name, value in wanted.items() if name not in snapshot.missing}


def test_not_finite_position_is_never_used_and_named():
    case = '30-joint-position-nan'
    merger = JointMerger(max_age_ns=70 * MS)
    seen = []
    for index, (_, message, snapshot) in enumerate(play(case, merger)):
        bad = {name for name, position in zip(message.name, message.position) if not math.isfinite(position)}
        assert bool(bad) == (index in expected(case)['bad_messages'])
        assert merger.not_finite == bad
        values, sent = dict(zip(snapshot.names, snapshot.positions)), dict(zip(message.name, message.position))
        assert np.isfinite(snapshot.positions).all()
        assert all(values[name] == sent[name] for name in sent if name not in bad)
        seen.append(expected(case)['bad_joint'] in values)
    assert not all(seen), 'the last good value was kept longer than its age allows'
    assert merger.counters[JointFault.NOT_FINITE] == len(expected(case)['bad_messages'])


def test_velocities_without_positions_change_no_position():
    case = '31-names-without-positions'
    merger = JointMerger()
    snapshots = [snapshot for _, _, snapshot in play(case, merger)]
    vector = expected(case)['vector']
    named = dict(zip(snapshots[-1].names, snapshots[-1].positions))
    assert sorted(value for name, value in named.items())[-len(vector):] == sorted(vector)
    assert snapshots[-1].missing == () and merger.counters.total() == 0  # wheels without positions are not missed


def test_publishers_of_different_joints_are_merged():
    case = '35-arm-and-hand-publishers'
    for milliseconds, _, snapshot in play(case, JointMerger(model_order(case))):
        if milliseconds >= expected(case)['complete_from_ms']:
            assert snapshot.positions.tolist() == expected(case)['vector']
        else:
            assert snapshot.missing


def test_empty_or_nan_velocity_is_absent_not_zero():
    case = '36-velocity-or-effort-empty'
    velocities = []
    for _, stamp_ns, message in states(case):
        merger = JointMerger()
        merger.add(message.name, message.position, message.velocity, stamp_ns)
        snapshot = merger.snapshot(stamp_ns)
        assert snapshot.positions.tolist() == expected(case)['vector']
        velocities.append(snapshot.velocities)
    assert any(velocity is None for velocity in velocities)
    assert all(velocity is None or np.isfinite(velocity).all() for velocity in velocities)


def test_nearest_sample_in_time_counts():
    merger = JointMerger(('a',), max_age_ns=50 * MS)
    for milliseconds in (300, 100, 200):  # out of order
        merger.add(('a',), (float(milliseconds),), (), milliseconds * MS)
    assert [merger.snapshot(at * MS).positions.tolist() for at in (60, 149, 151, 240, 350)] == [
        [100.0], [100.0], [200.0], [200.0], [300.0]]
    assert merger.snapshot(351 * MS).missing == ('a',)
    assert merger.snapshot(49 * MS).missing == ('a',)


def test_stamp_of_a_snapshot_is_its_oldest_position():
    merger = JointMerger(('a', 'b'))
    merger.add(('b',), (1.0,), (), 90 * MS)
    merger.add(('a',), (2.0,), (), 100 * MS)
    assert merger.snapshot(100 * MS).stamp_ns == 90 * MS
    assert merger.newest().positions.tolist() == [2.0, 1.0]


def test_lengths_that_differ_refuse_the_message():
    merger = JointMerger()
    merger.add(('a', 'b'), (1.0,), (), MS)
    merger.add((), (1.0,), (), MS)
    assert merger.counters == {JointFault.LENGTH_MISMATCH: 2}
    assert merger.snapshot(MS).names == ()


def test_wrong_number_of_velocities_leaves_the_positions():
    merger = JointMerger()
    merger.add(('a', 'b'), (1.0, 2.0), (0.5,), MS)
    snapshot = merger.snapshot(MS)
    assert snapshot.positions.tolist() == [1.0, 2.0] and snapshot.velocities is None
    assert merger.counters[JointFault.VELOCITY_MISMATCH] == 1


def test_joint_named_twice_is_not_guessed():
    merger = JointMerger(('a', 'b'))
    merger.add(('a', 'b', 'a'), (1.0, 2.0, 3.0), (), MS)
    snapshot = merger.snapshot(MS)
    assert snapshot.names == ('b',) and snapshot.missing == ('a',)
    assert merger.counters[JointFault.DUPLICATE_NAME] == 1


def test_unknown_joints_are_ignored_and_remembered():
    merger = JointMerger(('a',))
    merger.add(('finger', 'a'), (9.0, 1.0), (), MS)
    assert merger.snapshot(MS).names == ('a',)
    assert merger.unknown == {'finger'} and merger.counters[JointFault.UNKNOWN_NAME] == 1


def test_velocity_of_every_joint_or_none():
    merger = JointMerger()
    merger.add(('a',), (1.0,), (0.1,), MS)
    assert merger.snapshot(MS).velocities.tolist() == [0.1]
    merger.add(('b',), (2.0,), (), MS)
    assert merger.snapshot(MS).velocities is None
    merger.add(('b',), (2.0,), (math.inf,), 2 * MS)
    assert merger.snapshot(2 * MS).velocities is None


def test_clear_forgets_positions():
    merger = JointMerger(('a',))
    merger.add(('a',), (math.nan,), (), MS)
    merger.add(('a',), (1.0,), (), MS)
    merger.add(('a',), (math.nan,), (), MS)
    merger.clear()
    assert merger.snapshot(MS).missing == ('a',) and merger.not_finite == set()


def test_memory_is_bounded():
    merger = JointMerger()
    for index in range(2 * MAX_SAMPLES):
        merger.add((f'joint{index}',), (1.0,), (), index)
    assert len(merger._samples) == len(merger._stamps) == MAX_SAMPLES
    assert len(merger._column) == MAX_JOINTS and len(merger._layouts) <= MAX_LAYOUTS


def test_message_with_more_joints_than_any_robot_has_is_refused():
    merger = JointMerger()
    names = tuple(f'joint{index}' for index in range(MAX_NAMES + 1))
    merger.add(names, [0.0] * len(names), (), MS)
    merger.add(('x' * 10_000,), (1.0,), (), MS)
    assert merger.counters[JointFault.TOO_MANY] == 1 and not merger._column and len(min(merger.unknown)) < 1000


def test_message_far_out_of_order_is_refused():
    merger = JointMerger(('a',))
    merger.add(('a',), (1.0,), (), 10_000 * MS)
    merger.add(('a',), (2.0,), (), 5_000 * MS)
    assert merger.counters[JointFault.LATE] == 1
    assert merger.newest().positions.tolist() == [1.0]


def test_joints_must_be_unique():
    with pytest.raises(ValueError, match='unique'):
        JointMerger(('a', 'a'))
