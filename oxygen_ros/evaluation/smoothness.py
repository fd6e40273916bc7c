"""How smoothly a robot moves, and how well a chunk goes on from the one before."""

from __future__ import annotations

import numpy as np

from oxygen_ros.robot.chunk import JointChunk


def jerk(positions: np.ndarray, period: float) -> float:
    """
    Return the root mean square of the third derivative, in rad/s^3; NaN for fewer than four moments.

    :param positions: float [moments, joints], rad, `period` seconds apart.
    """
    if len(positions) < 4:
        return float('nan')
    return float(np.sqrt(np.mean((np.diff(positions, 3, axis=0) / period**3) ** 2)))


class ChunkGaps:
    """
    Collects how far each chunk is from the one before where it begins: the largest distance of a joint, in rad.

    It is what blending has to hide. A chunk that begins after the end of the one before has no gap.
    """

    def __init__(self) -> None:
        self._last: JointChunk | None = None
        self.values: list[float] = []

    def push(self, chunk: JointChunk) -> None:
        """Take in the next chunk."""
        last, self._last = self._last, chunk
        if last is None:
            return
        place = (chunk.start_ns - last.start_ns) / last.period_ns
        if 0 <= place <= len(last.positions) - 1:
            low = int(place)
            high = min(low + 1, len(last.positions) - 1)
            before = last.positions[low] + (place - low) * (last.positions[high] - last.positions[low])
            self.values.append(float(np.abs(chunk.positions[0] - before).max()))
