"""A topic that says whether something is going on, so that nobody waits for a node that has died."""

from __future__ import annotations

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import Bool

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
REPEAT = 0.5  # seconds between messages that it is going on
HOLDS = 2.0  # seconds after the last of them in which it counts as going on


class BoolState:
    """
    Publishes a state: at each change, and again and again while it is true. In the executor.

    :param topic: its name; std_msgs/Bool, LATCHED.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._publisher = node.create_publisher(Bool, topic, LATCHED)
        self._timer = node.create_timer(REPEAT, self._publish, clock=Clock(clock_type=ClockType.STEADY_TIME),
                                        autostart=False)
        self._state = False
        self._publish()

    def set(self, state: bool) -> None:
        """Take a new state."""
        self._state = state
        self._publish()
        if state:
            self._timer.reset()
        else:
            self._timer.cancel()

    def _publish(self) -> None:
        self._publisher.publish(Bool(data=self._state))
