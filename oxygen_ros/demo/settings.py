"""Settings: what the demo runs and where it writes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.selection import select_topics
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.suite import NodeRun, suite_arguments
from oxygen_ros.up import command

OWN_BAG = Path(__file__).resolve().parents[2] / 'test' / 'data' / 'bags' / 'g1_two_cameras'
JOINT_STATES = '/joint_states'
NODES = ('replay', 'perception', 'inference')
# Longer and more frequent lines than the node's defaults, so that text runs all the time beside the actions.
TEXT_LOAD = {'speech.rate': 3.0, 'speech.max_tokens': 96}
SHORTEST = 5.0  # s: the slowest task, memory, comes every 2 s


@dataclass(frozen=True)
class Settings:
    """
    A run of the demo.

    :param bag: recording to play. :param output: folder for all results.
    :param duration: seconds to measure from the first chunk on.
    :param topics: topics of the recording that are the inputs of the nodes.
    :param parameters: further `name:=value` of the inference node.
    """

    bag: Path
    output: Path
    duration: float
    mode: str
    model: str
    robot: str
    topics: tuple[str, ...]
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.duration >= SHORTEST:
            raise ConfigError(f'duration {self.duration:g} is too short: give at least {SHORTEST:g} seconds')

    @property
    def summary(self) -> Path:
        """File of the figures."""
        return self.output / 'summary.json'

    @property
    def timeline(self) -> Path:
        """File of the picture."""
        return self.output / 'timeline.png'

    @property
    def trace(self) -> Path:
        """File that the engine writes its trace to."""
        return self.output / 'trace.json'

    @property
    def memory(self) -> Path:
        """Database of the memory."""
        return self.output / 'memory.db'

    def log(self, node: str) -> Path:
        """File that takes what a node prints."""
        return self.output / f'{node}.log'

    def prepare(self) -> None:
        """
        Make the output folder and remove the results of an earlier run from it.

        :raises ConfigError: the folder cannot be made or written.
        """
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            old = [self.summary, self.timeline, self.trace, *(self.log(node) for node in NODES),
                   *self.output.glob(f'{self.memory.name}*')]
            for path in old:
                path.unlink(missing_ok=True)
            self.log(NODES[0]).touch()
        except OSError as error:
            raise ConfigError(f'output folder {str(self.output)!r} cannot be written ({error.strerror}): '
                              'give another one with --output') from error

    def commands(self) -> dict[str, list[str]]:
        """Return node -> command line."""
        values = {argument.name: argument.default or '' for argument in suite_arguments()}
        runs = (
            NodeRun('replay', {'bag': str(self.bag), 'loop': True, 'restamp': True, 'topics': list(self.topics),
                               'wait_for_subscribers': 30.0}),
            NodeRun('perception', {'robot': self.robot}),
            NodeRun('inference', {
                'autostart': True, 'model': self.model, 'robot': self.robot, 'mode': self.mode,
                'text_repetitions': 0,  # random words repeat; a text is to be as long as a real one
                'allow_random_weights': True, 'trace_file': str(self.trace), 'memory.path': str(self.memory),
                **TEXT_LOAD}))
        commands = {run.name: command(run, values) for run in runs}
        for parameter in self.parameters:
            commands['inference'] += ['--param', parameter]
        return commands


def check_settings(arguments: argparse.Namespace) -> Settings:
    """
    Return the settings of a command line.

    :raises OxygenError: the bag cannot be read or lacks an input of the robot, or the model or robot is unknown.
    """
    config_file('models', arguments.model)
    robot = load_robot(arguments.robot)
    if arguments.bag is None and not OWN_BAG.exists():
        raise ConfigError('the recording of the demo comes with the source tree only: name one with --bag')
    path = arguments.bag or OWN_BAG
    with Bag(path) as bag:
        topics = [topic.name for topic in select_topics(bag, [*robot.cameras.values(), JOINT_STATES])[0]]
    return Settings(bag=Path(path).resolve(), output=Path(arguments.output).resolve(), duration=arguments.duration,
                    mode=arguments.mode, model=arguments.model, robot=arguments.robot, topics=tuple(topics),
                    parameters=tuple(arguments.param))
