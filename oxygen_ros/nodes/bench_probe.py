"""
Node `bench_probe`: plays the robot for `oxygen_ros bench ros`. It publishes pictures and joint states, and notes when
frames and trajectories come.

Threads: the executor runs in a thread of its own and appends to the lists of the record, which are read after the end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import cv2
import numpy as np
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage, JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import Frame
from oxygen_ros.nodes.background_node import BackgroundNode
from oxygen_ros.robot.robot_file import Robot

PICTURES = 8       # different ones


@dataclass
class ProbeRecord:
    """
    What was sent and seen; times of `time.monotonic` in seconds.

    :param sent: stamp in ns -> time before its last picture was published.
    :param frames: (frame number, stamp in ns, time of arrival). :param trajectories: times of arrival.
    """

    sent: dict[int, float] = field(default_factory=dict)
    frames: list[tuple[int, int, float]] = field(default_factory=list)
    trajectories: list[float] = field(default_factory=list)


class BenchProbe(BackgroundNode):
    """
    Publishes and listens while entered as a context manager.

    :param rate: sets of pictures per second; :param size: of them, height and width.
    """

    def __init__(self, robot: Robot, rate: float, size: tuple[int, int]) -> None:
        super().__init__('bench_probe', 'probe')
        self.record = ProbeRecord()
        self._robot, self._rate = robot, rate
        random = np.random.default_rng(0)
        coarse = random.integers(0, 256, (PICTURES, 12, 16, 3), dtype=np.uint8)
        self._pictures = [cv2.imencode('.jpg', cv2.resize(picture, size[::-1], interpolation=cv2.INTER_CUBIC))[1]
                          .tobytes() for picture in coarse]
        self._count = 0

    def _open(self, node: Node) -> None:
        self._cameras = [node.create_publisher(CompressedImage, topic, qos_profile_sensor_data)
                         for topic in self._robot.cameras.values()]
        self._joints = node.create_publisher(JointState, 'joint_states', qos_profile_sensor_data)
        node.create_subscription(Frame, 'frames', self._take_frame, qos_profile_sensor_data)
        node.create_subscription(JointTrajectory, 'joint_trajectory', self._take_trajectory, 10)
        node.create_timer(1 / self._rate, self._publish)

    def _publish(self) -> None:
        now = self._node.get_clock().now()
        stamp = now.to_msg()
        joints = JointState(name=[joint.name for joint in self._robot.joints],
                            position=[float(joint.default) for joint in self._robot.joints])
        joints.header.stamp = stamp
        self._joints.publish(joints)
        self._count += 1
        message = CompressedImage(format='jpeg', data=self._pictures[self._count % PICTURES])
        message.header.stamp = stamp
        self.record.sent[now.nanoseconds] = time.monotonic()
        for camera in self._cameras:
            camera.publish(message)

    def _take_frame(self, message: Frame) -> None:
        stamp = Time.from_msg(message.header.stamp).nanoseconds
        self.record.frames.append((message.frame_number, stamp, time.monotonic()))

    def _take_trajectory(self, _: JointTrajectory) -> None:
        self.record.trajectories.append(time.monotonic())
