"""Watches the clock of a node: jumps back, and simulated time that does not start."""

from __future__ import annotations

import time
from collections.abc import Callable

from rclpy.clock import Clock, ClockType, JumpThreshold, TimeJump
from rclpy.duration import Duration
from rclpy.node import Node

WAIT_SECONDS = 3.0  # without /clock before it is reported; reported again ten times as rarely
STEP_SECONDS = 0.1  # back, against the monotonic clock, that system time does not drift in a second but is set
SETTLE_SECONDS = 1.0  # after a jump, in which messages from before it still come
NO_CLOCK = ('use_sim_time is set but nothing has come on /clock: start what publishes it (a simulator, or a replay '
            'with a clock), or unset use_sim_time')


class ClockWatch:
    """
    Calls back when the node clock jumps back, and logs when simulated time does not start.

    The callback runs in the executor, between other callbacks. System time that is set back, for example by NTP after
    the start of the machine, is noticed within about a second: rcl does not tell of it.

    :param on_jump_back: called after the jump, when the clock shows the new time already; also when the node changes
        between system time and simulated time.
    """

    def __init__(self, node: Node, on_jump_back: Callable[[], None]):
        self._node = node
        self._on_jump_back = on_jump_back
        self._start_s = time.monotonic()
        self._reported_s = 0.0
        self._jumped_s: float | None = None
        self._ahead_s: float | None = None  # of the monotonic clock; None in simulated time
        threshold = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=True)
        self._handle = node.get_clock().create_jump_callback(threshold, post_callback=self._jumped)
        self._timer = node.create_timer(1.0, self._check, clock=Clock(clock_type=ClockType.STEADY_TIME))

    @property
    def waits_for_clock(self) -> bool:
        """Tell whether the time is simulated and has not started."""
        return self._node.get_clock().ros_time_is_active and self._node.get_clock().now().nanoseconds == 0

    @property
    def unsettled(self) -> bool:
        """
        Tell whether the clock does not show a usual time at the moment: it jumped, or it may start any moment.

        Then messages with stamps of another time are nothing to report.
        """
        now_s = time.monotonic()
        if self.waits_for_clock:
            return now_s - self._start_s <= WAIT_SECONDS
        return self._jumped_s is not None and now_s - self._jumped_s <= SETTLE_SECONDS

    def _jumped(self, jump: TimeJump) -> None:
        self._note_jump(jump.delta.nanoseconds / 1e9)

    def _note_jump(self, seconds: float) -> None:
        self._jumped_s = time.monotonic()
        if seconds < 0:
            self._node.get_logger().warning(
                f'clock jumped back by {-seconds:.3f} s: everything from before it is dropped')
        self._on_jump_back()

    def _check_system_time(self) -> None:
        clock = self._node.get_clock()
        if clock.ros_time_is_active:
            self._ahead_s = None
            return
        before_s = time.monotonic()
        ahead_s = clock.now().nanoseconds / 1e9 - before_s
        if time.monotonic() - before_s > STEP_SECONDS / 10:
            return  # interrupted in between: the difference means nothing
        if self._ahead_s is not None and ahead_s < self._ahead_s - STEP_SECONDS:
            self._note_jump(ahead_s - self._ahead_s)
        self._ahead_s = ahead_s

    def _check(self) -> None:
        self._check_system_time()
        now_s = time.monotonic()
        if not self.waits_for_clock:
            if self._reported_s:
                self._node.get_logger().info('simulated time has started')
                self._reported_s = 0.0
        elif now_s - self._start_s > WAIT_SECONDS and now_s - self._reported_s > 10 * WAIT_SECONDS:
            self._reported_s = now_s
            self._node.get_logger().warning(NO_CLOCK)
