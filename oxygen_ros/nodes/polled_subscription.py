"""A subscription that does not wake the executor: its messages wait until they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions


class PolledSubscription:
    """
    Subscribes to a topic of a high rate at the cost of a low one.

    Every message that wakes the executor costs rclpy several times what the message itself costs, so joint states at
    500 Hz would be the most expensive input of all. The depth of the QoS must hold what comes between two polls.

    :param callback: called by `poll`, in its thread, with one serialised message.
    """

    def __init__(self, node: Node, message_type: type, topic: str, callback: Callable[[bytes], None], qos: QoSProfile,
                 qos_overriding_options: QoSOverridingOptions | None = None):
        self._callback = callback
        self._subscription = node.create_subscription(
            message_type, topic, callback, qos, callback_group=_NeverByExecutor(),
            qos_overriding_options=qos_overriding_options)
        self.topic_name = self._subscription.topic_name

    def poll(self) -> None:
        """Call the callback for every message that has come since the last poll."""
        with self._subscription.handle:
            while taken := self._subscription.handle.take_message(self._subscription.msg_type, True):
                self._callback(taken[0])


class _NeverByExecutor(CallbackGroup):
    """Callback group whose entities no executor waits for."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        pass
