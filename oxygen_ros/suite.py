"""The nodes that run together, and what a user can say about them: for the launch files and `oxygen_ros up`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_names, share_directories

BOOLEAN = ('true', 'false')
MODES = ('isolated', 'shared_kv', 'continuous_batching')
# Inputs of the nodes that are in their namespace, while a recording has them at the root.
RELATIVE_INPUTS = ('joint_states', 'instruction', 'utterance')
LOG_LEVELS = ('debug', 'info', 'warn', 'error', 'fatal')


@dataclass(frozen=True)
class Argument:
    """
    An argument of a launch file, and `--name` of `oxygen_ros up`.

    :param default: None if the user must give it. Empty mostly means that the parameter file decides.
    :param choices: allowed values, empty for any.
    """

    name: str
    default: str | None
    description: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeRun:
    """
    A node to start.

    :param name: of the node, and of the subcommand that runs it.
    :param parameters: what differs from the parameter file.
    """

    name: str
    parameters: Mapping[str, bool | float | str | list[str]] = field(default_factory=dict)


def suite_arguments() -> tuple[Argument, ...]:
    """Return the arguments of oxygen.launch.py."""
    return (
        Argument('model', '', f'Model, by name ({", ".join(config_names("models"))}) or as a path to a .yaml file. '
                              'Empty: as in params_file.'),
        Argument('checkpoint', '', 'Folder with the weights of the model. Empty: as in params_file.'),
        Argument('robot', '', f'Robot, by name ({", ".join(config_names("robots"))}) or as a path to a .yaml file. '
                              'Empty: as in params_file.'),
        Argument('mode', '', 'How the tasks share the model. Empty: as in params_file.', ('', *MODES)),
        Argument('params_file', str(_config('oxygen.yaml')), 'Parameters of all nodes, a YAML file.'),
        Argument('allow_random_weights', '', 'Publish commands even if the weights are random. Empty: as in '
                                             'params_file.', ('', *BOOLEAN)),
        Argument('namespace', '', 'Namespace of the nodes and of their topics.'),
        Argument('use_sim_time', 'false', 'Take the time from /clock.', BOOLEAN),
        Argument('log_level', 'info', 'Least severe messages to log.', LOG_LEVELS),
        Argument('autostart', 'true', 'Configure and activate the inference node. Otherwise it waits for its lifecycle '
                                      'transitions.', BOOLEAN),
    )


def replay_arguments() -> tuple[Argument, ...]:
    """Return the arguments that replay.launch.py has beside those of oxygen.launch.py."""
    return (
        Argument('bag', None, 'Recording to play: folder of a rosbag2 recording, or an .mcap or .db3 file.'),
        Argument('rate', '1.0', 'Speed: 2.0 is twice as quick as recorded.'),
        Argument('loop', 'false', 'Play again and again.', BOOLEAN),
        Argument('topics', '', 'Topics to play, with commas between them. Empty: all but the outputs of this suite.'),
        Argument('clock', '100.0', 'Rate of /clock in Hz, with use_sim_time. Without it there is no /clock, and header '
                                   'stamps are moved to now.'),
        Argument('at_end', 'stop', 'When the recording is over, stop the other nodes or keep them running.',
                 ('stop', 'keep')),
    )


def simulate_arguments() -> tuple[Argument, ...]:
    """Return the arguments that simulate.launch.py has beside those of oxygen.launch.py, and those it changes."""
    return (
        Argument('robot', 'openarm', 'Robot of perception and inference; the simulator has the one of this name.'),
        Argument('model', 'openarm', 'Model, by name or as a path to a .yaml file.'),
        Argument('params_file', str(_config('simulation.yaml')), 'Parameters of all nodes, a YAML file.'),
        Argument('seed', '0', 'Scene: equal seeds are equal scenes.'),
        Argument('speed', '1.0', 'How quick simulated time goes, with use_sim_time: 2.0 is twice as quick as real.'),
        Argument('commands', '', 'Topic that moves the robot. Empty: as in params_file.',
                 ('', 'joint_commands', 'joint_trajectory')),
        Argument('view_rate', '0.0', 'Pictures per second on the topic view, for people to look at; 0 for none.'),
        Argument('viewer', 'false', 'Open the interactive viewer of MuJoCo; needs a display.', BOOLEAN),
    )


def plan_simulator(values: Mapping[str, str]) -> NodeRun:
    """
    Return the simulator node to start.

    :param values: by argument name: those of `suite_arguments` and `simulate_arguments`.
    :raises ConfigError: a number is none.
    """
    simulated_time = values['use_sim_time'] == 'true'
    return NodeRun('simulate', {
        'seed': int(_number('seed', values['seed'])), 'simulated_time': simulated_time,
        'speed': _number('speed', values['speed']) if simulated_time else 1.0,
        'view_rate': _number('view_rate', values['view_rate']), 'viewer': values['viewer'] == 'true',
        **({'commands': values['commands']} if values['commands'] else {})})


def plan(values: Mapping[str, str]) -> tuple[NodeRun, ...]:
    """
    Return the nodes to start.

    :param values: by argument name; with 'bag' the replay node comes along.
    :raises ConfigError: a file does not exist, or a number is none.
    """
    if not Path(values['params_file']).is_file():
        raise ConfigError(f'params_file {values["params_file"]!r} does not exist: give a YAML file of parameters')
    sim_time = values['use_sim_time'] == 'true'
    inference: dict = {name: values[name] for name in ('model', 'checkpoint', 'robot', 'mode') if values[name]}
    if values['allow_random_weights']:
        inference['allow_random_weights'] = values['allow_random_weights'] == 'true'
    perception: dict = {name: values[name] for name in ('robot',) if values[name]}
    runs = [NodeRun('inference', {**inference, 'autostart': values['autostart'] == 'true', 'use_sim_time': sim_time}),
            NodeRun('perception', {**perception, 'use_sim_time': sim_time})]
    if bag := values.get('bag'):
        if not Path(bag).exists():
            raise ConfigError(f'bag {bag!r} does not exist: '
                              'give the folder of a rosbag2 recording, or an .mcap or .db3 file')
        topics = [topic.strip() for topic in values['topics'].split(',') if topic.strip()]
        runs.append(NodeRun('replay', {
            'bag': bag, 'rate': _number('rate', values['rate']), 'loop': values['loop'] == 'true',
            'clock': _number('clock', values['clock']) if sim_time else 0.0, 'restamp': not sim_time,
            'wait_for_node': 'inference', **({'topics': topics} if topics else {}),
            **({'remap': [f'/{topic}:={topic}' for topic in RELATIVE_INPUTS]} if values['namespace'] else {})}))
    return tuple(runs)


def dds_environment() -> dict[str, str]:
    """
    Return environment variables with which DDS carries large images through shared memory (config/shm.xml).

    Without them some images of more than about 0.25 MB get lost. Empty if the user has a profile of his own.
    """
    names = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')  # Jazzy, Kilted
    if any(name in os.environ for name in names):
        return {}
    return dict.fromkeys(names, str(_config('shm.xml')))


def _config(name: str) -> Path:
    for share in share_directories():
        if (path := share / 'config' / name).is_file():
            return path
    raise ConfigError(f'config/{name} is not installed: install the package again')


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f'{name} {text!r} is not a number') from None
