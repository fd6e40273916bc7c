"""Whatever comes in, nothing raises out of the node, and what goes out is whole and finite."""

import array
import io
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState

from oxygen_ros.nodes.conversion import observation_from_msg, time_to_msg
from oxygen_ros.nodes.perception import PerceptionNode
from oxygen_ros.perception.compressed import decode_compressed
from oxygen_ros.perception.images import ImageError, decode_raw
from oxygen_ros.perception.joint_merger import JointMerger

ENCODINGS = ('rgb8', 'BGR8', 'rgba8', 'bgra16', 'mono8', 'mono16', '8UC1', '8UC3', '16UC1', 'yuv422', 'yuv422_yuy2',
             'nv12', 'nv21', 'bayer_rggb8', 'bayer_gbrg16', '32FC1', 'foo', '', 'rgb8; jpeg', 'nv12\0')
NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-3, 3))
SIZES = st.one_of(st.integers(0, 9), st.sampled_from([2**16, 2**31, 2**32 - 1]))
JOINTS = ('left', 'right', 'waist')
NAMES = st.lists(st.sampled_from([*JOINTS, 'other', '', 'ü' * 40]), max_size=6)
VALUES = st.lists(NUMBERS, max_size=7)
STAMPS = st.one_of(st.integers(0, 3 * 10**9), st.sampled_from([0, 1, 2**31 * 10**9 - 1]))


def compressed(kind):
    buffer = io.BytesIO()
    PilImage.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(buffer, kind)
    return buffer.getvalue()


WHOLE = [compressed(kind) for kind in ('JPEG', 'PNG', 'WEBP')]


@st.composite
def picture_bytes(draw):
    """Give random bytes, or a picture with some of its bytes changed, cut off or put in."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=64))
    data = bytearray(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(0, 4))):
        position = draw(st.integers(0, len(data) - 1))
        data[position:position + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
        data = data or bytearray(b'\0')
    return bytes(data[:draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ENCODINGS), SIZES, SIZES, SIZES, st.booleans(), st.binary(max_size=300),
       st.sampled_from(['', 'rgb', 'bgr']))
def test_any_raw_picture_has_the_declared_size_or_is_refused(encoding, height, width, step, big, data, order):
    try:
        pixels = decode_raw(encoding, height, width, step, big, data, channel_order=order)
    except ImageError:
        return
    assert pixels.shape == (height, width, 3) and pixels.dtype == np.uint8


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=20), picture_bytes())
def test_any_compressed_picture_is_decoded_or_refused(text, data):
    try:
        pixels = decode_compressed(text, data, max_pixels=10_000)
    except ImageError:
        return
    assert pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8 and 0 < pixels.size <= 30_000


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES, VALUES, STAMPS), max_size=5), STAMPS, st.booleans())
def test_any_joint_states_give_finite_positions_of_known_joints(messages, at_ns, fixed):
    merger = JointMerger(JOINTS if fixed else (), max_age_ns=10**9)
    sent = {}
    for names, positions, velocities, stamp_ns in messages:
        merger.add(names, positions, velocities, stamp_ns)
        if len(positions) == len(names):
            for name, position in zip(names, positions):
                sent.setdefault(name, set()).add(position)
    snapshot = merger.snapshot(at_ns)
    assert np.isfinite(snapshot.positions).all() and len(snapshot.positions) == len(snapshot.names)
    assert all(position in sent[name] for name, position in zip(snapshot.names, snapshot.positions))
    assert snapshot.velocities is None or np.isfinite(snapshot.velocities).all()
    if fixed:
        assert sorted((*snapshot.names, *snapshot.missing)) == sorted(JOINTS)


@pytest.fixture
def node(ros_graph):
    """Give a perception node whose frames are collected, as messages."""
    node = ros_graph.add(PerceptionNode, robot='', cameras=['raw', 'jpeg'], camera_topics=['/raw', '/jpeg'],
                         camera_types=['raw', 'compressed'], joints=list(JOINTS), rate=0.0, image_height=8,
                         image_width=8, missing_cameras=['optional'], wait=0.0, slop=10.0)
    node.frames = []
    node._frames = SimpleNamespace(publish=node.frames.append)
    return node


EVENTS = st.one_of(
    st.tuples(st.just('raw'), st.sampled_from(ENCODINGS), SIZES, SIZES, SIZES, st.binary(max_size=300), STAMPS),
    st.tuples(st.just('good'), STAMPS),
    st.tuples(st.just('jpeg'), st.text('abjpegcn8;', max_size=8), picture_bytes(), STAMPS),
    st.tuples(st.just('bytes'), st.binary(max_size=40).map(lambda data: b'\0\1\0\0' + data), STAMPS),
    st.tuples(st.just('joints'), NAMES, VALUES, VALUES, STAMPS))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENTS, max_size=12))
def test_any_messages_leave_the_node_alive_and_its_frames_whole(node, events):
    now_ns = node.get_clock().now().nanoseconds
    node.frames.clear()
    for kind, *fields, offset_ns in events:
        stamp = time_to_msg(now_ns - 10**9 + offset_ns if 0 < offset_ns < 2**40 else min(offset_ns, 2**31 * 10**9 - 1))
        if kind == 'joints':
            names, positions, velocities = fields
            message = JointState(name=names, position=array.array('d', positions),
                                 velocity=array.array('d', velocities))
            message.header.stamp = stamp
            node._on_joints(serialize_message(message), now_ns)
            continue
        if kind == 'bytes':
            node._on_joints(fields[0], now_ns)
            continue
        if kind == 'raw':
            encoding, height, width, step, data = fields
            message = Image(encoding=encoding.replace('\0', ''), height=height, width=width, step=step,
                            data=array.array('B', data))
        elif kind == 'good':
            message = Image(encoding='mono8', height=2, width=3, step=3, data=array.array('B', bytes(6)))
        else:
            message = CompressedImage(format=fields[0], data=array.array('B', fields[1]))
        message.header.stamp = stamp
        node._on_image('jpeg' if kind == 'jpeg' else 'raw', message, {'received_timestamp': now_ns})
    for message in node.frames:
        observation = observation_from_msg(message)  # raises if the frame contradicts itself
        assert all(image.shape == (8, 8, 3) for image in observation.images.values()) and observation.images
        assert all(map(math.isfinite, observation.joint_positions)) and set(observation.joint_names) <= set(JOINTS)
