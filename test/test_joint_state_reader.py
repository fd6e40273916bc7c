"""Joint states read from their bytes are what ROS reads from them."""

import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import JointState

from oxygen_ros.nodes.joint_state_reader import JointStateReader

VALUES = st.lists(st.floats(), max_size=5)
NAMES = st.lists(st.text(st.characters(exclude_characters='\0', exclude_categories=['Cs']), max_size=9), max_size=5)
READER = JointStateReader()  # of all examples: it remembers names


def message(frame, names, positions, velocities, seconds=5, nanoseconds=7):
    made = JointState(name=names, position=array.array('d', positions), velocity=array.array('d', velocities),
                      effort=array.array('d', [9.0]))
    made.header.frame_id = frame
    made.header.stamp.sec, made.header.stamp.nanosec = seconds, nanoseconds
    return made


@settings(max_examples=150, deadline=None)
@given(st.text('abcdefgh', max_size=9), NAMES, VALUES, VALUES, st.integers(-2**31, 2**31 - 1),
       st.integers(0, 2**32 - 1))
def test_same_as_ros(frame, names, positions, velocities, seconds, nanoseconds):
    data = serialize_message(message(frame, names, positions, velocities, seconds, nanoseconds))
    for _ in range(2):  # the second time the names are known
        joints = READER.read(data)
        theirs = deserialize_message(data, JointState)
        assert joints.names == tuple(theirs.name) == tuple(names)
        assert np.array_equal(joints.positions, theirs.position, equal_nan=True)
        assert np.array_equal(joints.velocities, theirs.velocity, equal_nan=True)
        assert joints.stamp_ns == seconds * 10**9 + nanoseconds


def test_other_order_and_longer_lists_are_not_taken_for_the_names_before():
    reader = JointStateReader()
    for names in (['a', 'b'], ['b', 'a'], ['a', 'b', 'c'], ['a'], ['a', 'b'], []):
        assert reader.read(serialize_message(message('', names, [1.0] * len(names), []))).names == tuple(names)


def test_big_endian_is_left_to_ros():
    big = bytes.fromhex('0000 0000 00000005 00000007 00000001 00 000000 00000001 00000002 6100 0000'
                        '00000001 3ff0000000000000 00000000 00000000')
    joints = JointStateReader().read(big)
    assert joints.names == ('a',) and joints.positions.tolist() == [1.0] and joints.stamp_ns == 5 * 10**9 + 7


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_a_value_error_or_numbers(data):
    whole = bytearray(serialize_message(message('base', ['left', 'right'], [1.0, 2.0], [3.0, 4.0])))
    whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[:data.draw(st.integers(4, len(whole)))])
    try:
        joints = READER.read(cut)
    except ValueError:
        return
    assert joints.positions.dtype == np.float64 and len(joints.names) < 10


def test_bytes_that_are_nothing_are_refused():
    with pytest.raises(ValueError, match='no JointState'):
        JointStateReader().read(b'\x00\x01\x00\x00\x01')
