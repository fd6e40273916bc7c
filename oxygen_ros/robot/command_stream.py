"""From chunks to commands: buffer, safety limiter and the stop latch in one place."""

from __future__ import annotations

import numpy as np

from oxygen_ros.robot.chunk import JointChunk, JointCommand, JointTrajectory
from oxygen_ros.robot.chunk_buffer import ChunkBuffer, PushResult
from oxygen_ros.robot.joints import MissingJoint, select
from oxygen_ros.robot.robot_file import Robot
from oxygen_ros.robot.safety import LimitedCommand, SafetyLimiter

HOLD_AFTER_NS = 100_000_000  # time that a trajectory controller has to come to rest


class CommandStream:
    """
    Everything between an action chunk and what is sent to the robot.

    Begins at the measured position, accepts chunks, gives a safe command whenever asked. After `stop` it holds and
    accepts nothing until `resume`. Not thread safe: it belongs to the thread that sends commands.
    """

    def __init__(self, robot: Robot, buffer: ChunkBuffer) -> None:
        self._buffer = buffer
        joints = robot.select(buffer.names)
        self._limiter = SafetyLimiter(joints)
        self._unmeasured = {joint.name: joint.default for joint in joints if not joint.measured}
        self._last_ns: int | None = None
        self._resumed_ns = 0
        self.stopped = False

    def clear(self) -> None:
        """Forget chunks and positions, as for a new activation or a clock that jumped. A stop stays."""
        self._buffer.clear()
        self._last_ns = None
        self._resumed_ns = 0

    def measured(self, names: tuple[str, ...], positions: np.ndarray) -> None:
        """Tell the measured joint positions; the first chunk begins there. Ignored while commands are being sent."""
        if self._buffer.commanding:
            return
        try:
            known = {**dict(zip(names, positions)), **self._unmeasured}
            here = select(tuple(known), np.array(list(known.values())), self._buffer.names)
        except MissingJoint:
            return  # the action task reports it; without a start nothing is commanded
        self._buffer.start(here)
        self._limiter.start(here)
        self._last_ns = None

    def push(self, chunk: JointChunk, now_ns: int) -> tuple[PushResult | None, JointTrajectory | None]:
        """
        Take a chunk over; return what became of it, and the limited trajectory from now on if it is executed.

        While stopped, the chunk is ignored and the result is None.

        :raises ChunkRejected: it holds a number that is not finite.
        """
        if self.stopped:
            return None, None
        if chunk.stamp_ns < self._resumed_ns:
            return PushResult.OLDER_FRAME, None
        result = self._buffer.push(chunk, now_ns)
        trajectory = None
        if result in (PushResult.STARTED, PushResult.BLENDED):
            trajectory = self._buffer.trajectory(now_ns)
        return result, None if trajectory is None else self._limiter.limit_trajectory(trajectory)

    def command(self, now_ns: int) -> tuple[JointCommand, LimitedCommand] | None:
        """Return the command for this moment and its safe form, or None when there is nothing to command."""
        command = self._buffer.sample(now_ns)
        if command is None:
            self._last_ns = None  # a pause allows no larger step after it
            return None
        step_ns = 0 if self._last_ns is None else now_ns - self._last_ns
        self._last_ns = now_ns
        return command, self._limiter.limit(command.positions, command.velocities, step_ns)

    def stop(self, now_ns: int) -> JointTrajectory | None:
        """
        Hold the present command and accept no chunk until `resume`.

        :returns: a trajectory of one point that makes a trajectory controller hold too, which may have the rest of a
            chunk in hand; None when nothing was being commanded.
        """
        last = self._limiter.last if self._buffer.commanding else None
        self._buffer.hold(now_ns, last)  # the limiter may be behind the chunk: do not catch up
        self.stopped = True
        command = self._buffer.sample(now_ns)
        if command is None or last is None:
            return None
        positions = command.positions[None]
        return JointTrajectory(self._buffer.names, now_ns, (HOLD_AFTER_NS,), positions, np.zeros_like(positions),
                               command.frame_number, command.stamp_ns)

    def resume(self, now_ns: int = 0) -> None:
        """Accept chunks again; not those of observations from before, which were asked for before the stop."""
        self.stopped = False
        self._resumed_ns = now_ns
