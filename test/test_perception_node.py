"""The perception node over DDS: frames come from topics and files, and what is wrong is said."""

import array
import io
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from PIL import Image as PilImage
from rcl_interfaces.msg import Log
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Header

from oxygen_ros.errors import ConfigError
from oxygen_ros.msg import Frame
from oxygen_ros.nodes import absence, input_report
from oxygen_ros.nodes.conversion import observation_from_msg, time_from_msg, time_to_msg
from oxygen_ros.nodes.perception import PerceptionNode

G1_BAG = Path(__file__).parent / 'data' / 'bags' / 'g1_two_cameras'
HEAD, FRONT = '/camera/head/image_raw/compressed', '/camera/front/image_raw/compressed'
SECOND = 1_000_000_000
TWO_CAMERAS = {'robot': '', 'cameras': ['left', 'right'], 'camera_topics': ['/left/image_raw', '/right/image_raw'],
               'joint_states': ''}


def raw_image(value, stamp_ns, **fields):
    header = Header(stamp=time_to_msg(stamp_ns), frame_id='optical')
    return Image(**{'header': header, 'height': 4, 'width': 4, 'step': 12, 'encoding': 'rgb8',
                    'data': array.array('B', [value % 256] * 48), **fields})


def jpeg(colour, stamp_ns):
    buffer = io.BytesIO()
    PilImage.new('RGB', (64, 48), colour).save(buffer, 'JPEG')
    return CompressedImage(header=Header(stamp=time_to_msg(stamp_ns)), format='jpeg',
                           data=array.array('B', buffer.getvalue()))


class Cameras:
    """Publishes pictures on several topics at the same moments."""

    def __init__(self, graph, *topics, message_type=Image, qos=qos_profile_sensor_data):
        self.graph = graph
        self.publishers = [graph.node.create_publisher(message_type, topic, qos) for topic in topics]

    def connected(self):
        assert self.graph.spin_until(lambda: all(item.get_subscription_count() for item in self.publishers))

    def publish_until(self, make, condition, period=0.1, seconds=30.0):
        """Publish make(index, stamp) on all topics again and again until the condition holds."""
        end = time.monotonic() + seconds
        index = 0
        while not condition() and time.monotonic() < end:
            stamp_ns = self.graph.node.get_clock().now().nanoseconds
            for publisher in self.publishers:
                publisher.publish(make(index, stamp_ns))
            self.graph.spin_for(period)
            index += 1
        assert condition()


def latest_status(diagnostics, part):
    """Return the newest status whose name contains a text, or None."""
    return next((status for message in reversed(diagnostics) for status in message.status if part in status.name), None)


def says(diagnostics, part, *words):
    """Tell whether the newest status of a part contains all words."""
    status = latest_status(diagnostics, part)
    return status is not None and all(word in status.message for word in words)


def values(status):
    return {item.key: item.value for item in status.values}


def test_two_compressed_cameras_and_joints_become_frames(ros_graph):
    ros_graph.add(PerceptionNode, image_height=56, image_width=56, tf_frame='pelvis')
    frames = ros_graph.listen(Frame, 'frames')
    head = Cameras(ros_graph, HEAD, message_type=CompressedImage)
    front = Cameras(ros_graph, FRONT, message_type=CompressedImage)
    joints = ros_graph.node.create_publisher(JointState, '/joint_states', 10)
    head.connected()
    front.connected()

    def make(index, stamp_ns):
        head.publishers[0].publish(jpeg((200, 30, 60), stamp_ns - 10_000_000))
        joints.publish(JointState(header=Header(stamp=time_to_msg(stamp_ns)), velocity=[1.0, 2.0],
                                  name=['waist_yaw_joint', 'left_knee_joint'], position=[0.5, 0.25]))
        return jpeg((30, 200, 60), stamp_ns)

    front.publish_until(make, lambda: len(frames) >= 5 and observation_from_msg(frames[-1]).joint_names)
    observation = observation_from_msg(frames[-1])
    assert list(observation.images) == ['head', 'front'] and observation.tf_frame == 'pelvis'
    assert observation.images['head'].shape == (56, 56, 3)
    assert abs(observation.images['head'][28, 28].astype(int) - (200, 30, 60)).max() < 6
    assert abs(observation.images['front'][28, 28].astype(int) - (30, 200, 60)).max() < 6
    assert not observation.images['front'][0].any()  # black border: 64x48 in a square
    assert observation.joint_names == ('left_knee_joint', 'waist_yaw_joint')  # the order of the robot
    assert observation.joint_positions.tolist() == [0.25, 0.5] and observation.joint_velocities.tolist() == [2.0, 1.0]
    numbers = [frame.frame_number for frame in frames]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    stamps = [time_from_msg(image.header.stamp) for image in frames[-1].images]
    assert stamps[1] - stamps[0] == 10_000_000 and time_from_msg(frames[-1].header.stamp) == stamps[1]


def test_recorded_humanoid_from_the_replay_process(ros_graph):
    frames = ros_graph.listen(Frame, 'frames', QoSProfile(depth=100))
    perception = ros_graph.start('perception', '--use-sim-time', '-p', 'image_height:=224', '-p', 'image_width:=224')
    assert ros_graph.spin_until(lambda: ros_graph.node.count_publishers('frames'))
    replay = ros_graph.start('replay', str(G1_BAG), '--clock', '--wait-for-subscribers',
                             '--topics', HEAD, FRONT, '/joint_states')
    assert ros_graph.spin_until(lambda: replay.poll() is not None)
    ros_graph.spin_for(0.3)
    errors = ros_graph.stop(perception)
    assert len(frames) >= 24, errors  # 30 pairs; on a loaded machine the middleware may lose some
    observation = observation_from_msg(frames[-1])
    assert set(observation.images) == {'head', 'front'} and len(observation.joint_names) == 29
    assert observation.images['head'].shape == (224, 224, 3) and observation.images['head'].std() > 5
    assert all(observation.stamp_ns < frame_stamp + 5 * SECOND for frame_stamp in
               (time_from_msg(frame.header.stamp) for frame in frames))


def test_topic_that_never_comes_is_named_in_diagnostics(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    left = Cameras(ros_graph, '/left/image_raw')
    left.publish_until(
        raw_image, lambda: says(diagnostics, "'right'", '/right/image_raw', 'nobody publishes this topic')
        and says(diagnostics, ': frames', "waiting for camera 'right'"))
    assert latest_status(diagnostics, "'right'").level == DiagnosticStatus.ERROR
    assert latest_status(diagnostics, "'left'").level == DiagnosticStatus.OK
    assert float(values(latest_status(diagnostics, "'left'"))['rate_hz']) > 0


def test_slow_rate_is_no_lack_of_frames_and_joints_hold_none_back(ros_graph):
    ros_graph.add(PerceptionNode, **{**TWO_CAMERAS, 'joint_states': '/joint_states'}, rate=0.5)
    frames = ros_graph.listen(Frame, 'frames')
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    cameras = Cameras(ros_graph, '/left/image_raw', '/right/image_raw')
    cameras.publish_until(raw_image, lambda: len(frames) >= 1 and says(diagnostics, ': frames', 'ok'))
    diagnostics.clear()
    cameras.publish_until(
        raw_image, lambda: len(frames) >= 2 and says(diagnostics, 'joint states', '/joint_states', 'nobody publishes'))
    assert all(says([message], ': frames', 'ok') for message in diagnostics)


def test_camera_that_stops_is_reported_as_late_and_recovers(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS, input_timeout=0.3)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    frames = ros_graph.listen(Frame, 'frames')
    both = Cameras(ros_graph, '/left/image_raw', '/right/image_raw')
    both.publish_until(raw_image, lambda: len(frames) >= 2)
    left = Cameras(ros_graph, '/left/image_raw')
    left.publish_until(raw_image, lambda: says(diagnostics, "'right'", '/right/image_raw', 'nothing for'))
    both.publish_until(raw_image, lambda: says(diagnostics, "'right'", 'ok') and says(diagnostics, ': frames', 'ok'))


def test_publisher_that_has_not_begun_is_no_error_yet(ros_graph, monkeypatch):
    monkeypatch.setattr(absence, 'DISCOVERY_SECONDS', 0.1)
    ros_graph.add(PerceptionNode, **TWO_CAMERAS, input_timeout=0.2)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    waiting = Cameras(ros_graph, '/left/image_raw', '/right/image_raw')  # such as a replay that waits for a model
    waiting.connected()
    assert ros_graph.spin_until(lambda: says(diagnostics, "'left'", '/left/image_raw', 'has sent nothing yet')
                                and says(diagnostics, ': frames', 'no frame yet', "'left'", "'right'"))
    assert latest_status(diagnostics, "'left'").level == DiagnosticStatus.WARN
    assert latest_status(diagnostics, ': frames').level == DiagnosticStatus.WARN
    monkeypatch.setattr(absence, 'BEGIN_SECONDS', 0.1)  # that long nothing waits
    assert ros_graph.spin_until(lambda: says(diagnostics, "'left'", 'no message comes'))
    assert latest_status(diagnostics, ': frames').level == DiagnosticStatus.ERROR


def test_what_happens_to_all_inputs_at_once_is_one_line_of_the_log(ros_graph, monkeypatch):
    monkeypatch.setattr(absence, 'DISCOVERY_SECONDS', 0.1)
    log = ros_graph.listen(Log, '/rosout', 100)

    def lines():
        return [(line.level, line.msg) for line in log if line.name == 'perception' and line.msg.startswith((
            'inputs:', 'camera', 'joint', 'frames:'))]

    ros_graph.add(PerceptionNode, **TWO_CAMERAS)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    assert ros_graph.spin_until(lambda: any('nobody publishes' in text for _, text in lines()))  # no replay runs yet
    cameras = Cameras(ros_graph, '/left/image_raw', '/right/image_raw')
    assert ros_graph.spin_until(lambda: any('have not begun' in text for _, text in lines()))  # it waits for a model
    cameras.publish_until(raw_image, lambda: says(diagnostics, "'left'", 'ok') and says(diagnostics, ': frames', 'ok'))
    for publisher in cameras.publishers:  # it is over
        ros_graph.node.destroy_publisher(publisher)
    assert ros_graph.spin_until(lambda: any('any more' in text for _, text in lines()))
    assert ros_graph.spin_until(lambda: says(diagnostics, "'right'", 'nobody publishes'))
    assert latest_status(diagnostics, "'right'").level == DiagnosticStatus.ERROR
    ros_graph.spin_for(1.2)
    assert all(text.startswith('inputs:') and "'left' (/left/image_raw), camera 'right'" in text or 'recovered' in text
               for _, text in lines()), lines()
    assert max(int(level) for level, _ in lines()) == 30  # warnings
    assert len(lines()) <= 6


def test_camera_that_sends_the_same_picture_again_and_again_is_reported(ros_graph, monkeypatch):
    monkeypatch.setattr(input_report, 'STILL_SECONDS', 0.2)
    ros_graph.add(PerceptionNode, **TWO_CAMERAS)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    left = Cameras(ros_graph, '/left/image_raw').publishers[0]

    def make(index, stamp_ns):
        left.publish(raw_image(7, stamp_ns))
        return raw_image(index, stamp_ns)

    Cameras(ros_graph, '/right/image_raw').publish_until(
        make, lambda: says(diagnostics, "'left'", 'the same picture', 'frozen'), period=0.03)
    assert int(values(latest_status(diagnostics, "'left'"))['unchanged']) >= 10
    assert latest_status(diagnostics, "'right'").level == DiagnosticStatus.OK


def test_other_message_type_is_explained(ros_graph, ros_domain):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    elsewhere = type(ros_graph)(ros_domain)  # one process cannot have both types of a topic in one context
    Cameras(elsewhere, '/left/image_raw', message_type=CompressedImage)
    assert ros_graph.spin_until(
        lambda: says(diagnostics, "'left'", 'sensor_msgs/msg/CompressedImage', 'camera_types'))
    elsewhere.close()


def test_qos_that_does_not_match_is_an_error_that_names_the_topic(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS, **{
        'qos_overrides./left/image_raw.subscription.reliability': 'reliable'})
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    Cameras(ros_graph, '/left/image_raw', '/right/image_raw').publish_until(
        raw_image, lambda: says(diagnostics, "'left'", '/left/image_raw', 'QoS', 'qos_overrides'))
    assert latest_status(diagnostics, "'left'").level == DiagnosticStatus.ERROR
    assert latest_status(diagnostics, "'right'").level == DiagnosticStatus.OK


@pytest.mark.parametrize('reliability', [ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE])
def test_publishers_of_any_reliability_match(ros_graph, reliability):
    ros_graph.add(PerceptionNode, **{**TWO_CAMERAS, 'cameras': ['left'], 'camera_topics': ['/left/image_raw']})
    frames = ros_graph.listen(Frame, 'frames')
    Cameras(ros_graph, '/left/image_raw', qos=QoSProfile(depth=5, reliability=reliability)).publish_until(
        raw_image, lambda: len(frames) >= 3)


def test_unset_stamps_give_frames_and_a_warning(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS)
    frames = ros_graph.listen(Frame, 'frames')
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    right = Cameras(ros_graph, '/right/image_raw').publishers[0]

    def make(index, stamp_ns):
        right.publish(raw_image(index, 0))
        return raw_image(index, stamp_ns)

    Cameras(ros_graph, '/left/image_raw').publish_until(
        make, lambda: len(frames) >= 5 and says(diagnostics, "'right'", '/right/image_raw', 'stamps are zero'))
    assert latest_status(diagnostics, "'right'").level == DiagnosticStatus.WARN
    assert int(values(latest_status(diagnostics, "'right'"))['receive_time']) > 0


def test_unusable_pictures_are_counted_with_their_reason_and_others_go_on(ros_graph):
    ros_graph.add(PerceptionNode, **{**TWO_CAMERAS, 'cameras': ['left'], 'camera_topics': ['/left/image_raw']})
    frames = ros_graph.listen(Frame, 'frames')
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')

    def make(index, stamp_ns):
        bad = {'height': 480, 'width': 640, 'step': 1920} if index % 2 else {}
        return raw_image(index % 256, stamp_ns, **bad)

    Cameras(ros_graph, '/left/image_raw').publish_until(
        make, lambda: len(frames) >= 3 and says(diagnostics, "'left'", '921600', '48'))
    assert int(values(latest_status(diagnostics, "'left'"))['too_short']) > 0
    assert ros_graph.spin_until(lambda: says(diagnostics, "'left'", 'nothing for'))  # a warning first, now an error
    assert all(frame.images[0].data[0] % 2 == 0 for frame in frames)


def test_truncated_jpeg_is_counted_when_its_turn_comes(ros_graph):
    ros_graph.add(PerceptionNode, **{**TWO_CAMERAS, 'cameras': ['left'], 'camera_topics': ['/left/compressed']})
    frames = ros_graph.listen(Frame, 'frames')
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')

    def make(index, stamp_ns):
        message = jpeg((9, 9, 9), stamp_ns)
        return CompressedImage(header=message.header, data=message.data[:-40]) if index % 2 else message

    Cameras(ros_graph, '/left/compressed', message_type=CompressedImage).publish_until(
        make, lambda: len(frames) >= 3 and says(diagnostics, "'left'", 'truncated'))
    assert int(values(latest_status(diagnostics, "'left'"))['truncated']) > 0


def test_stamps_of_another_clock_are_explained(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    Cameras(ros_graph, '/left/image_raw', '/right/image_raw').publish_until(
        lambda index, stamp_ns: raw_image(index, stamp_ns - 3600 * SECOND),
        lambda: says(diagnostics, ': frames', '3600 s behind the node clock', 'use_sim_time'))


def test_clocks_of_cameras_that_differ_are_explained(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    right = Cameras(ros_graph, '/right/image_raw').publishers[0]

    def make(index, stamp_ns):
        right.publish(raw_image(index, stamp_ns - 5 * SECOND))
        return raw_image(index, stamp_ns)

    Cameras(ros_graph, '/left/image_raw').publish_until(
        make, lambda: says(diagnostics, ': frames', 'stamps of the cameras are', 'slop'))


def test_missing_and_not_finite_joints_are_named(ros_graph):
    ros_graph.add(PerceptionNode, **{**TWO_CAMERAS, 'joint_states': '/joint_states',
                                     'joints': ['knee', 'elbow', 'neck']})
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    frames = ros_graph.listen(Frame, 'frames')
    joints = ros_graph.node.create_publisher(JointState, '/joint_states', 10)

    def make(index, stamp_ns):
        joints.publish(JointState(header=Header(stamp=time_to_msg(stamp_ns)), name=['elbow', 'knee'],
                                  position=[float('nan'), 1.0]))
        return raw_image(index, stamp_ns)

    Cameras(ros_graph, '/left/image_raw', '/right/image_raw').publish_until(
        make, lambda: says(diagnostics, 'joint states', 'elbow is not a finite number', 'neck'))
    assert observation_from_msg(frames[-1]).joint_names == ('knee',)


def test_clock_that_jumps_back_starts_anew(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS, use_sim_time=True)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    frames = ros_graph.listen(Frame, 'frames', QoSProfile(depth=100))
    clock = ros_graph.node.create_publisher(Clock, '/clock', 10)
    cameras = Cameras(ros_graph, '/left/image_raw', '/right/image_raw')
    cameras.connected()
    for start_s in (105, 100):
        before = len(frames)

        def make(index, _, start_s=start_s):
            stamp_ns = start_s * SECOND + index * SECOND // 10
            clock.publish(Clock(clock=time_to_msg(stamp_ns)))
            ros_graph.spin_for(0.02)
            if start_s == 100 and index == 0:
                cameras.publishers[0].publish(raw_image(0, 106 * SECOND))  # was under way when the clock jumped
            return raw_image(start_s, stamp_ns)

        cameras.publish_until(make, lambda: len(frames) >= before + 5)  # noqa: B023
    for frame in frames:
        loop = 105 if time_from_msg(frame.header.stamp) >= 105 * SECOND else 100
        assert {image.data[0] for image in frame.images} == {loop}
    numbers = [frame.frame_number for frame in frames]
    assert numbers == sorted(set(numbers))
    assert not any('ahead of the node clock' in status.message for message in diagnostics for status in message.status)


def test_simulated_time_that_does_not_start_is_reported(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS, use_sim_time=True)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    Cameras(ros_graph, '/left/image_raw', '/right/image_raw').publish_until(
        raw_image, lambda: says(diagnostics, ': frames', '/clock') and says(diagnostics, "'left'", '/clock'))


def test_optional_camera_may_be_absent(ros_graph):
    ros_graph.add(PerceptionNode, **TWO_CAMERAS, missing_cameras=['required', 'optional'])
    frames = ros_graph.listen(Frame, 'frames')
    Cameras(ros_graph, '/left/image_raw').publish_until(raw_image, lambda: len(frames) >= 2)
    assert list(frames[-1].camera_names) == ['left']
    Cameras(ros_graph, '/left/image_raw', '/right/image_raw').publish_until(
        raw_image, lambda: list(frames[-1].camera_names) == ['left', 'right'])


def test_video_file_is_a_camera_beside_a_topic(ros_graph, tmp_path):
    path = tmp_path / 'film.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'MJPG'), 20.0, (64, 48))
    for _ in range(20):
        writer.write(np.full((48, 64, 3), (60, 30, 200), np.uint8))
    writer.release()
    ros_graph.add(PerceptionNode, **{**TWO_CAMERAS, 'camera_topics': ['/left/image_raw'],
                                     'video_sources': [f'right={path}'], 'video_loop': True,
                                     'image_height': 0, 'image_width': 0})
    frames = ros_graph.listen(Frame, 'frames')
    Cameras(ros_graph, '/left/image_raw').publish_until(raw_image, lambda: len(frames) >= 3, period=0.03)
    image = observation_from_msg(frames[-1]).images['right']
    assert image.shape == (48, 64, 3) and abs(image[24, 32].astype(int) - (200, 30, 60)).max() < 12


@pytest.mark.parametrize('changes, words', [
    ({'cameras': [''], 'camera_topics': ['']}, 'no camera'),
    ({'cameras': ['a', 'a']}, 'not unique'),
    ({'camera_topics': ['/one']}, '1 topics for the 2 cameras'),
    ({'camera_topics': ['']}, "camera 'left' has no topic"),
    ({'camera_topics': ['/left/image_raw', '/depth/compressedDepth']}, 'compressedDepth, which no model here takes'),
    ({'robot': 'nobody'}, "unknown robot 'nobody'"),
    ({'missing_cameras': ['optional'] * 3}, '3 values for the 2 cameras'),
    ({'hold_time': [0.1, 0.2, 0.3]}, '3 values for the 2 cameras'),
    ({'missing_cameras': ['sometimes']}, "'sometimes' is not one of"),
    ({'image_height': 5, 'image_width': 0}, 'set both, or neither'),
    ({'joints': ['a', 'a']}, 'twice'),
    ({'video_sources': ['film.mp4']}, 'not of the form camera=location'),
    ({'video_sources': ['top=film.mp4']}, "'top' is not one of the cameras"),
    ({'video_sources': ['left=/nowhere/film.mp4'], 'camera_topics': ['/right']}, "'/nowhere/film.mp4' does not exist")])
def test_wrong_parameters_are_one_clear_error(ros_graph, changes, words):
    with pytest.raises(ConfigError) as error:
        ros_graph.add(PerceptionNode, **{**TWO_CAMERAS, **changes})
    assert words in str(error.value) and '\n' not in str(error.value)
