"""A hand that a model knows as one number, like a gripper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Hand:
    """
    Several joints that move together between two poses: 0 is open, 1 is closed.

    :param joints: unique names. :param open, closed: float64 [joints], rad.
    """

    joints: tuple[str, ...]
    open: np.ndarray
    closed: np.ndarray

    def __post_init__(self) -> None:
        shape = (len(self.joints),)
        if self.open.shape != shape or self.closed.shape != shape or len(set(self.joints)) != len(self.joints):
            raise ValueError(f'{shape[0]} unique joints need as many positions in open and closed')
        if not np.any(self.open != self.closed):
            raise ValueError('open and closed are the same pose')

    def closing(self, positions: np.ndarray) -> np.ndarray:
        """
        Return how far the hand is closed, float64 [...] in 0 to 1: the nearest pose on the way (least squares).

        :param positions: [..., joints], rad.
        """
        way = self.closed - self.open
        return np.clip((positions - self.open) @ way / (way @ way), 0.0, 1.0)

    def positions(self, closing: np.ndarray) -> np.ndarray:
        """
        Return the pose, float64 [..., joints], rad.

        :param closing: [...]; beyond 0 and 1 is taken as these.
        """
        return self.open + np.clip(closing, 0.0, 1.0)[..., None] * (self.closed - self.open)
