"""Truths of a small scene, for tests of the demo."""

from __future__ import annotations

import numpy as np

from oxygen_ros.simulation.objects import TableObject
from oxygen_ros.simulation.simulation import Truth

SECOND = 1_000_000_000
CUBE = TableObject('red', 'cube', (0.30, 0.15, 0.37), 0.03, pixels=200)      # near left
BALL = TableObject('blue', 'ball', (0.45, -0.15, 0.37), 0.03, pixels=150)    # far right
FAR = np.array([0.0, 0.0, 1.0])


def truth(tip=FAR, objects=(CUBE, BALL), from_rest=0.0) -> Truth:
    """Return a truth with the left fingertip there."""
    return Truth(tuple(objects), {'left': np.array(tip), 'right': FAR}, np.zeros(14), from_rest)


def pass_time(ledger, seconds: float, now: Truth) -> None:
    """Let a ledger see the same for so long, ten times a second."""
    for _ in range(round(10 * seconds)):
        ledger.take_truth(ledger.now_ns + SECOND // 10, now, ledger.now_ns / SECOND)
