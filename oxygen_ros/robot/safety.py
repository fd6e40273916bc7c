"""The last gate before the robot: what may not be executed is refused, what is too far or too fast is limited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from oxygen_ros.errors import OxygenError
from oxygen_ros.robot.chunk import JointChunk, JointTrajectory
from oxygen_ros.robot.joints import Joint

# No joint position is as large as this, in rad or m; a larger number is a fault of the model.
PLAUSIBLE = 1e3


class RejectReason(str, Enum):
    """Why a chunk is dropped."""

    NOT_FINITE = 'not_finite'
    IMPLAUSIBLE = 'implausible'
    WIDTH = 'width'
    EMPTY = 'empty'


class ChunkRejected(OxygenError):
    """A chunk is dropped as a whole; nothing of it may be executed. `reason` says why."""

    def __init__(self, reason: RejectReason, text: str) -> None:
        self.reason = reason
        super().__init__(f'chunk rejected ({reason.value}): {text}')


@dataclass(frozen=True)
class LimitedCommand:
    """
    A command that is safe to send.

    :param positions: float64 [joints], rad, finite, inside the limits.
    :param velocities: float64 [joints], rad/s, fits the positions.
    :param at_limit: names of the joints whose position was cut to a limit.
    :param slowed: names of the joints whose change was cut to the velocity limit.
    """

    positions: np.ndarray
    velocities: np.ndarray
    at_limit: tuple[str, ...]
    slowed: tuple[str, ...]


def check_actions(actions: np.ndarray, width: int) -> np.ndarray:
    """
    Check the output of a model and drop its padding.

    :param actions: [horizon, at least width].
    :returns: float64 [horizon, width], finite.
    :raises ChunkRejected: for the whole chunk, even if only one number is wrong.
    """
    actions = np.asarray(actions, dtype=np.float64)
    if actions.size == 0:
        raise ChunkRejected(RejectReason.EMPTY, f'no actions (shape {list(actions.shape)}) for {width} joints')
    if actions.ndim != 2 or actions.shape[1] < width:
        raise ChunkRejected(RejectReason.WIDTH, f'actions of shape {list(actions.shape)} for {width} joints')
    actions = actions[:, :width]
    for reason, bad, what in ((RejectReason.NOT_FINITE, ~np.isfinite(actions), 'not a finite number'),
                              (RejectReason.IMPLAUSIBLE, np.abs(actions) > PLAUSIBLE, f'beyond {PLAUSIBLE:g}')):
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ChunkRejected(reason, f'{bad.sum()} of {bad.size} numbers {what}, the first in row {row}, '
                                        f'column {column} ({actions[row, column]})')
    return actions


def check_chunk(chunk: JointChunk) -> None:
    """
    Check the positions of a chunk.

    :raises ChunkRejected: when a number is not finite or not plausible.
    """
    check_actions(chunk.positions, len(chunk.names))


class SafetyLimiter:
    """
    Keeps successive commands inside the joints' position and velocity limits, whatever comes in.

    Position limits win over velocity limits: a robot that starts outside its limits is called back to the limit.
    Not thread safe: one thread sends commands.

    :param joints: in the order of the command vectors.
    :param max_step_ns: a longer time between two commands does not allow a larger change.
    """

    def __init__(self, joints: Sequence[Joint], max_step_ns: int = 100_000_000) -> None:
        self.names = tuple(joint.name for joint in joints)
        self._lower = np.array([joint.lower for joint in joints], dtype=np.float64)
        self._upper = np.array([joint.upper for joint in joints], dtype=np.float64)
        self._velocity = np.array([joint.velocity for joint in joints], dtype=np.float64)
        self._max_step_ns = max_step_ns
        self._previous: np.ndarray | None = None

    @property
    def last(self) -> np.ndarray | None:
        """Positions of the last command, float64 [joints]; those of `start` before the first, None before `start`."""
        return self._previous

    def start(self, positions: np.ndarray) -> None:
        """
        Say where the robot is before the first command.

        :param positions: float64 [joints], measured, rad.
        :raises ValueError: when they are not finite or of another number.
        """
        positions = np.asarray(positions, dtype=np.float64)
        if positions.shape != (len(self.names),) or not np.isfinite(positions).all():
            raise ValueError(f'{len(self.names)} finite positions are needed to start, not {positions.tolist()}')
        self._previous = np.clip(positions, self._lower, self._upper)

    def limit(self, positions: np.ndarray, velocities: np.ndarray, step_ns: int) -> LimitedCommand:
        """
        Return the nearest safe command, and remember it.

        :param positions: [joints] wanted, rad. Those that are not finite keep their last command.
        :param velocities: [joints] wanted, rad/s.
        :param step_ns: time since the last command.
        :raises RuntimeError: before `start`.
        """
        seconds = min(max(step_ns, 0), self._max_step_ns) * 1e-9
        previous = self._reference()
        command = self._limit(previous, np.asarray(positions, dtype=np.float64), velocities, seconds)
        self._previous = command.positions
        return command

    def limit_trajectory(self, trajectory: JointTrajectory) -> JointTrajectory:
        """Return the trajectory with every row limited, beginning at the last command. Remembers nothing."""
        previous, before_ns, rows = self._reference(), 0, []
        for time_ns, positions, velocities in zip(trajectory.times_ns, trajectory.positions, trajectory.velocities):
            rows.append(self._limit(previous, positions, velocities, (time_ns - before_ns) * 1e-9))
            previous, before_ns = rows[-1].positions, time_ns
        velocities = np.stack([row.velocities for row in rows])
        velocities[-1] = 0.0
        return replace(trajectory, positions=np.stack([row.positions for row in rows]), velocities=velocities)

    def _reference(self) -> np.ndarray:
        if self._previous is None:
            raise RuntimeError('the safety limiter needs start() with the measured positions first')
        return self._previous

    def _limit(self, previous: np.ndarray, wanted: np.ndarray, velocities: np.ndarray,
               seconds: float) -> LimitedCommand:
        wanted = np.where(np.isfinite(wanted), wanted, previous)
        inside = np.clip(wanted, self._lower, self._upper)
        reach = self._velocity * seconds
        positions = np.clip(inside, previous - reach, previous + reach)
        at_limit, slowed = inside != wanted, positions != inside
        # A joint that was held back moves as its positions say, not as it was meant to.
        moved = (positions - previous) / seconds if seconds > 0 else np.zeros_like(positions)
        kept = np.isfinite(velocities) & ~at_limit & ~slowed
        velocities = np.clip(np.where(kept, velocities, moved), -self._velocity, self._velocity)
        return LimitedCommand(positions, velocities, self._named(at_limit), self._named(slowed))

    def _named(self, which: np.ndarray) -> tuple[str, ...]:
        return tuple(name for name, there in zip(self.names, which) if there)
