"""A curve through the rows of a chunk."""

from __future__ import annotations

from enum import Enum

import numpy as np


class Interpolation(str, Enum):
    """How positions between two rows come about; the value is the word used in parameters."""

    LINEAR = 'linear'  # velocities jump at the rows
    CUBIC = 'cubic'    # velocities are continuous and end at 0; never leaves the range of the two rows around


class Curve:
    """
    Positions and velocities over time; rests at the first row before it, and at the last row after it.

    :param positions: float64 [rows, joints], rad, finite.
    :param start_ns: time of the first row.
    :param period_ns: time between two rows.
    """

    def __init__(self, positions: np.ndarray, start_ns: int, period_ns: int, kind: Interpolation) -> None:
        self.positions = positions
        self.start_ns = start_ns
        self.period_ns = period_ns
        self.end_ns = start_ns + (len(positions) - 1) * period_ns
        self._slopes = np.diff(positions, axis=0) / (period_ns * 1e-9)
        self._tangents = _monotone_tangents(self._slopes) if kind is Interpolation.CUBIC else None

    def at(self, time_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions (rad) and velocities (rad/s; right-sided where they jump), float64 [joints] each."""
        if time_ns < self.start_ns or time_ns >= self.end_ns:
            row = self.positions[0 if time_ns < self.start_ns else -1]
            return row.copy(), np.zeros_like(row)
        row, rest_ns = divmod(time_ns - self.start_ns, self.period_ns)
        begin, end, slope = self.positions[row], self.positions[row + 1], self._slopes[row]
        x, period = rest_ns / self.period_ns, self.period_ns * 1e-9
        if self._tangents is None:
            return begin + x * (end - begin), slope.copy()
        # Cubic Hermite polynomial with end tangents a and b, written around the straight line.
        a, b = (self._tangents[row + i] - slope for i in (0, 1))
        y = 1 - x
        position = begin + x * (end - begin) + period * x * y * (y * a - x * b)
        velocity = slope + a * (y * y - 2 * x * y) + b * (x * x - 2 * x * y)
        return position, velocity


def decay(offset: np.ndarray, velocity: np.ndarray, time_ns: int, duration_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Return a difference in position and velocity that fades to nothing along a cubic Hermite polynomial.

    :param offset: rad at time 0; velocity: rad/s at time 0; both reach 0 at `duration_ns`.
    :returns: positions and velocities of the difference at `time_ns`.
    """
    if time_ns >= duration_ns:
        return np.zeros_like(offset), np.zeros_like(velocity)
    x, seconds = time_ns / duration_ns, duration_ns * 1e-9
    y = 1 - x
    position = y * y * ((1 + 2 * x) * offset + seconds * x * velocity)
    return position, -6 * x * y / seconds * offset + y * (1 - 3 * x) * velocity


def _monotone_tangents(slopes: np.ndarray) -> np.ndarray:
    """Return tangents [rows, joints] that do not overshoot: harmonic means (Fritsch and Butland 1984), 0 at the end."""
    tangents = np.zeros((len(slopes) + 1, slopes.shape[1]))
    before, after = slopes[:-1], slopes[1:]
    same_way = before * after > 0
    total = np.where(same_way, before + after, 1.0)
    tangents[1:-1] = np.where(same_way, 2 * before * after / total, 0.0)
    if len(slopes):
        tangents[0] = slopes[0]
    return tangents
