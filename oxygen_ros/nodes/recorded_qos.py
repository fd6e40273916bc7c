"""Turns the QoS that a recording holds into the QoS of the publisher that plays it."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosbags.interfaces import QosReliability

from oxygen_ros.replay.bag import Topic

# Recorders write a depth of 0 or 1 when they cannot know it (DDS does not tell), and a replay publishes in bursts.
MINIMAL_DEPTH = 10
MAXIMAL_DEPTH = 1000


def publisher_qos(topic: Topic) -> QoSProfile:
    """
    Return reliability, durability and depth for a topic; reliable and volatile where nothing usable was recorded.

    Of several recorded publishers, all must be best effort for best effort (a reliable publisher suits every
    subscriber), and all transient local for transient local. Latched topics keep all their recorded messages.
    """
    best_effort = topic.qos and all(qos.reliability == QosReliability.BEST_EFFORT for qos in topic.qos)
    wanted = max([topic.count if topic.latched else MINIMAL_DEPTH, 1, *(qos.depth for qos in topic.qos)])
    return QoSProfile(
        depth=min(wanted, MAXIMAL_DEPTH),
        reliability=ReliabilityPolicy.BEST_EFFORT if best_effort else ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if topic.latched else DurabilityPolicy.VOLATILE)
