"""Publishes the state of the inference engine, and the diagnostics with it, once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rclpy.clock import Clock, ClockType

from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.statistics import EngineStatus as Status
from oxygen_ros.msg import EngineStatus
from oxygen_ros.nodes.inference_messages import status_to_msg

if TYPE_CHECKING:
    from oxygen_ros.nodes.inference import InferenceNode


class InferenceStatus:
    """
    Asks the engine for its figures and publishes them.

    :param qos: options of the publisher.
    """

    def __init__(self, node: InferenceNode, qos: dict[str, Any]) -> None:
        self._node = node
        self._asked: object | None = None  # the worker that has not answered yet
        self._publisher = node.create_publisher(EngineStatus, 'status', 10, **qos)
        # Whatever happens to ROS time, the status goes out: it is what says that the clock does not run.
        node.create_timer(1.0, self._publish, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _publish(self) -> None:
        node = self._node
        worker, session = node.worker, node.session
        if worker is None or not worker.alive or self._asked is worker:
            node.diagnostics.publish(None)  # also while the engine hangs: that is what they say then
            return
        self._asked = worker

        def measure(engine: Engine) -> None:
            status = engine.status()
            node.mailbox.put(lambda: publish(status))

        def publish(status: Status) -> None:
            self._asked = None
            if node.session is session:
                self._publisher.publish(status_to_msg(
                    status, session.spec, node.values['mode'], node.state_name, node.values['action.rate'],
                    node.diagnostics.rejected, node.now_ns()))
                node.diagnostics.publish(status)

        worker.post(measure)
