"""Timers of the tasks of the inference node, each at its own rate, on the node clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rclpy.clock import Clock, ClockType
from rclpy.timer import Timer

if TYPE_CHECKING:
    from oxygen_ros.nodes.inference import InferenceNode


class TaskTimers:
    """
    Asks for actions and texts, and sends commands, while the node is active.

    :param node: does what is due.
    """

    def __init__(self, node: InferenceNode) -> None:
        self._node = node
        self._timers: list[Timer] = []
        self._tick: float | None = None  # when the last action was due

    def start(self) -> None:
        """Start the timers of the tasks that have a rate. A model that cannot speak gets no text task."""
        node, values = self._node, self._node.values
        self._tick = None
        tasks = [(values['action.rate'], self._action_due), (values['command.rate'], self._command_due)]
        if node.session.spec.text_head_trained:
            tasks += [(values['subtask.rate'], lambda: node.texts.submit_task('subtask', node.instruction)),
                      (values['speech.rate'], lambda: node.texts.submit_task('speech')),
                      (values['memory.rate'], lambda: node.texts.submit_task('memory'))]
        # Simulated time sets the pace where it is used; timers on system time stand still when it is set back.
        clock = None if node.get_clock().ros_time_is_active else Clock(clock_type=ClockType.STEADY_TIME)
        self._timers = [node.create_timer(1.0 / rate, callback, clock=clock) for rate, callback in tasks if rate > 0]

    def stop(self) -> None:
        """Stop all timers."""
        for timer in self._timers:
            self._node.destroy_timer(timer)
        self._timers = []

    def _action_due(self) -> None:
        """Ask for a chunk that is to be published when this timer comes next."""
        node = self._node
        now, left = _time_until_next(self._timers[0])
        # In simulated time the wall time of a period is measured, it is not the period.
        scale = 1.0
        if self._tick is not None and node.get_parameter('use_sim_time').value:
            scale = min(100.0, (now - self._tick) * node.values['action.rate'])
        self._tick = now
        deadline = now + left * scale
        if not node.session.commands.stopped:
            node.worker.post(lambda engine: engine.request_action(deadline))

    def _command_due(self) -> None:
        now_ns = self._node.now_ns()
        command = self._node.session.commands.command(now_ns)
        if command is not None:
            self._node.outputs.publish_command(*command, now_ns)


def _time_until_next(timer: Timer) -> tuple[float, float]:
    """Return the present time and the seconds until a timer's next call, read at the same moment."""
    for _ in range(5):
        before = time.monotonic()
        left = timer.time_until_next_call() * 1e-9
        now = time.monotonic()
        if now - before < 1e-3:  # this thread was not interrupted in between
            break
    return now, left
