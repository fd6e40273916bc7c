"""Finds endpoints of other nodes whose QoS does not go with ours, so that nothing flows between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible
from rclpy.subscription import Subscription

# Topics of ROS itself.
NOT_OURS = ('/rosout', '/parameter_events')
ENDLESS_NS = 2**62  # the graph tells a duration without an end as the longest there is


class QosWatch:
    """
    Compares all publishers and subscriptions of a node with those of other nodes. Logs what begins and what ends.

    Belongs to the thread of the executor.

    :param beside: subscriptions that stand beside another one of the same topic, and need not match every publisher.
    """

    def __init__(self, node: Node, beside: Collection[Subscription] = ()) -> None:
        self._node = node
        self._beside = beside
        self._known: dict[tuple[str, str, str], str] = {}

    def check(self) -> tuple[str, ...]:
        """Return one text for each pair that does not match: topic, both sides, what to do. Costs some milliseconds."""
        found = dict(self._mismatches())
        for key, text in found.items():
            if key not in self._known:
                self._node.get_logger().warning(text)
        for topic, kind, other in self._known.keys() - found.keys():
            self._node.get_logger().info(f'QoS of {topic} ({kind}) and node {other!r} no longer conflict')
        self._known = found
        return tuple(found.values())

    def _mismatches(self) -> Iterator[tuple[tuple[str, str, str], str]]:
        node = self._node
        for subscription in list(node.subscriptions):
            topic, asked = subscription.topic_name, subscription.qos_profile
            if topic in NOT_OURS or subscription in self._beside:
                continue
            for other in node.get_publishers_info_by_topic(topic):
                compatible, reason = qos_check_compatible(_finite(other.qos_profile), _finite(asked))
                if compatible == QoSCompatibility.ERROR:
                    yield (topic, 'subscription', other.node_name), (
                        f'nothing comes on {topic} from node {other.node_name!r}: {_clean(reason)}; it offers '
                        f'{describe(other.qos_profile)}, this node asks for {describe(asked)}: set the parameters '
                        f'qos_overrides.{topic}.subscription.*, or the QoS of that node')
        for publisher in list(node.publishers):
            topic, offered = publisher.topic_name, publisher.qos_profile
            if topic in NOT_OURS:
                continue
            for other in node.get_subscriptions_info_by_topic(topic):
                compatible, reason = qos_check_compatible(_finite(offered), _finite(other.qos_profile))
                if compatible == QoSCompatibility.ERROR:
                    yield (topic, 'publisher', other.node_name), (
                        f'node {other.node_name!r} gets nothing on {topic}: {_clean(reason)}; this node offers '
                        f'{describe(offered)}, that one asks for {describe(other.qos_profile)}: set the parameters '
                        f'qos_overrides.{topic}.publisher.*, or the QoS of that node')


def describe(qos: QoSProfile) -> str:
    """Return the policies that decide whether two sides match, in words."""
    words = [qos.reliability.name, qos.durability.name]
    if deadline := _finite(qos).deadline.nanoseconds:
        words.append(f'deadline {deadline / 1e9:g} s')
    return ' and '.join(word.lower().replace('_', ' ') for word in words)


def _finite(qos: QoSProfile) -> QoSProfile:
    """Return the policies that decide, with 0 for durations without an end, as profiles have it that set none."""
    durations = {name: Duration(nanoseconds=value.nanoseconds if value.nanoseconds < ENDLESS_NS else 0)
                 for name in ('deadline', 'liveliness_lease_duration') if (value := getattr(qos, name))}
    return QoSProfile(depth=1, reliability=qos.reliability, durability=qos.durability, liveliness=qos.liveliness,
                      **durations)


def _clean(reason: str) -> str:
    return reason.replace('ERROR: ', '').strip().rstrip(';.').lower()
