"""A text topic whose last message counts also when it was published before this node came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from std_msgs.msg import String


class LatchedText:
    """
    Subscribes to a text topic twice: volatile, which every publisher matches, and transient local for latched texts.

    A publisher that latches (transient local) reaches both; each of its messages counts once.

    :param callback: takes a text, in the executor.
    """

    def __init__(self, node: Node, topic: str, callback: Callable[[str], None]) -> None:
        self.last = ''  # newest latched text, empty before there is one
        self._callback = callback
        self._seen: deque[int] = deque(maxlen=64)  # times of publication
        reliable = {'depth': 10, 'reliability': ReliabilityPolicy.RELIABLE}
        node.create_subscription(String, topic, self._receive, QoSProfile(**reliable),
                                 qos_overriding_options=QoSOverridingOptions.with_default_policies())
        # Publishers that do not latch fail to match this one, which is no fault: nothing is to be logged.
        self.latched_subscription = node.create_subscription(
            String, topic, self._receive_latched,
            QoSProfile(**reliable, durability=DurabilityPolicy.TRANSIENT_LOCAL),
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False))

    def _receive(self, message: String, info: Mapping[str, Any]) -> None:
        if info['source_timestamp'] not in self._seen:
            self._seen.append(info['source_timestamp'])
            self._callback(message.data)

    def _receive_latched(self, message: String, info: Mapping[str, Any]) -> None:
        self.last = message.data
        self._receive(message, info)
