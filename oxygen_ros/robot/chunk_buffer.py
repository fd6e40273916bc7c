"""
Turns chunks, which arrive now and then, into one smooth stream of commands.

A chunk is a curve over time. When a new one arrives, the difference in position and velocity between it and the command
of that moment fades away over the blend time. So both are continuous, and no more than one curve has to be kept.
The new curve may moreover be an average of the new chunk and the curve before, where both know something (temporal
ensembling, Zhao et al. 2023, arXiv 2304.13705, with weights that halve, or so, from chunk to chunk).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from oxygen_ros.robot.chunk import CommandSource, JointChunk, JointCommand, JointTrajectory
from oxygen_ros.robot.interpolation import Curve, Interpolation, decay
from oxygen_ros.robot.joints import select
from oxygen_ros.robot.safety import check_chunk


class WhenEmpty(str, Enum):
    """What happens after the last step of a chunk; the value is the word used in parameters."""

    HOLD = 'hold'  # command the last position again and again
    STOP = 'stop'  # command nothing


class PushResult(str, Enum):
    """What became of a chunk."""

    STARTED = 'started'            # nothing was executing: it begins now
    BLENDED = 'blended'            # it takes over from the chunk in execution
    OLDER_FRAME = 'older_frame'    # ignored: it answers an older observation than the chunk before it
    PAST = 'past'                  # ignored: all its steps lie in the past, and another chunk is in execution
    EXPIRED = 'expired'            # ignored: its observation is older than the lifetime of a command
    NOT_STARTED = 'not_started'    # ignored: the measured positions are not known yet


class ChunkBuffer:
    """
    The chunk in execution, sampled at control rate.

    Each step lasts one period. Steps that lie in the past are skipped as far as the robot was executing meanwhile.
    While nothing executes, it stays where the model saw it: a chunk that was computed then begins with its first step.

    Not thread safe: push, sample and the rest belong to one thread.

    :param names: joints to command, the order of all vectors. Chunks may have another order and further joints.
    :param blend_ns: time over which a new chunk takes over; 0 jumps.
    :param start_ns: the same for the first chunk, which takes over from where the robot is; None is `blend_ns`.
    :param ensemble: weight of the curve before in the average with a new chunk: from 0 (the new one alone) to below 1.
    :param lifetime_ns: commands expire so long after the stamp of their observation; the rest of the chunk is dropped.
    :param rest: for each joint what to command while nothing executes; None holds. See `Joint.rest`.
    """

    def __init__(self, names: Sequence[str], *, rest: Sequence[float | None] | None = None,
                 blend_ns: int = 100_000_000, start_ns: int | None = None, ensemble: float = 0.0,
                 lifetime_ns: int = 2_000_000_000, interpolation: Interpolation = Interpolation.CUBIC,
                 when_empty: WhenEmpty = WhenEmpty.HOLD) -> None:
        if min(blend_ns, start_ns or 0) < 0 or lifetime_ns <= 0:
            raise ValueError(f'blend_ns {blend_ns} and start_ns {start_ns} must not be negative, '
                             f'lifetime_ns {lifetime_ns} must be positive')
        if not 0 <= ensemble < 1:
            raise ValueError(f'ensemble {ensemble} must be from 0 to below 1')
        self.names = tuple(names)
        self._rest = np.array(rest or [None] * len(self.names), dtype=np.float64)  # NaN holds
        self._blend_ns = blend_ns
        self._start_ns = blend_ns if start_ns is None else start_ns
        self._ensemble = ensemble
        self._lifetime_ns = lifetime_ns
        self._interpolation = Interpolation(interpolation)
        self._when_empty = WhenEmpty(when_empty)
        self.clear()

    def clear(self) -> None:
        """Forget everything, for a clock that jumped or a new activation; `start` comes next."""
        self._measured: np.ndarray | None = None
        self._newest: tuple[int, int] | None = None  # stamp and number of the newest frame that was acted on
        self._drop_chunk()

    def _drop_chunk(self) -> None:
        self._chunk: JointChunk | None = None
        self._curve: Curve | None = None
        self._latest_ns = self._stop_ns = self._blend_start_ns = self._blend_end_ns = 0
        self._offset = self._offset_velocity = np.zeros(len(self.names))

    def start(self, positions: np.ndarray) -> None:
        """
        Say where the robot is; the next chunk begins there. Commands nothing until then.

        Needed before the first chunk. To be repeated while the buffer is not `commanding`: something else may move the
        robot then.

        :param positions: float64 [joints], measured, rad, finite.
        """
        positions = np.array(positions, dtype=np.float64)
        if positions.shape != (len(self.names),) or not np.isfinite(positions).all():
            raise ValueError(f'{len(self.names)} finite positions are needed to start, not {positions.tolist()}')
        self._measured = positions
        self._drop_chunk()

    @property
    def commanding(self) -> bool:
        """Tell whether `sample` gave a command at its last call, or will at the next since a chunk has come."""
        return self._curve is not None and (self._when_empty is WhenEmpty.HOLD or self._latest_ns < self._stop_ns)

    def push(self, chunk: JointChunk, now_ns: int) -> PushResult:
        """
        Take a new chunk over, and say what became of it.

        :raises ChunkRejected: when it holds a number that is not finite; the chunk in execution goes on.
        :raises MissingJoint: when it lacks a joint of this buffer.
        """
        check_chunk(chunk)
        rows = select(chunk.names, chunk.positions, self.names)
        if self._measured is None:
            return PushResult.NOT_STARTED
        frame = chunk.stamp_ns, chunk.frame_number
        if self._newest is not None and frame < self._newest:
            return PushResult.OLDER_FRAME
        now_ns = self._latest_ns = max(now_ns, self._latest_ns)
        expiry_ns = chunk.stamp_ns + self._lifetime_ns
        if expiry_ns <= now_ns:
            return PushResult.EXPIRED
        executing = self._curve is not None and now_ns < self._stop_ns
        executed_ns = max(0, min(now_ns, self._stop_ns) - chunk.start_ns) if self._curve else 0
        steps_before_last_ns = (len(rows) - 1) * chunk.period_ns
        if executed_ns >= steps_before_last_ns + chunk.period_ns:
            if executing:
                return PushResult.PAST
            executed_ns = steps_before_last_ns  # late, but better than to stay without any step
        start_ns = now_ns - executed_ns
        if self._curve is not None and executing and self._ensemble:
            rows = self._averaged(rows, start_ns, chunk.period_ns, self._curve)
        curve = Curve(rows, start_ns, chunk.period_ns, self._interpolation)
        stop_ns = min(curve.end_ns + chunk.period_ns, expiry_ns)
        positions, velocities = self._at(now_ns)
        target, target_velocity = curve.at(now_ns)
        blend_ns = self._start_ns if self._curve is None else max(self._blend_ns, self._blend_end_ns - now_ns)
        self._newest, self._chunk, self._curve = frame, chunk, curve
        self._stop_ns, self._blend_start_ns, self._blend_end_ns = stop_ns, now_ns, now_ns + blend_ns
        self._offset, self._offset_velocity = positions - target, velocities - target_velocity
        return PushResult.BLENDED if executing else PushResult.STARTED

    def _averaged(self, rows: np.ndarray, start_ns: int, period_ns: int, before: Curve) -> np.ndarray:
        """Return the rows of a new chunk, averaged with the curve in execution as far as that reaches."""
        times = [start_ns + number * period_ns for number in range(len(rows))]
        end_ns = min(before.end_ns, self._stop_ns)
        return np.stack([self._ensemble * before.at(time_ns)[0] + (1 - self._ensemble) * row
                         if before.start_ns <= time_ns <= end_ns else row for time_ns, row in zip(times, rows)])

    def hold(self, now_ns: int, positions: np.ndarray | None = None) -> None:
        """
        Stop, and drop the rest of the chunk.

        :param positions: float64 [joints], rad, to hold: the last command that was really sent, if it was limited on
            the way. None holds the command of this moment.
        """
        if self._curve is None:
            return
        now_ns = self._latest_ns = max(now_ns, self._latest_ns)
        if positions is None:
            positions, _ = self._at(now_ns)
        self._curve = Curve(self._resting(positions)[None], now_ns, 1, self._interpolation)
        self._stop_ns = now_ns
        self._offset = self._offset_velocity = np.zeros(len(self.names))

    def sample(self, now_ns: int) -> JointCommand | None:
        """Return the command for this moment; None before the first chunk, and with `WhenEmpty.STOP` after the last."""
        if self._chunk is None:
            return None
        # Time never runs backwards here, so a command never steps back along the chunk.
        now_ns = self._latest_ns = max(now_ns, self._latest_ns)
        if not self.commanding:
            return None
        source = CommandSource.CHUNK if now_ns < self._stop_ns else CommandSource.HOLD
        positions, velocities = self._at(now_ns)
        return JointCommand(self.names, positions, velocities, source, self._chunk.frame_number, self._chunk.stamp_ns)

    def trajectory(self, now_ns: int) -> JointTrajectory | None:
        """Return the steps from now on, blended as `sample` will give them; None when nothing is left to execute."""
        curve = self._curve
        if self._chunk is None or curve is None:
            return None
        now_ns = self._latest_ns = max(now_ns, self._latest_ns)
        first = max(0, -(-(now_ns - curve.start_ns) // curve.period_ns))
        times = range(curve.start_ns + first * curve.period_ns, self._stop_ns, curve.period_ns)
        if not times:
            return None
        positions, velocities = (np.stack(values) for values in zip(*map(self._at, times)))
        velocities[-1] = 0.0  # also if the chunk is cut short by its lifetime
        return JointTrajectory(self.names, now_ns, tuple(time - now_ns for time in times), positions, velocities,
                               self._chunk.frame_number, self._chunk.stamp_ns)

    def _at(self, time_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and velocities: the curve, at rest after its stop, plus what is left of the difference."""
        if self._curve is None:
            return self._measured, np.zeros(len(self.names))
        positions, velocities = self._curve.at(min(time_ns, self._stop_ns))
        stopped = time_ns >= self._stop_ns
        if stopped:
            velocities = np.zeros_like(velocities)
        offset, offset_velocity = decay(self._offset, self._offset_velocity, time_ns - self._blend_start_ns,
                                        self._blend_end_ns - self._blend_start_ns)
        positions, velocities = positions + offset, velocities + offset_velocity
        if stopped:
            return self._resting(positions), np.where(np.isnan(self._rest), velocities, 0.0)
        return positions, velocities

    def _resting(self, positions: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(self._rest), positions, self._rest)
