"""One input of the perception node, and what the ROS graph knows about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible


@dataclass(frozen=True)
class Input:
    """
    One input as it is reported.

    :param title: what it is, for people: "camera 'head'".
    :param place: its topic (resolved name) or video source.
    :param required: without it there are no frames, or no actions.
    :param type_name: ROS type of the topic, empty for a video source.
    :param qos: the profile that was asked for, None for a video source.
    :param problem: what a video source says about itself.
    """

    title: str
    place: str
    required: bool
    type_name: str = ''
    qos: QoSProfile | None = None
    problem: Callable[[], str] = str


def is_announced(node: Node, item: Input) -> bool:
    """Tell whether a publisher is there that would reach us."""
    return item.qos is not None and any(
        publisher.topic_type == item.type_name
        and qos_check_compatible(publisher.qos_profile, item.qos)[0] != QoSCompatibility.ERROR
        for publisher in node.get_publishers_info_by_topic(item.place))


def is_there(node: Node, item: Input) -> bool:
    """Tell whether anything is there that could send: a publisher of the topic, or a video source without a problem."""
    return not item.problem() if item.qos is None else node.count_publishers(item.place) > 0


def why_nothing(node: Node, item: Input) -> str:
    """Say in words why nothing comes and what to do, from what the ROS graph knows."""
    if item.qos is None:
        return item.problem() or 'the video source gives no pictures'
    publishers = node.get_publishers_info_by_topic(item.place)
    if not publishers:
        return 'nobody publishes this topic: check its name, and that its publisher runs in the same ROS domain'
    for publisher in publishers:
        if publisher.topic_type != item.type_name:
            return (f'node {publisher.node_name!r} publishes {publisher.topic_type} there, not {item.type_name}: '
                    'set the parameter camera_types, or the topic')
        compatibility, reason = qos_check_compatible(publisher.qos_profile, item.qos)
        if compatibility == QoSCompatibility.ERROR:
            return (f'QoS of its publisher {publisher.node_name!r} does not match: {reason.strip().rstrip(";.")}: '
                    f'set the parameters qos_overrides.{item.place}.subscription.*')
    return 'it has a publisher, but no message comes: check that the publisher is at work, and the network'
