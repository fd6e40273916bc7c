"""Checks the commands that a robot got: none may be outside its limits, whatever happened."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen_ros.robot.robot_file import Robot

PAUSE_NS = 300_000_000  # after which a stream begins anew, where the robot is then
TOLERANCE = 1e-6  # rad
MOST_TOLD = 20


class CommandCheck:
    """
    Looks at each command of a stream.

    :ivar commands: how many came. :ivar problems: what was wrong, in words.
    """

    def __init__(self, robot: Robot) -> None:
        self._joints = {joint.name: joint for joint in robot.joints}
        self.commands = 0
        self.problems: list[str] = []
        self._last: tuple[int, dict[str, float]] | None = None

    def look(self, names: Sequence[str], positions: Sequence[float]) -> None:
        """Check positions: known joints, finite, inside the limits."""
        for name, position in zip(names, positions):
            joint = self._joints.get(name)
            if joint is None:
                self._tell(f'joint {name!r} is unknown')
            elif not np.isfinite(position):
                self._tell(f'{name} is {position}')
            elif not joint.lower - TOLERANCE <= position <= joint.upper + TOLERANCE:
                self._tell(f'{name} at {position:.4f} is outside {joint.lower:g} to {joint.upper:g}')

    def take(self, names: Sequence[str], positions: Sequence[float], stamp_ns: int) -> None:
        """Check one command of the stream: its positions, and that no step is larger than the speed allows."""
        self.commands += 1
        self.look(names, positions)
        here = dict(zip(names, positions))
        if self._last is not None and 0 <= stamp_ns - self._last[0] < PAUSE_NS:
            seconds = (stamp_ns - self._last[0]) / 1e9
            for name in here.keys() & self._last[1].keys() & self._joints.keys():
                step, speed = abs(here[name] - self._last[1][name]), self._joints[name].velocity
                if step > speed * seconds + TOLERANCE:
                    self._tell(f'{name} moves {step:.4f} in {seconds * 1e3:.1f} ms, its speed is {speed:g}')
        self._last = stamp_ns, here

    def begin(self) -> None:
        """Forget the last command: another stream follows."""
        self._last = None

    def _tell(self, text: str) -> None:
        if len(self.problems) < MOST_TOLD:
            self.problems.append(text)
