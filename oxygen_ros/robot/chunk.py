"""What the action task hands to the robot side, and what the robot side hands to the robot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np


@dataclass(frozen=True)
class JointChunk:
    """
    The actions of one inference, in joint space.

    :param names: joints, in the order of the columns.
    :param positions: float64 [horizon, joints], targets in rad; not checked yet, see `safety.check_chunk`.
    :param start_ns: time that row 0 is meant for, node clock.
    :param period_ns: time between two rows.
    :param frame_number: number of the observation that the chunk answers.
    :param stamp_ns: stamp of that observation.
    """

    names: tuple[str, ...]
    positions: np.ndarray
    start_ns: int
    period_ns: int
    frame_number: int
    stamp_ns: int

    def __post_init__(self) -> None:
        if self.positions.ndim != 2 or len(self.positions) < 1 or self.positions.shape[1] != len(self.names):
            raise ValueError(f'positions of shape {list(self.positions.shape)} for {len(self.names)} joints')
        if len(set(self.names)) != len(self.names):
            raise ValueError(f'a joint is named twice in {list(self.names)}')
        if self.period_ns <= 0:
            raise ValueError(f'period_ns {self.period_ns} must be positive')


class CommandSource(str, Enum):
    """Why a command is what it is."""

    CHUNK = 'chunk'  # a step of the chunk in execution
    HOLD = 'hold'    # the last position is held: the chunk has run out, has expired, or was stopped


@dataclass(frozen=True)
class JointCommand:
    """
    Positions to command now.

    :param positions: float64 [joints], rad, in the order of `names`.
    :param velocities: float64 [joints], rad/s, the time derivative of the positions.
    :param frame_number: number of the observation that the command answers; stamp_ns: its stamp.
    """

    names: tuple[str, ...]
    positions: np.ndarray
    velocities: np.ndarray
    source: CommandSource
    frame_number: int
    stamp_ns: int


@dataclass(frozen=True)
class JointTrajectory:
    """
    The commands that lie ahead, for controllers that take whole trajectories.

    :param start_ns: time that `times_ns` count from, node clock.
    :param times_ns: one per row, from 0 or later, strictly increasing (`time_from_start`).
    :param positions: float64 [rows, joints], rad.
    :param velocities: float64 [rows, joints], rad/s; 0 in the last row, else trajectory controllers refuse the whole.
    """

    names: tuple[str, ...]
    start_ns: int
    times_ns: tuple[int, ...]
    positions: np.ndarray
    velocities: np.ndarray
    frame_number: int
    stamp_ns: int

    def __post_init__(self) -> None:
        shape = (len(self.times_ns), len(self.names))
        if not self.times_ns or self.positions.shape != shape or self.velocities.shape != shape:
            raise ValueError(f'{shape[0]} times and {shape[1]} joints, but positions of shape '
                             f'{list(self.positions.shape)} and velocities of shape {list(self.velocities.shape)}')
        if self.times_ns[0] < 0 or any(b <= a for a, b in zip(self.times_ns, self.times_ns[1:])):
            raise ValueError(f'times must be strictly increasing from 0 or later, not {self.times_ns}')
