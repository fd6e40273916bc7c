"""From recorded messages to what the perception and the inference node take in: the same ingest path, without ROS."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oxygen_ros.errors import BagError, ConfigError
from oxygen_ros.memory.entry import Pose
from oxygen_ros.perception.compressed import check_compressed, decode_compressed
from oxygen_ros.perception.images import ImageError, check_raw, decode_raw
from oxygen_ros.perception.inputs import CameraInput, PerceptionInputs
from oxygen_ros.perception.joint_merger import JointMerger
from oxygen_ros.perception.resize import resize_with_pad
from oxygen_ros.perception.sync_options import MissingPolicy
from oxygen_ros.perception.synchronizer import FrameSynchronizer
from oxygen_ros.replay.bag import Bag, Topic
from oxygen_ros.replay.message_types import reader_of

IMAGE, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
POSE = 'geometry_msgs/msg/PoseStamped'
POSES, POSE_GAP_NS = 256, 500_000_000  # how many are kept, and how far one may be from what it is taken for
JOINT_STATE, STRING = 'sensor_msgs/msg/JointState', 'std_msgs/msg/String'


class OfflineInputs:
    """
    Hands recorded messages to a FrameSynchronizer, instructions and utterances to the callers.

    :param remaps: recorded topic -> name under which it is taken in, as in a replay.
    :param on_instruction, on_utterance: take the text. :param pose_topic: where the robot is; empty for none.
    :param channel_order: as the parameter of the perception node.
    :raises ConfigError: a camera is a video source, or its topic was not recorded, or with another type.
    """

    def __init__(self, bag: Bag, config: PerceptionInputs, remaps: Mapping[str, str], channel_order: str,
                 on_instruction: Callable[[str], None], on_utterance: Callable[[str], None],
                 pose_topic: str = '') -> None:
        self._config, self._channel_order = config, channel_order
        self.notes: list[str] = []
        self.damaged: Counter[str] = Counter()  # topic -> messages that are not what their type says
        self.synchronizer = FrameSynchronizer([item.camera for item in config.cameras],
                                              JointMerger(config.joints, config.joint_max_age_ns), config.options)
        self._played: dict[str, list[Topic]] = {}  # name under which it is taken in -> recorded topics
        for topic in bag.topics:
            self._played.setdefault(_absolute(remaps.get(topic.name, topic.name)), []).append(topic)
        self._takers: dict[tuple[str, str], list[Callable[[Any, int], None]]] = {}
        self._readers: dict[tuple[str, str], Callable[[bytes], Any]] = {}
        self.topics: list[Topic] = []
        for item in config.cameras:
            self._add_camera(item)
        if config.joint_topic:
            self._add('joint states', config.joint_topic, JOINT_STATE, self._on_joints)
        self._add('', 'instruction', STRING, lambda message, now_ns: on_instruction(message.data))
        self._add('', 'utterance', STRING, lambda message, now_ns: on_utterance(message.data))
        self._poses: deque[tuple[int, Pose]] = deque(maxlen=POSES)
        if pose_topic:
            self._add('poses', pose_topic, POSE, self._on_pose)

    def take(self, topic: str, type_: str, data: bytes, now_ns: int) -> None:
        """Take in one message that comes now."""
        key = topic, type_
        try:
            message = self._readers[key](data)
        except BagError as error:
            if not self.damaged[topic]:
                self.notes.append(f'{error}; it and others like it are left out')
            self.damaged[topic] += 1
            return
        for taker in self._takers[key]:
            taker(message, now_ns)

    def pose_at(self, stamp_ns: int) -> Pose | None:
        """Return the pose of the robot that is nearest to a time; None if there is none near."""
        nearest = min(self._poses, key=lambda pose: abs(pose[0] - stamp_ns), default=None)
        return None if nearest is None or abs(nearest[0] - stamp_ns) > POSE_GAP_NS else nearest[1]

    def _add_camera(self, item: CameraInput) -> None:
        name = item.camera.name
        if item.source:
            raise ConfigError(f'camera {name!r} is the video source {item.source!r}: an offline run takes all pictures '
                              'from the recording, name a topic of it in camera_topics')
        type_ = COMPRESSED if item.compressed else IMAGE
        taker = functools.partial(self._on_image, name)
        if self._add(f'camera {name!r}', item.topic, type_, taker) or item.camera.missing is not MissingPolicy.REQUIRED:
            return
        pictures = sorted(name for name, topics in self._played.items()
                          if any(topic.type in (IMAGE, COMPRESSED) for topic in topics))
        raise ConfigError(f'camera {name!r}: topic {item.topic} is not in the recording, which has '
                          f'{"the pictures " + ", ".join(pictures) if pictures else "no pictures"}: set camera_topics, '
                          'or missing_cameras to optional')

    def _add(self, title: str, topic: str, type_: str, taker: Callable[[Any, int], None]) -> bool:
        """Have a taker get the messages of a topic. Returns False if it was not recorded."""
        topic = _absolute(topic)
        recorded = self._played.get(topic, [])
        fitting = [entry for entry in recorded if entry.type == type_]
        if recorded and not fitting and title:
            raise ConfigError(f'{title}: topic {topic} was recorded as {recorded[0].type}, not as {type_}: set '
                              'camera_types, or the topic')
        if not fitting:
            if title:
                self.notes.append(f'{title}: topic {topic} is not in the recording')
            return False
        for entry in fitting:
            key = entry.name, entry.type
            if key not in self._readers:
                self._readers[key] = reader_of(entry)
                self.topics.append(entry)
            self._takers.setdefault(key, []).append(taker)
        return True

    def _on_image(self, camera: str, message: Any, now_ns: int) -> None:
        try:
            decode = self._decoder(message)
        except ImageError as error:
            self.synchronizer.refuse_image(camera, error)
            return
        if self._config.size:
            decode = functools.partial(_resized, decode, *self._config.size)
        self.synchronizer.add_image(camera, _stamp_ns(message), now_ns, decode, message.header.frame_id,
                                    len(message.data))

    def _decoder(self, message: Any) -> Callable[[], np.ndarray]:
        """Check what can be checked at once, and return the call that decodes; as nodes.conversion.picture_decoder."""
        if message.__msgtype__ == COMPRESSED:
            check_compressed(message.format, message.data)
            return lambda: decode_compressed(message.format, message.data)
        fields = message.encoding, message.height, message.width, message.step
        check_raw(*fields, len(message.data), channel_order=self._channel_order)
        return lambda: decode_raw(*fields, bool(message.is_bigendian), message.data, channel_order=self._channel_order)

    def _on_pose(self, message: Any, now_ns: int) -> None:
        pose = message.pose
        self._poses.append((_stamp_ns(message), Pose(message.header.frame_id, _xyz(pose.position),
                                                     (*_xyz(pose.orientation), pose.orientation.w))))

    def _on_joints(self, message: Any, now_ns: int) -> None:
        self.synchronizer.add_joints(message.name, message.position, message.velocity, _stamp_ns(message), now_ns)


def _xyz(vector: Any) -> tuple[float, float, float]:
    return vector.x, vector.y, vector.z


def _absolute(name: str) -> str:
    """Return a topic name as it is in the root namespace; recordings hold names without a slash, too."""
    return name if name.startswith('/') else f'/{name}'


def _stamp_ns(message: Any) -> int:
    stamp = message.header.stamp
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def _resized(decode: Callable[[], np.ndarray], height: int, width: int) -> np.ndarray:
    return resize_with_pad(decode(), height, width)
