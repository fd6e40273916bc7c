"""How the vectors of a model map to the joints of a robot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from oxygen_ros.robot.joint_map import JointMap
from oxygen_ros.robot.joints import select
from oxygen_ros.robot.normalization import EPSILON, Normalizer, Statistics
from oxygen_ros.robot.safety import check_actions


class ActionMode(str, Enum):
    """What an action says."""

    ABSOLUTE = 'absolute'  # the target position
    DELTA = 'delta'        # the way from the position in the observation to the target position
    STEP = 'step'          # the way from the target before (at first, the position in the observation) to the target


class Units(str, Enum):
    """Units of a model's vectors and statistics."""

    RADIANS = 'radians'
    DEGREES = 'degrees'


@dataclass(frozen=True)
class Layout:
    """
    One convention for state and actions; the configuration of a model chooses it by name.

    :param state: joints in the order of the model's state vector.
    :param actions: joints in the order of the model's action vector; numbers beyond are padding.
    :param absolute: joints whose actions are absolute although `action_mode` is another, such as grippers.
    :param units: of the model's vectors and of the statistics. Joint positions outside the model are always rad.
    :param state_statistics: of len(state); None: the model takes physical units as they are.
    :param action_statistics: of len(actions); None: the model gives physical units.
    :param epsilon: see `Normalizer`.
    :param maps: joints that the model knows in another form, by name. In mode step, of actions only the scale counts.
    """

    state: tuple[str, ...]
    actions: tuple[str, ...]
    action_mode: ActionMode = ActionMode.ABSOLUTE
    units: Units = Units.RADIANS
    state_statistics: Statistics | None = None
    action_statistics: Statistics | None = None
    epsilon: float = EPSILON
    absolute: tuple[str, ...] = ()
    maps: Mapping[str, JointMap] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, names, statistics in (('state', self.state, self.state_statistics),
                                        ('actions', self.actions, self.action_statistics)):
            if len(set(names)) != len(names):
                raise ValueError(f'{what} name a joint twice')
            if statistics is not None and len(statistics) != len(names):
                raise ValueError(f'{what} have {len(names)} joints, but statistics for {len(statistics)}')
        if not set(self.absolute) <= set(self.actions):
            raise ValueError(f'absolute names {list(self.absolute)}, not all of which are in actions')

    def encode_state(self, names: Sequence[str], positions: np.ndarray) -> np.ndarray:
        """
        Return the state vector that the model sees.

        :param names: joints of `positions`, any order.
        :param positions: [..., joints], rad.
        :returns: float64 [..., len(state)].
        :raises MissingJoint: when the observation lacks a joint of the state.
        """
        values = self._seen(self.state, names, positions)
        if self.state_statistics is not None:
            values = Normalizer(self.state_statistics, self.epsilon).normalize(values)
        return values

    def decode_actions(self, actions: np.ndarray, names: Sequence[str], positions: np.ndarray) -> np.ndarray:
        """
        Return target positions from the output of the model: without padding, unnormalised, in rad, absolute.

        :param actions: [horizon, at least len(actions)], as the model gives them.
        :param names: joints of `positions`, any order.
        :param positions: [joints], rad, of the observation that the actions answer.
        :returns: float64 [horizon, len(actions)], rad, finite.
        :raises ChunkRejected: when the actions are not finite, or too few.
        :raises MissingJoint: in delta mode, when the observation lacks a joint of the actions.
        """
        values = check_actions(actions, len(self.actions))
        if self.action_statistics is not None:
            values = Normalizer(self.action_statistics, self.epsilon).unnormalize(values)
        if self.action_mode is not ActionMode.STEP:
            values = values + self._start(names, positions)
        for column, name in enumerate(self.actions):
            if name in self.maps:
                values[:, column] = self.maps[name].action(values[:, column])
        if self.units is Units.DEGREES:
            values = np.deg2rad(values)
        if self.action_mode is ActionMode.STEP:
            moving = self._moving()
            values[:, moving] = select(names, positions, self.actions)[moving] + values[:, moving].cumsum(axis=0)
        return values

    def encode_actions(self, targets: np.ndarray, names: Sequence[str], positions: np.ndarray) -> np.ndarray:
        """
        Return the numbers that the model would give for target positions; the inverse of `decode_actions`.

        :param targets: [horizon, len(actions)], rad. :param names, positions: as there.
        :returns: float64 [horizon, len(actions)].
        :raises ValueError: in mode step, whose numbers depend on each other.
        """
        if self.action_mode is ActionMode.STEP:
            raise ValueError('steps cannot be encoded one by one')
        values = np.array(np.rad2deg(targets) if self.units is Units.DEGREES else targets, dtype=np.float64)
        for column, name in enumerate(self.actions):
            if name in self.maps:
                values[:, column] = self.maps[name].action.inverse(values[:, column])
        values = values - self._start(names, positions)
        if self.action_statistics is not None:
            values = Normalizer(self.action_statistics, self.epsilon).normalize(values)
        return values

    def _start(self, names: Sequence[str], positions: np.ndarray) -> np.ndarray | float:
        """Return where actions count from, in the form of the model."""
        if self.action_mode is ActionMode.ABSOLUTE:
            return 0.0
        return self._seen(self.actions, names, positions) * self._moving()

    def _moving(self) -> np.ndarray:
        """Return which actions are not absolute, bool [len(actions)]."""
        return np.array([name not in self.absolute for name in self.actions])

    def _seen(self, wanted: Sequence[str], names: Sequence[str], positions: np.ndarray) -> np.ndarray:
        """Return positions in the form and units of the model, not normalised."""
        values = select(names, positions, wanted)
        if self.units is Units.DEGREES:
            values = np.rad2deg(values)
        for column, name in enumerate(wanted):
            if name in self.maps:
                values[..., column] = self.maps[name].state(values[..., column])
        return values
