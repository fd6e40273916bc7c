"""Finds joint positions that can hardly be right, and those that the model has not been trained for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from oxygen_ros.robot.joints import Joint
from oxygen_ros.robot.layout import Layout
from oxygen_ros.robot.normalization import StatisticsMode

LIMIT_MARGIN = 0.1       # rad beyond a limit, for sensors that are a little off and joints that give way
SEVERAL_TURNS = 4 * math.pi
# Distance from the middle in the range of the model, where 1 is q99 or the maximum; for mean_std in deviations.
OUTSIDE = {StatisticsMode.QUANTILE: 2.0, StatisticsMode.MIN_MAX: 1.5, StatisticsMode.MEAN_STD: 6.0}


class StateCheck:
    """
    Looks at the state of each frame.

    :param joints: of the robot. :param layout: how the model sees them.
    """

    def __init__(self, joints: Sequence[Joint], layout: Layout) -> None:
        self._joints = {joint.name: joint for joint in joints if joint.measured}
        self._layout = layout

    def problems(self, names: Sequence[str], positions: np.ndarray, state: np.ndarray) -> dict[str, str]:
        """
        Return joint name -> what is strange about it.

        :param positions: float64 [len(names)], rad, of the frame.
        :param state: float64 [len(layout.state)], what the model sees of it.
        """
        found = {}
        statistics = self._layout.state_statistics
        if statistics is not None:
            for column in np.flatnonzero(np.abs(state) > OUTSIDE[statistics.mode]):
                found[self._layout.state[column]] = (f'is at {state[column]:.1f} in the range of the model, which was '
                                                     'trained for -1 to 1')
                if statistics.mode is StatisticsMode.MEAN_STD:
                    found[self._layout.state[column]] = f'is {abs(state[column]):.1f} deviations off the training data'
        for name, position in zip(names, positions):
            joint = self._joints.get(name)
            if joint is not None and not joint.lower - LIMIT_MARGIN <= position <= joint.upper + LIMIT_MARGIN:
                found[name] = f'is at {position:.2f}, outside its limits {joint.lower:g} to {joint.upper:g}' + (
                    ', is it in degrees?' if abs(position) > SEVERAL_TURNS else '')
        return found
