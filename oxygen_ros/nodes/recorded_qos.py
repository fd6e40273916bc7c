"""Between the QoS in recordings and that of publishers: for playing, and for recording."""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime

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


def offered_qos(profile: QoSProfile) -> Qos:
    """Return what a publisher offers, for a recording."""
    return Qos(QosHistory(int(profile.history)), profile.depth, QosReliability(int(profile.reliability)),
               QosDurability(int(profile.durability)), _time(profile.deadline), _time(profile.lifespan),
               QosLiveliness(int(profile.liveliness)), _time(profile.liveliness_lease_duration),
               profile.avoid_ros_namespace_conventions)


def _time(duration: Duration) -> QosTime:
    return QosTime(*divmod(duration.nanoseconds, 1_000_000_000))
