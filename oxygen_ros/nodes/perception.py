"""
Node `perception`: camera topics, video sources and joint states in, frames out.

Threads: everything runs in the thread of the executor, but video sources read in threads of their own and leave their
newest picture in a slot, and the pictures of a frame are decoded side by side in a pool, which the executor waits for.
Pictures that no frame needs are not decoded.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSPolicyKind, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import CompressedImage, Image, JointState

from oxygen_ros.msg import Frame
from oxygen_ros.nodes.clock_watch import ClockWatch
from oxygen_ros.nodes.conversion import FrameDetails, content_mark, frame_to_msg, picture_decoder, time_from_msg
from oxygen_ros.nodes.input import Input
from oxygen_ros.nodes.input_report import InputReport
from oxygen_ros.nodes.joint_state_reader import JointStateReader
from oxygen_ros.nodes.parameters import declare_parameters
from oxygen_ros.nodes.pixel_bridge import PixelBridge
from oxygen_ros.nodes.polled_subscription import PolledSubscription
from oxygen_ros.nodes.runner import add_node_arguments, run_node
from oxygen_ros.perception.images import ImageError
from oxygen_ros.perception.inputs import PARAMETERS, CameraInput, read_inputs
from oxygen_ros.perception.joint_merger import JointMerger
from oxygen_ros.perception.resize import resize_with_pad
from oxygen_ros.perception.sources import VideoSource
from oxygen_ros.perception.sync_options import JOINTS, MissingPolicy, SyncEvent
from oxygen_ros.perception.synchronizer import FrameSynchronizer

# For frames that come by time, because they do not wait for a camera any longer, and for joint states between pictures.
POLL_SECONDS = 0.02

# REP-2003: sensor data is best effort, which a publisher of any reliability suits.
CAMERA_QOS = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
JOINT_QOS = QoSProfile(depth=200, reliability=ReliabilityPolicy.BEST_EFFORT)
FRAME_QOS = QoSProfile(depth=2, reliability=ReliabilityPolicy.RELIABLE)
# The executor would wait for each event at each turn, at a cost; QosWatch looks for what they would tell.
NO_SUBSCRIPTION_EVENTS = SubscriptionEventCallbacks(use_default_callbacks=False)
NO_PUBLISHER_EVENTS = PublisherEventCallbacks(use_default_callbacks=False)
QOS_KINDS = (QoSPolicyKind.HISTORY, QoSPolicyKind.DEPTH, QoSPolicyKind.RELIABILITY, QoSPolicyKind.DURABILITY)


class PerceptionNode(Node):
    """
    Wires the inputs to a FrameSynchronizer and publishes what it gives.

    :param node_arguments: handed on to rclpy's Node.
    :raises ConfigError: a parameter is wrong, or a video source cannot be opened.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__('perception', **node_arguments)
        values = declare_parameters(self, PARAMETERS)
        self._config = read_inputs(values)
        self._channel_order = '' if values['channel_order'] == 'refuse' else values['channel_order']
        self._bridge = PixelBridge.find() if values['cv_bridge'] else None
        self._pool = ThreadPoolExecutor(min(len(self._config.cameras), os.cpu_count() or 1), 'decode')
        self._synchronizer = FrameSynchronizer(
            [item.camera for item in self._config.cameras],
            JointMerger(self._config.joints, self._config.joint_max_age_ns), self._config.options, self._pool)
        self._sources: list[VideoSource] = []
        self._frames = self.create_publisher(
            Frame, 'frames', copy.copy(FRAME_QOS), qos_overriding_options=QoSOverridingOptions(QOS_KINDS),
            event_callbacks=NO_PUBLISHER_EVENTS)
        inputs = {item.camera.name: self._open_camera(item, values['video_loop']) for item in self._config.cameras}
        self._joints: PolledSubscription | None = None
        self._joint_reader = JointStateReader()
        if self._config.joint_topic:
            inputs[JOINTS] = self._open_joints(self._config.joint_topic)
        clock_watch = ClockWatch(self, self._synchronizer.clear)
        self._report = InputReport(self, self._synchronizer, inputs, clock_watch, values['input_timeout'])
        self.create_timer(POLL_SECONDS, self._publish, clock=Clock(clock_type=ClockType.STEADY_TIME))
        for source in self._sources:
            source.start()
        cameras = ', '.join(f'{name} ({item.place})' for name, item in inputs.items() if name != JOINTS)
        self.get_logger().info(f'frames of {cameras} at up to {self._config.options.rate_hz:g} Hz'
                               + (f'; cv_bridge converts {", ".join(sorted(self._bridge.encodings))}'
                                  if self._bridge else ''))

    def destroy_node(self) -> None:
        """End the threads, then the node."""
        for source in self._sources:
            source.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().destroy_node()

    def _open_camera(self, item: CameraInput, loop: bool) -> Input:
        """Subscribe to the topic of a camera, or open its video source."""
        name, required = item.camera.name, item.camera.missing is MissingPolicy.REQUIRED
        if item.topic:
            return self._subscribe(f'camera {name!r}', required, CompressedImage if item.compressed else Image,
                                   item.topic, CAMERA_QOS, functools.partial(self._on_image, name))
        slot: deque[np.ndarray] = deque(maxlen=1)  # the newest picture, left there by the thread of the source
        guard = self.create_guard_condition(functools.partial(self._on_video, name, slot))

        def store(picture: np.ndarray) -> None:
            slot.append(picture)
            guard.trigger()

        source = VideoSource(item.source, store, loop)
        self._sources.append(source)
        return Input(f'camera {name!r}', item.source, required, problem=lambda: source.problem)

    def _open_joints(self, topic: str) -> Input:
        """Subscribe to the joint states, which are polled: often there are hundreds a second."""
        qos = copy.copy(JOINT_QOS)  # rclpy writes the overrides into it
        self._joints = PolledSubscription(self, JointState, topic, qos, QoSOverridingOptions(QOS_KINDS))
        return Input('joint states', self._joints.topic_name, True, 'sensor_msgs/msg/JointState', qos)

    def _subscribe(self, title: str, required: bool, message_type: type, topic: str, qos: QoSProfile,
                   callback: Callable) -> Input:
        """Subscribe with a QoS that parameters may override."""
        qos = copy.copy(qos)  # rclpy writes the overrides into it
        subscription = self.create_subscription(
            message_type, topic, callback, qos, qos_overriding_options=QoSOverridingOptions(QOS_KINDS),
            event_callbacks=NO_SUBSCRIPTION_EVENTS)
        type_name = f'{message_type.__module__.split(".")[0]}/msg/{message_type.__name__}'
        return Input(title, subscription.topic_name, required, type_name, qos)

    def _on_image(self, camera: str, message: Image | CompressedImage, info: Mapping[str, Any]) -> None:
        try:
            decode = picture_decoder(message, self._channel_order, self._bridge)
        except ImageError as error:
            self._synchronizer.refuse_image(camera, error)
            self._report.message(camera, SyncEvent.UNUSABLE)
            return
        stamp_ns = time_from_msg(message.header.stamp)
        self._add(camera, stamp_ns, decode, message.header.frame_id, info['received_timestamp'], len(message.data))
        self._report.content(camera, content_mark(message.data))

    def _on_video(self, camera: str, slot: deque[np.ndarray]) -> None:
        if slot:
            picture = slot.pop()
            self._add(camera, self.get_clock().now().nanoseconds, lambda: picture, '', time.time_ns())

    def _add(self, camera: str, stamp_ns: int, decode: Callable[[], np.ndarray], tf_frame: str,
             arrival_ns: int, size: int = 0) -> None:
        if self._config.size:
            decode = functools.partial(_decode_and_resize, decode, *self._config.size)
        event = self._synchronizer.add_image(camera, stamp_ns, self.get_clock().now().nanoseconds, decode, tf_frame,
                                             size)
        self._report.message(camera, event, zero_stamp=stamp_ns <= 0)
        self._publish(arrival_ns)

    def _on_joints(self, data: bytes, now_ns: int) -> None:
        try:
            joints = self._joint_reader.read(data)
        except ValueError as error:
            self._synchronizer.refuse_joints(str(error))
            self._report.message(JOINTS, SyncEvent.UNUSABLE)
            return
        event = self._synchronizer.add_joints(*joints, now_ns)
        self._report.message(JOINTS, event, zero_stamp=joints.stamp_ns <= 0)

    def _publish(self, arrival_ns: int | None = None) -> None:
        now_ns = self.get_clock().now().nanoseconds
        for data in self._joints.poll() if self._joints else ():
            self._on_joints(data, now_ns)
        frame = self._synchronizer.take(now_ns)
        if frame is None:
            return
        if arrival_ns is not None:
            self._report.ready((time.time_ns() - arrival_ns) / 1e9)
        details = FrameDetails(frame.image_stamps, frame.image_tf_frames, frame.joints.stamp_ns)
        self._frames.publish(frame_to_msg(frame.observation, details))
        self._report.frame(frame.observation.number, (now_ns - frame.observation.stamp_ns) / 1e9, frame.joints)


def _decode_and_resize(decode: Callable[[], np.ndarray], height: int, width: int) -> np.ndarray:
    return resize_with_pad(decode(), height, width)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros perception`."""
    add_node_arguments(parser, PARAMETERS)


def main(arguments: argparse.Namespace) -> int:
    """Run the node."""
    # A thread that has decoded a picture would wait up to 5 ms, Python's default, for the executor to let it go on.
    sys.setswitchinterval(2e-4)
    return run_node(PerceptionNode, arguments)
