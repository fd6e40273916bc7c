"""A subscription that does not wake the executor: its messages wait until they are asked for."""

from __future__ import annotations

from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions

MOST_AT_ONCE = 1000  # messages of a poll, or a publisher that is quicker than we are would hold it for ever


class PolledSubscription:
    """
    Subscribes to a topic of a high rate at the cost of a low one.

    Every message that wakes the executor costs rclpy several times what the message itself costs, so joint states at
    500 Hz would be the most expensive input of all. The depth of the QoS must hold what comes between two polls.
    """

    def __init__(self, node: Node, message_type: type, topic: str, qos: QoSProfile,
                 qos_overriding_options: QoSOverridingOptions | None = None):
        self._subscription = node.create_subscription(
            message_type, topic, lambda _: None, qos, callback_group=_NeverByExecutor(),
            qos_overriding_options=qos_overriding_options)
        self.topic_name = self._subscription.topic_name

    def poll(self) -> list[bytes]:
        """Return what has come since the last poll, serialised, the oldest first; too much waits for the next poll."""
        messages: list[bytes] = []
        with self._subscription.handle:
            while len(messages) < MOST_AT_ONCE and (
                    taken := self._subscription.handle.take_message(self._subscription.msg_type, True)):
                messages.append(taken[0])
        return messages


class _NeverByExecutor(CallbackGroup):
    """Callback group whose entities no executor waits for."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        pass
