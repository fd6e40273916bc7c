"""Commands for a forward_command_controller of ros2_control: numbers without names, so the controller says which."""

from __future__ import annotations

import array
from collections.abc import Sequence

import numpy as np
from rcl_interfaces.srv import GetParameters
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.task import Future
from std_msgs.msg import Float64MultiArray

ASK_SECONDS = 1.0     # between questions, and between looks whether the controller is still there
ANSWER_SECONDS = 3.0  # after that a question counts as lost
PARAMETERS = ('joints', 'interface_name')


class ForwardController:
    """
    Publishes positions on `<controller>/commands` in the order of the controller's parameter `joints`.

    Nothing is published before the controller has told its joints, and they have been checked; both happens again when
    the controller has gone and come back. All calls in the executor's thread.

    :param controller: name of the controller's node, relative to this node's namespace unless it begins with a slash.
    """

    def __init__(self, node: LifecycleNode, controller: str) -> None:
        self.controller = controller
        self.problem = f'controller {controller!r} has not told its joints yet: is it running?'
        self._node = node
        self._order: tuple[str, ...] = ()
        self._checked: tuple[tuple[str, ...], list[int]] | None = None  # names of a command -> columns of the message
        self._refused: tuple[str, ...] = ()  # an order that cannot be served
        self._asked_s: float | None = None
        self._publisher = node.create_lifecycle_publisher(
            Float64MultiArray, f'{controller}/commands', 1,
            qos_overriding_options=QoSOverridingOptions.with_default_policies())
        self._client = node.create_client(GetParameters, f'{controller}/get_parameters')
        self._clock = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(ASK_SECONDS, self._ask, clock=self._clock)

    def publish(self, names: Sequence[str], positions: np.ndarray) -> None:
        """
        Publish positions (rad), if the joints of the controller are known and all among `names`.

        :param positions: float64 [len(names)], safe to send.
        """
        if not self._order:
            return
        names = tuple(names)
        if self._checked is None or self._checked[0] != names:
            missing = [name for name in self._order if name not in names]
            if missing:
                self._refused = self._order
                self._refuse(f'it wants joint {", ".join(map(repr, missing))}, which the model does not command '
                             f'(it commands {", ".join(names)})')
                return
            self._checked = names, [names.index(name) for name in self._order]
        self._publisher.publish(Float64MultiArray(data=array.array('d', positions[self._checked[1]])))

    def _ask(self) -> None:
        now_s = self._clock.now().nanoseconds / 1e9
        if not self._client.service_is_ready():
            if self._order:
                self._forget(f'controller {self.controller!r} is gone')
            self._refused = ()
            return
        if self._order or self._asked_s is not None and now_s - self._asked_s < ANSWER_SECONDS:
            return
        self._asked_s = now_s
        self._client.call_async(GetParameters.Request(names=list(PARAMETERS))).add_done_callback(self._answered)

    def _answered(self, answer: Future) -> None:
        if answer.exception() is not None or len(answer.result().values) != len(PARAMETERS):
            self._refuse(f'it did not tell its parameters {" and ".join(PARAMETERS)}')
            return
        joints, interface = answer.result().values
        names, interface = tuple(joints.string_array_value), interface.string_value
        if not names:
            self._refuse('its parameter joints is empty: is it a forward_command_controller?')
        elif len(set(names)) != len(names):
            self._refuse(f'its parameter joints names a joint twice: {list(names)}')
        elif interface not in ('', 'position'):  # a position controller of its own kind has no such parameter
            self._refuse(f'its interface is {interface!r}, and commands are positions')
        elif names not in (self._order, self._refused):
            self._order, self._checked, self.problem = names, None, ''
            self._node.get_logger().info(f'controller {self.controller!r} takes {", ".join(names)}')

    def _refuse(self, why: str) -> None:
        self._forget(f'controller {self.controller!r} gets no commands: {why}')

    def _forget(self, problem: str) -> None:
        """Publish nothing; log when the problem is a new one."""
        self._order, self._checked = (), None
        if problem != self.problem:
            self.problem = problem
            self._node.get_logger().error(problem)
