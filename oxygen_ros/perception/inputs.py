"""Reads the parameters of the perception node: which inputs there are and what to do with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oxygen_ros.errors import ConfigError
from oxygen_ros.parameters import NodeParameter
from oxygen_ros.perception.sync_options import MAX_CAMERAS, Camera, MissingPolicy, StampPolicy, SyncOptions
from oxygen_ros.robot.robot_file import Robot, load_robot

POLICIES = tuple(policy.value for policy in MissingPolicy)
IMAGE_TYPES = ('auto', 'raw', 'compressed')

PARAMETERS = (
    NodeParameter('robot', 'unitree_g1', 'Robot file: gives joints, and cameras where none are given. '
                  'Empty: only what the other parameters name.'),
    NodeParameter('cameras', (), 'Names of the cameras, as the model knows them. Empty: all cameras of the robot.'),
    NodeParameter('camera_topics', (), 'Image topics, one per camera that is no video source. Empty: those of the '
                  'robot.'),
    NodeParameter('camera_types', ('auto',), 'Message types, one for all cameras or one per camera: Image, '
                  'CompressedImage, or by the topic name (ends in /compressed).', choices=IMAGE_TYPES),
    NodeParameter('missing_cameras', ('required',), 'What a frame does without a picture of a camera, one for all or '
                  'one per camera: wait for it, leave it out, or hold its last picture.', choices=POLICIES),
    NodeParameter('hold_time', (0.5,), 'Age up to which a picture is held, in seconds, one for all or one per camera.',
                  0.0, 60.0),
    NodeParameter('video_sources', (), 'Cameras that are no topics: name=location, the location a video file, '
                  '/dev/video0, 0, or a URL.'),
    NodeParameter('video_loop', False, 'Play video files again and again.'),
    NodeParameter('joint_states', 'joint_states', 'Topic of the joint states; several publishers are merged. '
                  'Empty: no joint states.'),
    NodeParameter('joints', (), 'Names of the joints, in the order of the frame. Empty: all joints of the robot, '
                  'without a robot all that come.'),
    NodeParameter('joint_max_age', 0.2, 'A joint position further than this from the stamp of the frame counts as '
                  'missing, in seconds.', 0.001, 60.0),
    NodeParameter('require_joints', False, 'Publish no frame while a joint is missing.'),
    NodeParameter('rate', 10.0, 'Frames per second at most, on average; 0 publishes every set of pictures.',
                  0.0, 1000.0),
    NodeParameter('slop', 0.05, 'Newest minus oldest stamp of the pictures of a frame at most, in seconds.', 0.0, 10.0),
    NodeParameter('wait', 0.05, 'How long a frame waits for cameras that are not required but alive, in seconds.',
                  0.0, 10.0),
    NodeParameter('queue', 30, 'Pictures of a camera that are kept while they wait for cameras that lag.', 1, 1000),
    NodeParameter('stamps', 'header_or_receive', 'When a message counts as taken: its header stamp (an unset one is '
                  'refused), the same with the time of arrival for unset ones, or always the time of arrival.',
                  choices=tuple(policy.value for policy in StampPolicy)),
    NodeParameter('future_tolerance', 0.5, 'Messages whose stamp is ahead of the clock by more are refused, in '
                  'seconds.', 0.0, 60.0),
    NodeParameter('image_height', 224, 'Height of the pictures in frames, in pixels: fitted with black borders. '
                  '0 with width 0: as they come.', 0, 4096),
    NodeParameter('image_width', 224, 'Width of the pictures in frames, in pixels.', 0, 4096),
    NodeParameter('channel_order', 'refuse', 'Order of colours in pictures of encoding 8UC3 or 8UC4, which do not tell '
                  'it.', choices=('refuse', 'rgb', 'bgr')),
    NodeParameter('cv_bridge', True, 'Convert raw pictures with cv_bridge where it is installed and gives the same '
                  'pixels.'),
    NodeParameter('input_timeout', 1.0, 'An input without a message for this long is reported as late, in seconds.',
                  0.05, 60.0),
    NodeParameter('tf_frame', 'base_link', 'TF frame of the robot base, handed on in the frames.'),
)


@dataclass(frozen=True)
class CameraInput:
    """
    Where the pictures of one camera come from.

    :param topic: image topic, empty if `source` is set.
    :param compressed: True for CompressedImage.
    :param source: location of a video source, empty if `topic` is set.
    """

    camera: Camera
    topic: str
    compressed: bool
    source: str


@dataclass(frozen=True)
class PerceptionInputs:
    """Inputs and options of the node; `size` is (height, width) of the pictures or None."""

    cameras: tuple[CameraInput, ...]
    joint_topic: str
    joints: tuple[str, ...]
    joint_max_age_ns: int
    options: SyncOptions
    size: tuple[int, int] | None


def read_inputs(values: Mapping[str, Any]) -> PerceptionInputs:
    """
    Make sense of the parameter values.

    :raises ConfigError: they contradict each other, or the robot file is wrong.
    """
    robot = load_robot(values['robot']) if values['robot'] else None
    if (values['image_height'] == 0) != (values['image_width'] == 0):
        raise ConfigError(f'parameters image_height {values["image_height"]} and image_width {values["image_width"]}: '
                          'set both, or neither')
    if twice := sorted({name for name in values['joints'] if values['joints'].count(name) > 1}):
        raise ConfigError(f'parameter joints names joints twice: {twice}')
    return PerceptionInputs(
        cameras=_cameras(values, robot),
        joint_topic=values['joint_states'],
        joints=values['joints'] or (robot.joint_names if robot else ()),
        joint_max_age_ns=_nanoseconds(values['joint_max_age']),
        size=(values['image_height'], values['image_width']) if values['image_height'] else None,
        options=SyncOptions(
            slop_ns=_nanoseconds(values['slop']), rate_hz=values['rate'], wait_ns=_nanoseconds(values['wait']),
            queue=values['queue'],
            future_ns=_nanoseconds(values['future_tolerance']), stamps=StampPolicy(values['stamps']),
            require_joints=values['require_joints'], tf_frame=values['tf_frame']))


def _cameras(values: Mapping[str, Any], robot: Robot | None) -> tuple[CameraInput, ...]:
    sources = {}
    for item in values['video_sources']:
        name, separator, location = item.partition('=')
        if not separator or not name or not location:
            raise ConfigError(f'parameter video_sources: {item!r} is not of the form camera=location')
        sources[name] = location
    names, topics = values['cameras'], values['camera_topics']
    if not names:
        names = tuple(robot.cameras) if robot else tuple(sources)
    if not names:
        raise ConfigError('no camera: set the parameter robot, cameras with camera_topics, or video_sources')
    if len(names) > MAX_CAMERAS:
        raise ConfigError(f'parameter cameras: {len(names)} names, a frame holds at most {MAX_CAMERAS}: name fewer')
    if len(set(names)) != len(names):
        raise ConfigError(f'parameter cameras: names {list(names)} are not unique')
    if unknown := [name for name in sources if name not in names]:
        raise ConfigError(f'parameter video_sources: {unknown[0]!r} is not one of the cameras {list(names)}')
    subscribed = [name for name in names if name not in sources]
    if topics and len(topics) != len(subscribed):
        raise ConfigError(
            f'parameter camera_topics: {len(topics)} topics for the {len(subscribed)} cameras {subscribed} that are no '
            'video source')
    topic_of = dict(zip(subscribed, topics)) if topics else dict(robot.cameras) if robot else {}
    if homeless := [name for name in subscribed if name not in topic_of]:
        choices = f', or choose from the cameras {list(robot.cameras)} of robot {robot.name!r}' if robot else ''
        raise ConfigError(f'camera {homeless[0]!r} has no topic: set camera_topics{choices}')
    if depth := [name for name in subscribed if topic_of[name].lower().endswith('/compresseddepth')]:
        raise ConfigError(f'camera {depth[0]!r}: topic {topic_of[depth[0]]!r} is compressedDepth, which no model here '
                          'takes: give a colour topic')
    types = _per_camera('camera_types', values['camera_types'], names)
    policies = _per_camera('missing_cameras', values['missing_cameras'], names)
    holds = _per_camera('hold_time', values['hold_time'], names)
    return tuple(
        CameraInput(
            Camera(name, MissingPolicy(policies[name]), _nanoseconds(holds[name])),
            topic='' if name in sources else topic_of[name],
            compressed=types[name] == 'compressed' or (types[name] == 'auto' and name not in sources
                                                       and topic_of[name].endswith('/compressed')),
            source=sources.get(name, ''))
        for name in names)


def _per_camera(parameter: str, given: tuple[Any, ...], names: tuple[str, ...]) -> dict[str, Any]:
    if len(given) not in (1, len(names)):
        raise ConfigError(f'parameter {parameter}: {len(given)} values for the {len(names)} cameras {list(names)}: '
                          'give one for all or one per camera')
    return dict(zip(names, given * len(names) if len(given) == 1 else given))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
