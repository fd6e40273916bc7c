"""The robot of a soak run: sensors that can fail, people who ask, somebody who looks at all that comes out."""

from __future__ import annotations

import array
from collections import Counter
from concurrent.futures import Future as ThreadFuture
from typing import Any

import numpy as np
from rclpy.node import Node
from rclpy.task import Future
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import EngineStatus, Frame, MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import time_from_msg
from oxygen_ros.nodes.inference_services import CALLS
from oxygen_ros.robot.robot_file import Robot
from oxygen_ros.soak.command_check import CommandCheck
from oxygen_ros.srv import Ask

SIDE = 64  # pixels of the pictures
REASONS = {getattr(TextChunk, name): name.lower() for name in (
    'STOP', 'LENGTH', 'CANCELLED', 'SUPERSEDED', 'TIMED_OUT', 'FRAME_BUDGET', 'DROPPED', 'ERROR', 'REPETITION')}
DROPS = ('deadline_misses', 'action_failures', 'stale_frames', 'rejected_chunks', 'notes_dropped', 'late_decodes')


class SoakRobot(Node):
    """
    Publishes pictures and joint states, asks, and checks what the suite says.

    :ivar camera, joints: whether they send. :ivar broken_pictures, nan_joints: whether what they send makes no sense.
    """

    def __init__(self, robot: Robot, seed: int, **options: Any) -> None:
        super().__init__('soak_robot', **options)
        self.camera = self.joints = True
        self.broken_pictures = self.nan_joints = False
        self.check = CommandCheck(robot)
        self.frames = self.chunks = self.asked = 0
        self.notes: set[int] = set()
        self.answers: Counter = Counter()
        self.drops: Counter = Counter()
        self.open: set[Future] = set()
        self._counted: Counter = Counter()
        self._generator = np.random.default_rng(seed)
        self._names = [joint.name for joint in robot.joints]
        self._pose = np.array([joint.default for joint in robot.joints])
        self._images = {name: self.create_publisher(Image, f'{name}/image', 2) for name in robot.cameras}
        self._joint_states = self.create_publisher(JointState, 'joint_states', 10)
        self._utterances = self.create_publisher(String, 'utterance', 10)
        self.create_timer(0.1, self._take_pictures)
        self.create_timer(0.02, self._measure)
        self.create_subscription(JointState, 'joint_commands', self._command, 100)
        self.create_subscription(JointTrajectory, 'joint_trajectory', self._trajectory, 10)
        self.create_subscription(EngineStatus, 'status', self._status, 10)
        self.create_subscription(MemoryEntry, 'memory', lambda entry: self.notes.add(entry.entry_id), 100)
        self.create_subscription(Frame, 'frames', self._frame, 2, raw=True)
        self._asker = self.create_client(Ask, 'ask', qos_profile=CALLS)

    def topics(self) -> dict[str, str]:
        """Return camera -> topic."""
        return {name: publisher.topic_name for name, publisher in self._images.items()}

    def ask(self, question: str, seconds: float = 30.0) -> None:
        """Ask, and count how the question ends."""
        if not self._asker.service_is_ready():
            return
        self.asked += 1
        future = self._asker.call_async(Ask.Request(
            question=question, wait=True, temperature=-1.0, timeout=seconds,
            barge_in=int(self._generator.integers(0, 4)), conversation=str(self._generator.integers(0, 3))))
        self.open.add(future)
        future.add_done_callback(self._answered)

    def say(self, words: str) -> None:
        """Say something on the utterance topic."""
        self._utterances.publish(String(data=words))

    def _answered(self, future: Future | ThreadFuture) -> None:
        self.open.discard(future)
        answer = future.result()
        self.answers[REASONS.get(answer.finish_reason, 'unknown') if answer.accepted else 'refused'] += 1

    def _frame(self, _: bytes) -> None:
        self.frames += 1

    def _take_pictures(self) -> None:
        if not self.camera:
            return
        stamp = self.get_clock().now().to_msg()
        for publisher in self._images.values():
            size = 3 * SIDE * SIDE // (7 if self.broken_pictures else 1)
            picture = self._generator.integers(0, 256, size, dtype=np.uint8)
            message = Image(height=SIDE, width=SIDE, encoding='rgb8', step=3 * SIDE,
                            data=array.array('B', picture.tobytes()))
            message.header.stamp = stamp
            publisher.publish(message)

    def _measure(self) -> None:
        if self.joints:
            pose = self._pose * np.nan if self.nan_joints else self._pose
            message = JointState(name=self._names, position=array.array('d', pose))
            message.header.stamp = self.get_clock().now().to_msg()
            self._joint_states.publish(message)

    def _command(self, message: JointState) -> None:
        self.check.take(message.name, message.position, time_from_msg(message.header.stamp))

    def _trajectory(self, message: JointTrajectory) -> None:
        self.chunks += len(message.points) > 1
        for point in message.points:
            self.check.look(message.joint_names, point.positions)

    def _status(self, message: EngineStatus) -> None:
        for name in DROPS:
            count = getattr(message, name)
            # They count from the activation.
            self.drops[name] += count - self._counted[name] if count >= self._counted[name] else count
            self._counted[name] = count
