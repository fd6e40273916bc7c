"""Reads a robot file (config/robots/*.yaml): joints, cameras, and how models see them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file
from oxygen_ros.robot.joint_map import JointMap
from oxygen_ros.robot.joints import Joint
from oxygen_ros.robot.layout import ActionMode, Layout, Units
from oxygen_ros.robot.normalization import EPSILON, Statistics, StatisticsMode, load_statistics

# No joint turns as far as this; larger limits are degrees that nobody declared.
LARGEST_LIMIT = 4 * math.pi


@dataclass(frozen=True)
class Robot:
    """
    A robot as its file describes it.

    :param joints: every joint, unique names, in the order of the file.
    :param layouts: name -> how a model's vectors map to the joints.
    :param cameras: camera name -> default topic.
    """

    name: str
    joints: tuple[Joint, ...]
    layouts: Mapping[str, Layout]
    cameras: Mapping[str, str]

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of all joints, in the order of the file."""
        return tuple(joint.name for joint in self.joints)

    def select(self, names: Iterable[str]) -> tuple[Joint, ...]:
        """
        Return the joints of these names, in this order.

        :raises ConfigError: names every joint that the robot does not have.
        """
        joints = {joint.name: joint for joint in self.joints}
        names = tuple(names)
        unknown = [name for name in names if name not in joints]
        if unknown:
            raise ConfigError(f'robot {self.name!r} has no joint {", ".join(map(repr, unknown))}: '
                              f'its joints are {list(joints)}')
        return tuple(joints[name] for name in names)

    def layout(self, name: str) -> Layout:
        """
        Return a layout.

        :raises ConfigError: names the choices.
        """
        if name not in self.layouts:
            raise ConfigError(f'robot {self.name!r} has no layout {name!r}: choose one of {sorted(self.layouts)} '
                              'in the model configuration, or add it to the robot file')
        return self.layouts[name]

    def require_cameras(self, names: Iterable[str]) -> None:
        """
        Check that the robot has every camera that a model was made for.

        :raises ConfigError: names every camera that is missing.
        """
        missing = [name for name in names if name not in self.cameras]
        if missing:
            raise ConfigError(f'robot {self.name!r} has no camera {", ".join(map(repr, missing))}, only '
                              f'{sorted(self.cameras)}: add it to the robot file, or choose a model without it')


def load_robot(name_or_path: str) -> Robot:
    """
    Read a robot file by name (`config/robots/<name>.yaml`) or path.

    :raises ConfigError: lists every problem of the file in one message.
    """
    path = config_file('robots', name_or_path)
    try:
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f'robot file {path} cannot be read: {" ".join(str(error).split())}') from error
    reader = _Reader(path)
    robot = reader.robot(content)
    if reader.problems:
        count = len(reader.problems)
        raise ConfigError(f'robot file {path}: {count} problem{"s" if count > 1 else ""}: {"; ".join(reader.problems)}')
    return robot


class _Reader:
    """Builds a Robot from plain data; goes on after a problem, so that `problems` ends up with all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def robot(self, content: Any) -> Robot | None:
        if not self._keys('the file', content, {'name', 'joints', 'cameras', 'layouts'}, {'units'}):
            return None
        units = self._choice(Units, content.get('units', 'radians'), 'units')
        joints = self._joints(content['joints'], units)
        cameras = self._cameras(content['cameras'])
        layouts = {name: self._layout(f'layout {name!r}', layout, joints)
                   for name, layout in self._mapping('layouts', content['layouts']).items()}
        name = self._text('name', content['name'])
        return None if self.problems else Robot(name, tuple(joints.values()), layouts, cameras)

    def _joints(self, items: Any, units: Units | None) -> dict[str, Joint | None]:
        """Return name -> Joint; None for a joint with a problem of its own, so that layouts can still refer to it."""
        joints: dict[str, Joint | None] = {}
        if not isinstance(items, list) or not items:
            self.problems.append('joints must be a list that is not empty')
            return joints
        for number, item in enumerate(items):
            where = f'joint {item["name"]!r}' if isinstance(item, Mapping) and 'name' in item else f'joints[{number}]'
            if not self._keys(where, item, {'name', 'lower', 'upper', 'velocity', 'default'}, {'rest', 'measured'}):
                continue
            name = self._text(f'{where}: name', item['name'])
            if name in joints:
                self.problems.append(f'{where} is there twice')
            joints[name] = self._joint(where, name, item, units)
        return joints

    def _joint(self, where: str, name: str, item: Mapping, units: Units | None) -> Joint | None:
        values = {key: self._number(f'{where}: {key}', item[key])
                  for key in ('lower', 'upper', 'velocity', 'default', 'rest') if key in item}
        if any(value is None for value in values.values()):
            return None
        if units is Units.DEGREES:
            values = {key: math.radians(value) for key, value in values.items()}
        elif max(abs(values['lower']), abs(values['upper'])) > LARGEST_LIMIT:
            self.problems.append(f'{where}: limits {values["lower"]:g} and {values["upper"]:g} rad are several turns: '
                                 'declare units: degrees at the top if the file is in degrees')
            return None
        measured = item.get('measured', True)
        if not isinstance(measured, bool):
            self.problems.append(f'{where}: measured must be true or false, not {measured!r}')
            return None
        try:
            return Joint(name, **values, measured=measured)
        except ValueError as error:
            self.problems.append(str(error))
            return None

    def _cameras(self, items: Any) -> dict[str, str]:
        cameras = self._mapping('cameras', items)
        return {self._text('camera name', name): self._text(f'camera {name!r}: topic', topic)
                for name, topic in cameras.items()}

    def _layout(self, where: str, item: Any, joints: Mapping[str, Joint | None]) -> Layout | None:
        if not self._keys(where, item, {'state', 'actions', 'action_mode', 'state_statistics', 'action_statistics'},
                          {'units', 'epsilon', 'absolute', 'maps'}):
            return None
        state, actions = (self._names(f'{where}: {key}', item[key], joints) for key in ('state', 'actions'))
        mode = self._choice(ActionMode, item['action_mode'], f'{where}: action_mode')
        units = self._choice(Units, item.get('units', 'radians'), f'{where}: units')
        epsilon = self._number(f'{where}: epsilon', item.get('epsilon', EPSILON))
        if epsilon is not None and epsilon < 0:
            self.problems.append(f'{where}: epsilon {epsilon} must not be negative')
        statistics = [self._statistics(f'{where}: {key}', item[key], names, joints, units)
                      for key, names in (('state_statistics', state), ('action_statistics', actions))]
        absolute = self._names(f'{where}: absolute', item.get('absolute', []), joints)
        strange = [name for name in absolute if name not in actions]
        if strange or absolute and mode is ActionMode.ABSOLUTE:
            self.problems.append(f'{where}: absolute names {strange or list(absolute)}: it takes joints of '
                                 'actions, with action_mode delta or step')
        maps = self._maps(f'{where}: maps', item.get('maps', {}), joints)
        return None if self.problems else Layout(state, actions, mode, units, *statistics, epsilon, absolute, maps)

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
            limits = np.array([(joint.lower, joint.upper) for joint in map(joints.get, names) if joint]).reshape(-1, 2)
            limits = np.rad2deg(limits) if units is Units.DEGREES else limits
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

    def _keys(self, where: str, item: Any, required: Set[str], optional: Set[str] = frozenset()) -> bool:
        """Tell whether `item` is a mapping with the required keys; unknown keys are problems, too."""
        if not isinstance(item, Mapping):
            self.problems.append(f'{where} must be a mapping with the keys {sorted(required)}')
            return False
        missing = sorted(required - set(item))
        unknown = sorted(map(str, set(item) - required - optional))
        if missing:
            self.problems.append(f'{where} lacks {missing}')
        if unknown:
            self.problems.append(f'{where} has unknown keys {unknown}: known are {sorted(required | optional)}')
        return not missing

    def _mapping(self, where: str, item: Any) -> Mapping:
        if isinstance(item, Mapping):
            return item
        self.problems.append(f'{where} must be a mapping')
        return {}

    def _text(self, where: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            self.problems.append(f'{where} must be text, not {value!r} (quote it)')
        return str(value)

    def _number(self, where: str, value: Any) -> float | None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and abs(value) < 1e300:  # false for NaN as well
            return float(value)
        self.problems.append(f'{where} must be a finite number, not {value!r}')
        return None

    def _choice(self, enum: type, value: Any, where: str) -> Any:
        choices = [member.value for member in enum]
        if value in choices:
            return enum(value)
        self.problems.append(f'{where} must be one of {choices}, not {value!r}')
        return None
