"""Watches over the engine of the inference node: one that fails or hangs must not leave a robot in motion."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import TransitionCallbackReturn

from oxygen_ros.engine.engine import Engine
from oxygen_ros.nodes.runner import NodeFinished
from oxygen_ros.nodes.transitions import do_all

if TYPE_CHECKING:
    from oxygen_ros.nodes.inference import InferenceNode

PERIOD = 0.2  # seconds between two looks
LATE = 1.0  # after which a look says nothing: this process itself stood still, suspended or starved
USUAL_TIMES = 5  # as long as usual may an action take before it counts as hanging, whatever the parameter says


class InferenceWatchdog:
    """
    Makes the robot safe and takes the node through its error state when the engine cannot go on. All in the executor's
    thread.

    :param node: its worker is watched.
    """

    def __init__(self, node: InferenceNode) -> None:
        self._node = node
        self.reason = ''  # why the engine cannot go on; stays until the node is configured again
        self._usual = 0.0
        self._rejected = 0  # chunks in a row
        self._looked = time.monotonic()
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        node.create_timer(PERIOD, self._look, clock=self._steady)

    def begin(self, usual: float) -> None:
        """Watch a new engine; `usual` are the seconds that it needs for an action."""
        self.reason, self._usual, self._rejected = '', usual, 0

    @property
    def limit(self) -> float:
        """Seconds after which a call into the engine counts as hanging."""
        return max(self._node.values['engine_timeout'], USUAL_TIMES * self._usual)

    def chunk(self, accepted: bool) -> None:
        """Note whether the numbers of a chunk could be used."""
        self._rejected = 0 if accepted else self._rejected + 1
        if self._rejected > self._node.values['action.failures']:
            self.failed(f'{self._rejected} action chunks in a row could not be used')

    def failed(self, reason: str) -> None:
        """Have the robot hold at once, end all texts, and leave for the error state."""
        node = self._node
        if self.reason or node.worker is None:
            return
        self.reason = reason
        node.get_logger().error(f'the engine failed, the robot holds: {reason}')
        do_all(node, lambda: node.active and node.outputs.hold(), lambda: node.texts.fail('the engine has failed'))
        worker = node.worker

        def leave() -> None:
            node.destroy_timer(soon)
            if node.worker is not worker:
                return  # somebody else did
            # Both return ERROR while there is a reason, and that leads through on_error.
            if (node.trigger_deactivate if node.active else node.trigger_cleanup)() is TransitionCallbackReturn.SUCCESS:
                node.get_logger().error('the node did not go through its error state')
            if node.values['autostart']:
                raise NodeFinished(1)  # nobody would configure it again: let the launch file or supervisor know

        # Not here: a transition empties the mailbox too, and within a transition there can be no other.
        soon = node.create_timer(0.0, leave, clock=self._steady)

    def _look(self) -> None:
        node, now = self._node, time.monotonic()
        late, self._looked = now - self._looked > LATE, now
        if node.worker is None or self.reason or late:
            return
        if not node.worker.alive:
            node.mailbox.drain()  # it may say there why
            self.failed('its thread has ended')
        elif node.worker.silence > self.limit:
            self.failed(f'no cycle ended for {node.worker.silence:.1f} s')


def end_run(node: InferenceNode, seconds: float) -> bool:
    """Have the engine cancel everything; return whether it did so in time."""
    ended = node.worker.call(Engine.end)
    try:
        ended.result(0 if node.watchdog.reason else seconds)
    except CancelledError:  # the engine has failed
        return False
    except FutureTimeoutError:  # it hangs, or is in a stage that takes long
        ended.cancel()
        node.get_logger().error(f'the engine does not answer for {node.worker.silence:.1f} s')
        return False
    return True


def end_threads(node: InferenceNode, seconds: float) -> None:
    """End the engine's thread, then that of memory, to which the last notes are on their way; say what hangs."""
    if node.worker is not None:
        hangs = node.worker.silence > node.watchdog.limit
        if not node.worker.stop(0.1 if hangs else seconds):
            node.get_logger().error('the worker thread did not end: it is left behind with its model')
        node.mailbox.drain()
    if node.memory is not None and not node.memory.close(seconds):
        node.get_logger().error(f'memory {node.memory.path} is not closed yet: its disk does not answer')


def leave_hanging_threads(code: int) -> int:
    """Return the exit code of the process; or leave with it at once, if a thread hangs."""
    if any(thread.name.startswith(('engine', 'memory')) for thread in threading.enumerate()):
        # The end of the interpreter would wait for it, or cut it off in the middle of C++ code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
