"""How the vectors of a model map to the joints of a robot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from oxygen_ros.robot.hand import Hand
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

    :param state: joints and hands in the order of the model's state vector.
    :param actions: joints and hands in the order of the model's action vector; numbers beyond are padding.
    :param absolute: joints whose actions are absolute although `action_mode` is another, such as grippers.
    :param units: of the model's vectors and of the statistics. Joint positions outside the model are always rad.
    :param state_statistics: of len(state); None: the model takes physical units as they are.
    :param action_statistics: of len(actions); None: the model gives physical units.
    :param epsilon: see `Normalizer`.
    :param maps: joints that the model knows in another form, by name. In mode step, of actions only the scale counts.
    :param hands: what stands for several joints in state and actions, by name. Their actions are always absolute.
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
    hands: Mapping[str, Hand] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, names, statistics in (('state', self.state, self.state_statistics),
                                        ('actions', self.actions, self.action_statistics)):
            if len(set(self._spread(names))) != len(self._spread(names)):
                raise ValueError(f'{what} name a joint twice')
            if statistics is not None and len(statistics) != len(names):
                raise ValueError(f'{what} have {len(names)} joints, but statistics for {len(statistics)}')
        if not set(self.absolute) <= set(self.actions):
            raise ValueError(f'absolute names {list(self.absolute)}, not all of which are in actions')

    @property
    def commanded(self) -> tuple[str, ...]:
        """Joints that actions command: `actions` with the joints of hands in place of these."""
        return self._spread(self.actions)

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
        :returns: float64 [horizon, len(commanded)], rad, finite.
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
            values = self._convert(np.deg2rad, self.actions, values)
        if self.action_mode is ActionMode.STEP:
            moving = self._moving()
            start = self._gathered(self.actions, names, positions)
            values[:, moving] = start[moving] + values[:, moving].cumsum(axis=0)
        if not self.hands:
            return values
        return np.concatenate([self.hands[name].positions(values[:, column]) if name in self.hands
                               else values[:, column:column + 1] for column, name in enumerate(self.actions)], axis=1)

    def encode_actions(self, targets: np.ndarray, names: Sequence[str], positions: np.ndarray) -> np.ndarray:
        """
        Return the numbers that the model would give for target positions; the inverse of `decode_actions`.

        :param targets: [horizon, len(commanded)], rad. :param names, positions: as there.
        :returns: float64 [horizon, len(actions)].
        :raises ValueError: in mode step, whose numbers depend on each other.
        """
        if self.action_mode is ActionMode.STEP:
            raise ValueError('steps cannot be encoded one by one')
        values = self._gathered(self.actions, self.commanded, targets)
        if self.units is Units.DEGREES:
            values = self._convert(np.rad2deg, self.actions, values)
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
        return np.array([name not in self.absolute and name not in self.hands for name in self.actions])

    def _seen(self, wanted: Sequence[str], names: Sequence[str], positions: np.ndarray) -> np.ndarray:
        """Return positions in the form and units of the model, not normalised."""
        values = self._gathered(wanted, names, positions)
        if self.units is Units.DEGREES:
            values = self._convert(np.rad2deg, wanted, values)
        for column, name in enumerate(wanted):
            if name in self.maps:
                values[..., column] = self.maps[name].state(values[..., column])
        return values

    def _spread(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return names with the joints of hands in place of these."""
        return tuple(joint for name in wanted
                     for joint in (self.hands[name].joints if name in self.hands else (name,)))

    def _gathered(self, wanted: Sequence[str], names: Sequence[str], positions: np.ndarray) -> np.ndarray:
        """Return positions of joints (rad), and how far hands are closed, float64 [..., len(wanted)], a copy."""
        values = select(names, positions, self._spread(wanted))
        if not self.hands:
            return values
        gathered, column = [], 0
        for name in wanted:
            width = len(self.hands[name].joints) if name in self.hands else 1
            part = values[..., column:column + width]
            gathered.append(self.hands[name].closing(part) if name in self.hands else part[..., 0])
            column += width
        return np.stack(gathered, axis=-1) if gathered else values

    def _convert(self, units: Callable[[np.ndarray], np.ndarray], wanted: Sequence[str],
                 values: np.ndarray) -> np.ndarray:
        """Convert the units of joints; hands have none."""
        return np.where([name in self.hands for name in wanted], values, units(values))
