"""What a joint trajectory controller does: goes along the points of the newest trajectory, and holds at its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen_ros.robot.joints import select


class TrajectoryFollower:
    """
    Samples trajectories at any time, linearly between their points.

    A newer trajectory replaces the one before. From where it was commanded it goes straight to the first point that is
    still to come. Joints that a trajectory does not name stay where they were commanded.

    :param names: joints of the robot.
    :param positions: float [joints] rad: what is commanded at first.
    """

    def __init__(self, names: Sequence[str], positions: np.ndarray) -> None:
        self._names = tuple(names)
        self.hold(positions)

    def hold(self, positions: np.ndarray) -> None:
        """Forget the trajectory and stay at these positions, float [joints] rad."""
        self._times = np.array([0])
        self._points = np.array(positions, dtype=np.float64)[None]

    def follow(self, names: Sequence[str], positions: np.ndarray, times_ns: np.ndarray, now_ns: int) -> None:
        """
        Take a trajectory.

        :param names: joints, any order.
        :param positions: float [points, joints] rad.
        :param times_ns: int [points], increasing: when each point is to be reached.
        :param now_ns: of the same clock.
        :raises MissingJoint, ValueError: a name is no joint of the robot, shapes differ, numbers are not finite, times
            do not increase, or there is no point.
        """
        positions, times_ns = np.asarray(positions, dtype=np.float64), np.asarray(times_ns, dtype=np.int64)
        if not len(positions) or positions.shape != (len(times_ns), len(names)):
            raise ValueError(f'{len(times_ns)} times and {len(names)} joints, but points of shape '
                             f'{list(positions.shape)}')
        if not np.isfinite(positions).all() or (np.diff(times_ns) <= 0).any():
            raise ValueError('positions must be finite and times increase')
        select(self._names, np.zeros(len(self._names)), names)  # all are joints of the robot
        start = self.sample(now_ns)
        coming = times_ns > now_ns
        points = np.repeat(start[None], max(1, int(coming.sum())), axis=0)
        points[:, [self._names.index(name) for name in names]] = positions[coming] if coming.any() else positions[-1:]
        self._times = np.concatenate([[now_ns], times_ns[coming] if coming.any() else [now_ns + 1]])
        self._points = np.concatenate([start[None], points])

    def sample(self, now_ns: int) -> np.ndarray:
        """Return what is commanded at a time, float64 [joints] rad."""
        if now_ns >= self._times[-1]:
            return self._points[-1].copy()
        after = int(np.searchsorted(self._times, now_ns, side='right'))
        if after == 0:
            return self._points[0].copy()
        share = (now_ns - self._times[after - 1]) / (self._times[after] - self._times[after - 1])
        return self._points[after - 1] + share * (self._points[after] - self._points[after - 1])
