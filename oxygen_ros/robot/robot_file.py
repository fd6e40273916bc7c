"""Reads a robot file (config/robots/*.yaml): joints, cameras, and how models see them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file
from oxygen_ros.robot.hand import Hand
from oxygen_ros.robot.joints import Joint
from oxygen_ros.robot.layout import Layout, Units
from oxygen_ros.robot.layout_file import LARGEST_LIMIT, LayoutReader


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
    if reader.problems or robot is None:
        count = len(reader.problems)
        raise ConfigError(f'robot file {path}: {count} problem{"s" if count > 1 else ""}: {"; ".join(reader.problems)}')
    return robot


class _Reader(LayoutReader):
    """Builds a Robot from plain data; goes on after a problem, so that `problems` ends up with all of them."""

    def robot(self, content: Any) -> Robot | None:
        if not self._keys('the file', content, {'name', 'joints', 'cameras', 'layouts'}, {'units', 'hands'}):
            return None
        units = self._choice(Units, content.get('units', 'radians'), 'units')
        joints = self._joints(content['joints'], units)
        hands = self._hands(content.get('hands', {}), joints, units)
        cameras = self._cameras(content['cameras'])
        layouts = {name: self.layout(f'layout {name!r}', layout, joints, hands)
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

    def _joint(self, where: str, name: str, item: Mapping[str, Any], units: Units | None) -> Joint | None:
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

    def _hands(self, items: Any, joints: Mapping[str, Joint | None], units: Units | None) -> dict[str, Hand | None]:
        """Return name -> Hand; None for a hand with a problem of its own, so that layouts can still refer to it."""
        hands: dict[str, Hand | None] = {}
        for name, item in self._mapping('hands', items).items():
            where = f'hand {name!r}'
            hands[self._text(f'{where}: name', name)] = None
            if name in joints:
                self.problems.append(f'{where} has the name of a joint')
            if not self._keys(where, item, {'open', 'closed'}):
                continue
            poses = {key: self._mapping(f'{where}: {key}', item[key]) for key in ('open', 'closed')}
            names = self._names(where, list(poses['open']), joints)
            if set(poses['closed']) != set(names):
                self.problems.append(f'{where}: open and closed name different joints')
                continue
            values = {key: [self._position(f'{where}: {key}: {joint}', pose[joint], joints.get(joint), units)
                            for joint in names] for key, pose in poses.items()}
            if None not in (*values['open'], *values['closed']):
                try:
                    hands[name] = Hand(names, np.array(values['open']), np.array(values['closed']))
                except ValueError as error:
                    self.problems.append(f'{where}: {error}')
        return hands

    def _position(self, where: str, value: Any, joint: Joint | None, units: Units | None) -> float | None:
        position = self._number(where, value)
        if position is None or joint is None:
            return None
        position = math.radians(position) if units is Units.DEGREES else position
        if not joint.lower <= position <= joint.upper:
            self.problems.append(f'{where} is {position:g} rad, outside [{joint.lower:g}, {joint.upper:g}]')
            return None
        return position
