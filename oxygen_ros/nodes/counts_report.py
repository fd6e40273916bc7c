"""Counts of a small node as one status on /diagnostics, once a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.node import Node


class CountsReport:
    """
    Publishes what a function returns.

    :param name: of the status, behind that of the node.
    :param figures: returns name -> value; called in the executor.
    :param problem: returns what is wrong, empty if nothing is.
    """

    def __init__(self, node: Node, name: str, figures: Callable[[], Mapping[str, object]],
                 problem: Callable[[], str]) -> None:
        self._node, self._figures, self._problem = node, figures, problem
        self._name = f'{node.get_fully_qualified_name().strip("/")}: {name}'
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        node.create_timer(1.0, self._publish, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _publish(self) -> None:
        problem = self._problem()
        status = DiagnosticStatus(
            level=DiagnosticStatus.WARN if problem else DiagnosticStatus.OK, name=self._name,
            message=problem or 'ok', hardware_id=self._node.get_fully_qualified_name(),
            values=[KeyValue(key=key, value=str(value)) for key, value in self._figures().items()])
        message = DiagnosticArray(status=[status])
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)
