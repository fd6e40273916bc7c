"""
One table describes the parameters of a node: read for declaration, command line, error texts and documentation.

No ROS here: `oxygen_ros offline` reads the same tables. nodes/parameters.py declares them on a node.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from oxygen_ros.errors import ConfigError

# Parameters that every node has without declaring them in its table.
COMMON_NAMES = ('use_sim_time', 'start_type_description_service')
QOS_PREFIX = 'qos_overrides.'


@dataclass(frozen=True)
class NodeParameter:
    """
    One parameter of a node.

    :param default: bool, int, float, str, or a tuple of str or float. Its type is the type of the parameter; an empty
        tuple is an empty list of strings.
    :param description: one sentence, with the unit.
    :param minimum: smallest allowed number (inclusive), None for no bound; each number of a list is checked.
    :param maximum: largest allowed number (inclusive), None for no bound.
    :param choices: allowed strings (each string of a list is checked), empty for any.
    :param changeable: True if the node follows `ros2 param set` while it runs.
    """

    name: str
    default: bool | int | float | str | tuple
    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    changeable: bool = False

    @property
    def type_name(self) -> str:
        """Name of the type as users write it: 'float', 'list of str', ..."""
        if isinstance(self.default, tuple):
            return f'list of {type(self.default[0]).__name__ if self.default else "str"}'
        return type(self.default).__name__

    @property
    def constraint(self) -> str:
        """Allowed values in words, empty if there is no bound."""
        if self.choices:
            return 'one of ' + ', '.join(repr(choice) for choice in self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f'{self.minimum:g} to {self.maximum:g}'
        if self.minimum is not None:
            return f'at least {self.minimum:g}'
        return f'at most {self.maximum:g}' if self.maximum is not None else ''

    def check(self, value: Any) -> str:
        """Return what is wrong with a value (one clause), or an empty string."""
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if self.choices and item not in self.choices:
                near = difflib.get_close_matches(str(item), self.choices, n=1)
                return f'{item!r} is not {self.constraint}' + (f' (did you mean {near[0]!r}?)' if near else '')
            if isinstance(item, float) and not math.isfinite(item):
                return f'{item} is not a finite number'
            if isinstance(item, (int, float)) and (
                    (self.minimum is not None and item < self.minimum)
                    or (self.maximum is not None and item > self.maximum)):
                return f'{item:g} is out of range: {self.constraint}'
        return ''


def override_rule(text: str, table: Sequence[NodeParameter]) -> str:
    """
    Turn `name:=value` of the command line into the rule that ROS reads, typed by the table.

    A whole number is accepted for a float, a comma-separated list for a list, any word for a string.

    :raises ConfigError: the name is unknown (names the near ones), or the value does not fit the type or the bounds.
    """
    name, separator, value = text.partition(':=')
    if not separator or not name:
        raise ConfigError(f'parameter {text!r} is not of the form name:=value')
    if name in COMMON_NAMES or name.startswith(QOS_PREFIX):
        return text
    parameter = next((entry for entry in table if entry.name == name), None)
    if parameter is None:
        names = sorted(entry.name for entry in table)
        near = difflib.get_close_matches(name, names, n=3)
        hint = f'did you mean {" or ".join(near)}?' if near else f'choose one of {", ".join(names)}'
        raise ConfigError(f'unknown parameter {name!r}: {hint}')
    parsed = _parse(parameter, value)
    if wrong := parameter.check(parsed):
        raise ConfigError(f'parameter {name!r}: {wrong}')
    if isinstance(parsed, list):
        parsed = parsed or ['']
    return f'{name}:={json.dumps(parsed)}'


def _parse(parameter: NodeParameter, text: str) -> Any:
    """Read the text of a command line as the type of the parameter."""
    kind = type(parameter.default)
    if kind is str:
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in '\'"'
        return text[1:-1] if quoted else text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if kind is tuple:
        items = value if isinstance(value, list) else [part.strip() for part in text.split(',') if part.strip()]
        if parameter.type_name == 'list of float':
            items = [float(item) if _is_number(item) else item for item in items]
            if all(isinstance(item, float) for item in items):
                return items
        else:
            return [item if isinstance(item, str) else str(item) for item in items]
    elif kind is bool and isinstance(value, bool):
        return value
    elif kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    elif kind is float and _is_number(value):
        return float(value)
    raise ConfigError(f'parameter {parameter.name!r} must be of type {parameter.type_name}, not {text!r}')


def _is_number(value: Any) -> bool:
    """Tell a number, or the text of one ('1e3' is a string to YAML), from anything else."""
    if isinstance(value, bool):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def parameter_help(table: Iterable[NodeParameter]) -> str:
    """Return the table as text for `--help`."""
    lines = ['parameters (-p name:=value):']
    for parameter in table:
        default = ','.join(map(str, parameter.default)) if isinstance(parameter.default, tuple) else parameter.default
        bound = f'; {parameter.constraint}' if parameter.constraint else ''
        lines.append(f'  {parameter.name} ({parameter.type_name}, default {default!r}{bound})\n'
                     f'      {parameter.description}')
    return '\n'.join(lines)
