"""Reads the layouts of a robot file: how the vectors of a model map to its joints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.robot.file_checks import FileChecks
from oxygen_ros.robot.hand import Hand
from oxygen_ros.robot.joint_map import JointMap
from oxygen_ros.robot.joints import Joint
from oxygen_ros.robot.layout import ActionMode, Layout, Units
from oxygen_ros.robot.normalization import EPSILON, Statistics, StatisticsMode, load_statistics

# No joint turns as far as this; larger limits are degrees that nobody declared.
LARGEST_LIMIT = 4 * math.pi


class LayoutReader(FileChecks):
    """
    Builds layouts from plain data.

    :param path: of the robot file, from which its statistics files are found.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def layout(self, where: str, item: Any, joints: Mapping[str, Joint | None],
               hands: Mapping[str, Hand | None]) -> Layout | None:
        """Return a layout, None if it has problems, or if anything else had some before."""
        if not self._keys(where, item, {'state', 'actions', 'action_mode', 'state_statistics', 'action_statistics'},
                          {'units', 'epsilon', 'absolute', 'maps'}):
            return None
        known = {**joints, **hands}
        state, actions = (tuple(joints) if item[key] == 'all' else self._names(f'{where}: {key}', item[key], known)
                          for key in ('state', 'actions'))
        mode = self._choice(ActionMode, item['action_mode'], f'{where}: action_mode')
        units = self._choice(Units, item.get('units', 'radians'), f'{where}: units')
        epsilon = self._number(f'{where}: epsilon', item.get('epsilon', EPSILON))
        if epsilon is not None and epsilon < 0:
            self.problems.append(f'{where}: epsilon {epsilon} must not be negative')
        statistics = [self._statistics(f'{where}: {key}', item[key], names, joints, units)
                      for key, names in (('state_statistics', state), ('action_statistics', actions))]
        for what, values, names in zip(('state', 'actions'), statistics, (state, actions)):
            if values is not None and units is Units.RADIANS:
                far = np.maximum(abs(values.offset), abs(values.offset + values.scale)) > LARGEST_LIMIT
                if far.any():
                    self.problems.append(f'{where}: statistics of {what} reach several turns for '
                                         f'{[name for name, yes in zip(names, far) if yes]}: declare units: degrees in '
                                         'the layout if they are degrees')
        absolute = self._names(f'{where}: absolute', item.get('absolute', []), known)
        strange = [name for name in absolute if name not in actions]
        if strange or absolute and mode is ActionMode.ABSOLUTE:
            self.problems.append(f'{where}: absolute names {strange or list(absolute)}: it takes joints of '
                                 'actions, with action_mode delta or step')
        maps = self._maps(f'{where}: maps', item.get('maps', {}), known)
        if self.problems:
            return None
        try:
            return Layout(state, actions, mode, units, *statistics, epsilon, absolute, maps,
                          {name: hand for name, hand in hands.items() if name in (*state, *actions)})
        except ValueError as error:  # such as a joint by itself and in a hand
            self.problems.append(f'{where}: {error}')
            return None

    def _maps(self, where: str, items: Any, joints: Mapping[str, Joint | None]) -> dict[str, JointMap]:
        items = self._mapping(where, items)
        self._names(where, list(items), joints)
        maps = {}
        for name, item in items.items():
            try:
                maps[name] = JointMap.from_mapping(item, f'{where}: {name}')
            except ConfigError as error:
                self.problems.append(str(error))
        return maps

    def _names(self, where: str, items: Any, joints: Mapping[str, Joint | None]) -> tuple[str, ...]:
        if items == 'all':
            return tuple(joints)
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            self.problems.append(f'{where} must be a list of joint names, or all')
            return ()
        unknown = [name for name in items if name not in joints]
        twice = sorted({name for name in items if items.count(name) > 1})
        if unknown:
            self.problems.append(f'{where} names unknown joints {unknown}')
        if twice:
            self.problems.append(f'{where} names joints twice: {twice}')
        return tuple(items)

    def _statistics(self, where: str, item: Any, names: tuple[str, ...], joints: Mapping[str, Joint | None],
                    units: Units | None) -> Statistics | None:
        if item == 'none':
            return None
        if item == 'joint_limits':
            turn = math.degrees(1.0) if units is Units.DEGREES else 1.0
            limits = np.array([(turn * joint.lower, turn * joint.upper) if (joint := joints.get(name)) else (0.0, 1.0)
                               for name in names]).reshape(-1, 2)  # (0, 1) is a hand
            return Statistics(StatisticsMode.QUANTILE, limits[:, 0], limits[:, 1] - limits[:, 0])
        if not isinstance(item, Mapping):
            self.problems.append(f'{where} must be none (the model speaks physical units), joint_limits or a mapping')
            return None
        mode = self._choice(StatisticsMode, item.get('mode'), f'{where}: mode')
        if mode is None:
            return None
        try:
            if 'file' in item:
                if self._keys(where, item, {'mode', 'file', 'key'}):
                    return load_statistics(self.path.parent / str(item['file']), str(item['key']), mode, len(names))
            elif self._keys(where, item, {'mode', *mode.keys}):
                return Statistics.from_mapping(item, mode, len(names), where)
        except ConfigError as error:
            self.problems.append(str(error))
        return None
