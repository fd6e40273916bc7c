"""Frames survive the way through a message; messages that contradict themselves are refused."""

import array

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image

from oxygen_ros.msg import Frame
from oxygen_ros.nodes.conversion import (
    FrameDetails,
    frame_to_msg,
    observation_from_msg,
    picture_decoder,
    time_from_msg,
    time_to_msg,
)
from oxygen_ros.observation import Observation
from oxygen_ros.perception.images import ImageError


def observation(**changes):
    generator = np.random.default_rng(0)
    return Observation(**{
        'number': 7, 'stamp_ns': 12_345_678_901, 'tf_frame': 'pelvis',
        'images': {'head': generator.integers(0, 255, (4, 6, 3), np.uint8), 'front': np.zeros((2, 2, 3), np.uint8)},
        'joint_names': ('a', 'b'), 'joint_positions': np.array([0.5, -1.0]), 'joint_velocities': np.array([0.1, 0.2]),
        **changes})


def through_bytes(frame):
    return deserialize_message(serialize_message(frame), Frame)


@pytest.mark.parametrize('changes', [{}, {'joint_velocities': None}, {'images': {}},
                                     {'joint_names': (), 'joint_positions': np.zeros(0), 'joint_velocities': None}])
def test_round_trip(changes):
    sent = observation(**changes)
    got = observation_from_msg(through_bytes(frame_to_msg(sent)))
    assert (got.number, got.stamp_ns, got.tf_frame, got.joint_names) == (
        sent.number, sent.stamp_ns, sent.tf_frame, sent.joint_names)
    assert list(got.images) == list(sent.images)
    assert all((got.images[name] == image).all() for name, image in sent.images.items())
    assert (got.joint_positions == sent.joint_positions).all()
    assert (got.joint_velocities is None) == (sent.joint_velocities is None)
    if sent.joint_velocities is not None:
        assert (got.joint_velocities == sent.joint_velocities).all()


def test_details_go_into_the_headers():
    frame = frame_to_msg(observation(), FrameDetails({'head': 5}, {'head': 'head_link'}, joint_stamp_ns=4))
    assert [time_from_msg(image.header.stamp) for image in frame.images] == [5, 12_345_678_901]
    assert frame.images[0].header.frame_id == 'head_link'
    assert time_from_msg(frame.joint_state.header.stamp) == 4
    assert time_from_msg(time_to_msg(-1)) == -1


def test_image_that_is_not_contiguous_is_sent_right():
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)[:, ::-1]
    got = observation_from_msg(frame_to_msg(observation(images={'head': image})))
    assert (got.images['head'] == image).all()


def change(**fields):
    def apply(frame):
        for path, value in fields.items():
            target, name = frame, path
            if path.startswith('image_'):
                target, name = frame.images[0], path[len('image_'):]
            elif path.startswith('joint_'):
                target, name = frame.joint_state, path[len('joint_'):]
            setattr(target, name, value)
    return apply


@pytest.mark.parametrize('damage, words', [
    (change(camera_names=['head']), '1 camera names but 2 images'),
    (change(camera_names=['head', 'head']), 'not unique'),
    (change(image_encoding='bgr8'), "encoding 'bgr8'"),
    (change(image_step=19), 'step 19'),
    (change(image_height=0), 'is empty'),
    (change(image_data=array.array('B', bytes(71))), '71 bytes, not 72'),
    (change(joint_position=array.array('d', [1.0])), '2 joint names'),
    (change(joint_velocity=array.array('d', [1.0])), 'velocities of shape'),
    (change(joint_position=array.array('d', [1.0, float('nan')])), 'not finite'),
    (change(joint_name=['a', 'a']), 'joint names are not unique')])
def test_message_that_contradicts_itself_is_refused_and_says_where(damage, words):
    frame = frame_to_msg(observation())
    damage(frame)
    with pytest.raises(ValueError, match='frame 7') as error:
        observation_from_msg(through_bytes(frame))
    assert words in str(error.value)


def test_images_share_the_memory_of_the_message_and_are_read_only():
    frame = frame_to_msg(observation())
    image = observation_from_msg(frame).images['head']
    assert np.shares_memory(image, np.frombuffer(frame.images[0].data, np.uint8))
    with pytest.raises(ValueError):
        image[0, 0, 0] = 1


def test_unusable_pictures_are_refused_on_arrival():
    with pytest.raises(ImageError):
        picture_decoder(CompressedImage(format='jpeg'))
    with pytest.raises(ImageError):
        picture_decoder(Image(encoding='rgb8', height=2, width=2, step=6, data=array.array('B', bytes(3))))
