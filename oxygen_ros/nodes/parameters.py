"""Declares the parameters of a table (oxygen_ros/parameters.py) on a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import InvalidParameterTypeException, ParameterUninitializedException
from rclpy.node import Node
from rclpy.parameter import Parameter

from oxygen_ros.errors import ConfigError
from oxygen_ros.parameters import NodeParameter, override_rule, parameter_help

__all__ = ['NodeParameter', 'declare_parameters', 'override_rule', 'parameter_help']


def declare_parameters(node: Node, table: Sequence[NodeParameter]) -> dict[str, Any]:
    """
    Declare the parameters on the node and return their values by name; lists come as tuples.

    Later changes of `changeable` parameters are checked the same way before the node sees them.

    :raises ConfigError: names every parameter with a wrong type or value, in one line.
    """
    values: dict[str, Any] = {}
    problems = []
    for parameter in table:
        default = parameter.default
        if isinstance(default, tuple):
            default = list(default) or ['']  # rclpy takes [] for a list of bytes
        try:
            # The range follows below: this way our own words report a number outside it.
            value = node.declare_parameter(parameter.name, default, ParameterDescriptor()).value
        except (InvalidParameterTypeException, ParameterUninitializedException):
            example = 'write 10.0, not 10' if isinstance(default, float) else f'the default is {parameter.default!r}'
            problems.append(f'parameter {parameter.name!r} must be of type {parameter.type_name} ({example})')
            continue
        if isinstance(parameter.default, tuple):
            if value is None:  # [] in a parameter file
                node.set_parameters([Parameter(parameter.name, value=[''])])
                value = ()
            value = tuple(item for item in value if item != '')
        elif value is None:
            problems.append(f'parameter {parameter.name!r} has no value (the default is {parameter.default!r})')
            continue
        if wrong := parameter.check(value):
            problems.append(f'parameter {parameter.name!r}: {wrong}')
            continue
        descriptor = _descriptor(parameter)
        descriptor.type = node.describe_parameter(parameter.name).type
        node.set_descriptor(parameter.name, descriptor)
        values[parameter.name] = value
    if problems:
        raise ConfigError(f'node {node.get_name()!r}: ' + '; '.join(problems))
    by_name = {parameter.name: parameter for parameter in table}

    def refuse_wrong_changes(changes: list[Parameter]) -> SetParametersResult:
        wrong = [f'{change.name}: {text}' for change in changes
                 if change.name in by_name and (text := by_name[change.name].check(change.value))]
        return SetParametersResult(successful=not wrong, reason='; '.join(wrong))

    node.add_on_set_parameters_callback(refuse_wrong_changes)
    return values


def _descriptor(parameter: NodeParameter) -> ParameterDescriptor:
    """Return the ROS descriptor: description, range, read-only flag."""
    descriptor = ParameterDescriptor(
        description=parameter.description, additional_constraints=parameter.constraint,
        read_only=not parameter.changeable)
    if parameter.minimum is None and parameter.maximum is None:
        return descriptor
    if isinstance(parameter.default, float):
        descriptor.floating_point_range = [FloatingPointRange(
            from_value=float('-inf') if parameter.minimum is None else float(parameter.minimum),
            to_value=float('inf') if parameter.maximum is None else float(parameter.maximum))]
    elif isinstance(parameter.default, int) and not isinstance(parameter.default, bool):
        descriptor.integer_range = [IntegerRange(
            from_value=-2**63 if parameter.minimum is None else int(parameter.minimum),
            to_value=2**63 - 1 if parameter.maximum is None else int(parameter.maximum), step=1)]
    return descriptor
