"""What to record of a robot that runs this suite: for record.launch.py (`ros2 bag record`) and `oxygen_ros record`."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file
from oxygen_ros.replay.selection import OWN_OUTPUTS
from oxygen_ros.robot.robot_file import load_robot

INPUTS = ('joint_states', 'instruction', 'utterance')  # relative to the namespace of the nodes
GLOBAL = ('/tf', '/tf_static', '/robot_description', '/diagnostics')
LARGE = ('frames',)  # what perception makes of the pictures, which are recorded anyway
QOS_KEYS = {'history': ('keep_last', 'keep_all'), 'reliability': ('reliable', 'best_effort'),
            'durability': ('volatile', 'transient_local')}


def profile_topics(robot: str, namespace: str = '', frames: bool = False) -> list[str]:
    """
    Return the topics that a run can be judged and replayed from: cameras, inputs, outputs.

    :param robot: robot file, for its camera topics; empty for none. :param namespace: of the suite's nodes.
    :param frames: whether to record `frames` as well.
    :raises ConfigError: the robot is not known.
    """
    prefix = f'/{namespace.strip("/")}' if namespace.strip('/') else ''
    cameras = list(load_robot(robot).cameras.values()) if robot else []
    outputs = [name for name in OWN_OUTPUTS if name != 'diagnostics' and (frames or name not in LARGE)]
    relative = [f'{prefix}/{name}' for name in dict.fromkeys((*INPUTS, *outputs))]
    return list(dict.fromkeys([*cameras, *relative, *GLOBAL]))


def wanted(topic: str, patterns: list[str]) -> bool:
    """Whether a topic fits one of the names or patterns such as /camera/*."""
    return any(fnmatchcase(topic, pattern) for pattern in patterns)


def read_qos_file(name_or_path: str) -> Mapping[str, Mapping[str, Any]]:
    """
    Read QoS overrides by topic, in the format of `ros2 bag record --qos-profile-overrides-path`.

    :raises ConfigError: it is not of that form; names topic, key and value.
    """
    path = Path(name_or_path) if '/' in name_or_path else config_file('', name_or_path.removesuffix('.yaml'))
    try:
        content = yaml.safe_load(path.read_text(encoding='utf-8')) or {}
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f'QoS file {str(path)!r} cannot be read: {" ".join(str(error).split())}') from error
    if not isinstance(content, dict):
        raise ConfigError(f'QoS file {str(path)!r} is no mapping from topics to policies')
    for topic, policies in content.items():
        for key, value in policies.items() if isinstance(policies, dict) else ():
            known = QOS_KEYS.get(key)
            if (value not in known) if known else not (key == 'depth' and isinstance(value, int) and value > 0):
                keys = ', '.join(f'{name} ({" or ".join(values)})' for name, values in QOS_KEYS.items())
                raise ConfigError(f'QoS file {str(path)!r}: {topic}: {key}: {value!r} is not known; the keys are depth '
                                  f'(from 1), {keys}')
    return content
