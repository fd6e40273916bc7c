"""Where the robot is, for the notes of its memory."""

from __future__ import annotations

from collections import deque

from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy

from oxygen_ros.memory.entry import Pose
from oxygen_ros.nodes.conversion import time_from_msg

KEPT = 256            # poses
LARGEST_GAP_NS = 500_000_000  # between a pose and the observation that it is taken for


class PoseInput:
    """
    Keeps the last poses of a topic of geometry_msgs/PoseStamped.

    :param topic: empty for none; then no pose is ever known.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._poses: deque[tuple[int, Pose]] = deque(maxlen=KEPT)
        self._subscription = None
        if topic:
            # Best effort takes from every publisher.
            qos = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
            self._subscription = node.create_subscription(PoseStamped, topic, self._receive, qos)

    def close(self) -> None:
        """Listen no longer."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None

    def at(self, stamp_ns: int) -> Pose | None:
        """Return the pose that is nearest to a time; None if there is none near."""
        nearest = min(self._poses, key=lambda pose: abs(pose[0] - stamp_ns), default=None)
        return None if nearest is None or abs(nearest[0] - stamp_ns) > LARGEST_GAP_NS else nearest[1]

    def _receive(self, message: PoseStamped) -> None:
        position, orientation = message.pose.position, message.pose.orientation
        self._poses.append((time_from_msg(message.header.stamp), Pose(
            message.header.frame_id, (position.x, position.y, position.z),
            (orientation.x, orientation.y, orientation.z, orientation.w))))
