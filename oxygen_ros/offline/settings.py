"""Reads what the nodes would read, without ROS: parameter tables, parameter files, name:=value of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.parameters import NodeParameter, override_rule

ANY_NODE = ('*', '**')  # as the last part of a name in a parameter file


def node_values(node: str, table: Sequence[NodeParameter], files: Sequence[str | Path],
                rules: Sequence[str]) -> dict[str, Any]:
    """
    Return the values of a node's parameters by name, as it would have them; lists come as tuples.

    :param files: parameter files, later ones win. :param rules: `name:=value`, which win over files.
    :raises ConfigError: a file cannot be read, or a value does not fit.
    """
    values = {parameter.name: parameter.default for parameter in table}
    known = {parameter.name: parameter for parameter in table}
    for path in files:
        for name, value in _file_values(Path(path), node):
            if name in known:
                values[name] = _fitting(known[name], value, str(path))
    for rule in rules:
        name, _, value = override_rule(rule, table).partition(':=')
        values[name] = _fitting(known[name], json.loads(value), rule)
    return values


def split_rules(rules: Sequence[str], tables: Mapping[str, Sequence[NodeParameter]]) -> dict[str, list[str]]:
    """
    Hand each `name:=value` to the nodes that have such a parameter, `node:name:=value` to that node.

    :param tables: node -> its parameters.
    :raises ConfigError: no node has it; names near ones.
    """
    split: dict[str, list[str]] = {node: [] for node in tables}
    for rule in rules:
        name = rule.partition(':=')[0]
        node, colon, rest = name.partition(':')
        if colon and node in tables:
            split[node].append(rest + rule[len(name):])
            continue
        owners = [node for node, table in tables.items() if name in {parameter.name for parameter in table}]
        if not owners:
            override_rule(rule, [parameter for table in tables.values() for parameter in table])  # says what is wrong
        for owner in owners:
            split[owner].append(rule)
    return split


def _file_values(path: Path, node: str) -> Iterator[tuple[str, Any]]:
    """Yield (parameter, value) of a ROS parameter file, for one node in whatever namespace."""
    try:
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise ConfigError(f'parameter file {str(path)!r} cannot be read: {error.strerror}') from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f'parameter file {str(path)!r} is no YAML: {" ".join(str(error).split())}') from error
    yield from _of_node(content, node, '')


def _of_node(content: Any, node: str, name: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items() if isinstance(content, dict) else ():
        if key == 'ros__parameters':
            if name.rpartition('/')[2] in (node, *ANY_NODE):
                yield from _flat(value, '')
        else:
            yield from _of_node(value, node, f'{name}/{str(key).strip("/")}')


def _flat(parameters: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in parameters.items() if isinstance(parameters, dict) else ():
        if isinstance(value, dict):
            yield from _flat(value, f'{prefix}{name}.')
        else:
            yield f'{prefix}{name}', value


def _fitting(parameter: NodeParameter, value: Any, source: str) -> Any:
    """Return a value as the node would take it."""
    default = parameter.default
    if isinstance(default, tuple):
        value = tuple(item for item in (value if isinstance(value, list) else [value]) if item != '')
    elif type(value) is not type(default):
        hint = 'write 10.0, not 10' if isinstance(default, float) else f'the default is {default!r}'
        raise ConfigError(f'{source}: parameter {parameter.name!r} must be of type {parameter.type_name} ({hint})')
    if wrong := parameter.check(value):
        raise ConfigError(f'{source}: parameter {parameter.name!r}: {wrong}')
    return value
