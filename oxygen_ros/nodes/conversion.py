"""Between ROS messages and the ROS-free types: Frame, Image, CompressedImage, JointState, Time."""

from __future__ import annotations

import array
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Header

from oxygen_ros.msg import Frame
from oxygen_ros.nodes.pixel_bridge import PixelBridge
from oxygen_ros.observation import Observation
from oxygen_ros.perception.compressed import check_compressed, decode_compressed
from oxygen_ros.perception.images import MAX_PIXELS, check_raw, decode_raw
from oxygen_ros.perception.joint_merger import MAX_JOINTS
from oxygen_ros.perception.sync_options import MAX_CAMERAS

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class FrameDetails:
    """
    What a Frame says beyond its Observation.

    :param image_stamps: camera name -> its own stamp in ns; missing cameras take the stamp of the observation.
    :param image_tf_frames: camera name -> its own TF frame; missing cameras take an empty name.
    :param joint_stamp_ns: stamp of the oldest joint value, None for the stamp of the observation.
    """

    image_stamps: Mapping[str, int] = field(default_factory=dict)
    image_tf_frames: Mapping[str, str] = field(default_factory=dict)
    joint_stamp_ns: int | None = None


def time_to_msg(stamp_ns: int) -> Time:
    """Return nanoseconds as a Time message."""
    return Time(sec=stamp_ns // NANOSECONDS, nanosec=stamp_ns % NANOSECONDS)


def time_from_msg(stamp: Time) -> int:
    """Return a Time message as nanoseconds."""
    return stamp.sec * NANOSECONDS + stamp.nanosec


def image_to_msg(image: np.ndarray, stamp_ns: int, tf_frame: str = '') -> Image:
    """
    Return a picture as an Image message of encoding rgb8.

    :param image: uint8 [height, width, 3], RGB.
    """
    height, width = image.shape[:2]
    # An array('B') is taken over as it is; an ndarray or bytes would be checked number by number (9 ms per 150 KB).
    data = array.array('B')
    data.frombytes(image.tobytes())
    return Image(header=Header(stamp=time_to_msg(stamp_ns), frame_id=tf_frame),
                 height=height, width=width, encoding='rgb8', is_bigendian=0, step=3 * width, data=data)


def frame_to_msg(observation: Observation, details: FrameDetails | None = None) -> Frame:
    """Return the observation as a Frame message."""
    details = details or FrameDetails()
    stamp_ns = observation.stamp_ns
    joint_stamp_ns = stamp_ns if details.joint_stamp_ns is None else details.joint_stamp_ns
    velocities = observation.joint_velocities
    return Frame(
        header=Header(stamp=time_to_msg(stamp_ns), frame_id=observation.tf_frame),
        frame_number=observation.number,
        camera_names=list(observation.images),
        images=[image_to_msg(image, details.image_stamps.get(name, stamp_ns), details.image_tf_frames.get(name, ''))
                for name, image in observation.images.items()],
        joint_state=JointState(
            header=Header(stamp=time_to_msg(joint_stamp_ns), frame_id=observation.tf_frame),
            name=list(observation.joint_names),
            position=array.array('d', observation.joint_positions),
            velocity=array.array('d', () if velocities is None else velocities)))


def observation_from_msg(frame: Frame) -> Observation:
    """
    Return a Frame message as an observation. Its images share the memory of the message and are read-only.

    :raises ValueError: the message contradicts itself or the definition of Frame, or is larger than any frame need be
        (MAX_CAMERAS, MAX_PIXELS of all pictures together, MAX_JOINTS); the text says where.
    """
    _check_sizes(frame)
    names = list(frame.camera_names)
    if len(names) != len(frame.images):
        raise ValueError(f'frame {frame.frame_number}: {len(names)} camera names but {len(frame.images)} images')
    if len(set(names)) != len(names):
        raise ValueError(f'frame {frame.frame_number}: camera names {names} are not unique')
    joints = frame.joint_state
    if len(set(joints.name)) != len(joints.name):
        raise ValueError(f'frame {frame.frame_number}: joint names are not unique')
    try:
        return Observation(
            number=frame.frame_number,
            stamp_ns=time_from_msg(frame.header.stamp),
            images={name: _rgb8(name, image) for name, image in zip(names, frame.images)},
            joint_names=tuple(joints.name),
            joint_positions=np.array(joints.position, dtype=np.float64),
            joint_velocities=np.array(joints.velocity, dtype=np.float64) if len(joints.velocity) else None,
            tf_frame=frame.header.frame_id)
    except ValueError as error:
        raise ValueError(f'frame {frame.frame_number}: {error}') from None


def _check_sizes(frame: Frame) -> None:
    pixels = sum(image.height * image.width for image in frame.images)
    for count, most, what, remedy in (
            (len(frame.images), MAX_CAMERAS, 'pictures', 'name fewer cameras'),
            (pixels, MAX_PIXELS, 'pixels in all pictures', 'set image_height and image_width of the perception node'),
            (len(frame.joint_state.name), MAX_JOINTS, 'joints', 'name the joints in the perception node')):
        if count > most:
            raise ValueError(f'frame {frame.frame_number}: {count} {what}, at most {most} are taken: {remedy}')


def _rgb8(name: str, image: Image) -> np.ndarray:
    """Return the pixels of an image of a Frame, uint8 [height, width, 3]."""
    if image.encoding != 'rgb8':
        raise ValueError(f'image of camera {name!r} has encoding {image.encoding!r}, not rgb8')
    if image.height < 1 or image.width < 1:
        raise ValueError(f'image of camera {name!r} is empty ({image.width}x{image.height})')
    if image.step != 3 * image.width:
        raise ValueError(f'image of camera {name!r} has step {image.step}, not {3 * image.width}')
    if len(image.data) != image.step * image.height:
        raise ValueError(f'image of camera {name!r} ({image.width}x{image.height}) has {len(image.data)} bytes, '
                         f'not {image.step * image.height}')
    pixels = np.frombuffer(image.data, dtype=np.uint8).reshape(image.height, image.width, 3)
    pixels.flags.writeable = False
    return pixels


def content_mark(data: array.array) -> tuple[int, int]:
    """Return what equal picture data have in common, and other pictures of a real camera nearly never: a sample."""
    return len(data), zlib.crc32(memoryview(data)[::max(1, len(data) // 4096)].tobytes())


def picture_decoder(image: Image | CompressedImage, channel_order: str = '',
                    bridge: PixelBridge | None = None) -> Callable[[], np.ndarray]:
    """
    Check what can be checked of a picture at once, and return the call that decodes it.

    :param channel_order: as `images.check_raw`.
    :param bridge: converts the pictures that it takes.
    :return: gives uint8 [height, width, 3] RGB or raises ImageError; keeps the message alive.
    :raises ImageError: the fields of the message cannot be a picture.
    """
    if isinstance(image, CompressedImage):
        check_compressed(image.format, image.data)
        return lambda: decode_compressed(image.format, image.data)
    check_raw(image.encoding, image.height, image.width, image.step, len(image.data), channel_order=channel_order)
    if bridge is not None and bridge.takes(image):
        return lambda: bridge.decode(image)
    return lambda: decode_raw(image.encoding, image.height, image.width, image.step, bool(image.is_bigendian),
                              image.data, channel_order=channel_order)
