"""Has a lifecycle node configure and activate itself."""

from __future__ import annotations

from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn

from oxygen_ros.errors import OxygenError
from oxygen_ros.nodes.runner import NodeFinished


class Autostart:
    """
    Makes both transitions once the node spins. If they fail the process ends: nobody would make them again.

    :param wanted: False only says in the log that somebody has to.
    """

    def __init__(self, node: LifecycleNode, wanted: bool) -> None:
        self._node = node
        self._failure: OxygenError | None = None
        self._timer = None
        if wanted:
            self._timer = node.create_timer(0.0, self._start, clock=Clock(clock_type=ClockType.STEADY_TIME))
        else:
            node.get_logger().info('waiting for the transition configure; autostart would make it')

    def failed(self, error: OxygenError) -> None:
        """Take in why the node cannot be configured: the process ends with these words, or goes on and logs them."""
        self._failure = error
        if self._timer is None:
            self._node.get_logger().error(str(error))

    def _start(self) -> None:
        self._timer.cancel()
        configured = self._node.trigger_configure()
        if self._failure is not None:
            raise self._failure
        if configured is not TransitionCallbackReturn.SUCCESS:
            raise NodeFinished(1)  # the log says why
        self._timer = None
        self._node.trigger_activate()
