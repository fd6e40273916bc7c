"""`oxygen_ros up`: what the launch files do, with Python alone (`launch` and `launch_ros` are not on PyPI)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

from oxygen_ros.processes import ProcessGroup
from oxygen_ros.suite import BOOLEAN, Argument, NodeRun, dds_environment, plan, replay_arguments, suite_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of oxygen.launch.py, and in a group of their own those of replay.launch.py."""
    replay = parser.add_argument_group('replay of a recording')
    for group, arguments in ((parser, suite_arguments()), (replay, replay_arguments())):
        for argument in arguments:
            group.add_argument(f'--{argument.name.replace("_", "-")}', **_options(argument))


def main(arguments: argparse.Namespace) -> int:
    """Start the nodes, wait until one ends or a signal comes, stop them; return the code of the first that failed."""
    values = vars(arguments)
    environment = {**os.environ, **dds_environment()}
    with ProcessGroup() as group:
        for run in plan(values):
            group.start(run.name, command(run, values), env=environment)
        group.wait()
        if values['at_end'] == 'keep' and [(end.name, end.code) for end in group.ended] == [('replay', 0)]:
            print('the recording is over; the other nodes keep running', file=sys.stderr)
            group.wait(count=2)
        for end in group.ended:
            if end.code:
                print(f'{end.name} ended with exit code {end.code}; stopping the other nodes', file=sys.stderr)
    return group.exit_code


def command(run: NodeRun, values: Mapping[str, str]) -> list[str]:
    """Return the command line that runs a node, with the interpreter of this process."""
    # In a source tree without built interfaces its folder oxygen_ros must not hide the installed one.
    safe_path = ['-P'] if sys.version_info >= (3, 11) else []
    words = [sys.executable, *safe_path, '-m', 'oxygen_ros', run.name, '--params-file', values['params_file'],
             '--log-level', values['log_level']]
    if values['namespace']:
        words += ['--namespace', values['namespace']]
    for name, value in run.parameters.items():
        words += ['--param', f'{name}:={_text(value)}']
    return words


def _options(argument: Argument) -> dict:
    """Return an argument as options of argparse. A boolean one may stand alone, which means true."""
    options: dict = {'default': argument.default, 'help': argument.description.replace('%', '%%')}
    if set(BOOLEAN) <= set(argument.choices):
        options |= {'nargs': '?', 'const': 'true'}
    if argument.choices:
        options['choices'] = [choice for choice in argument.choices if choice]
    else:
        options['metavar'] = argument.name.upper()
    if argument.default:
        options['help'] += f' Default: {argument.default}.'
    return options


def _text(value: bool | float | str | list[str]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ','.join(value) if isinstance(value, list) else str(value)
