"""Settings of the demo that plays a recording."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from oxygen_ros.demo.settings import Settings
from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.selection import select_topics
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.suite import NodeRun

OWN_BAG = Path(__file__).resolve().parents[2] / 'test' / 'data' / 'bags' / 'g1_two_cameras'
JOINT_STATES = '/joint_states'
MODEL, ROBOT = 'tiny', 'unitree_g1'
DURATION = 45.0  # s
SHORTEST = 5.0  # s: the slowest task, memory, comes every 2 s
# Longer and more frequent lines than the node's defaults, so that text runs all the time beside the actions.
TEXT_LOAD = {'speech.rate': 3.0, 'speech.max_tokens': 96}


@dataclass(frozen=True, kw_only=True)
class BagSettings(Settings):
    """
    :param bag: recording to play.
    :param topics: topics of the recording that are the inputs of the nodes.
    """

    nodes = ('replay', 'perception', 'inference')
    setup_seconds = 50.0
    bag: Path
    topics: tuple[str, ...]
    checkpoint: str = ''

    def __post_init__(self) -> None:
        if not self.duration >= SHORTEST:
            raise ConfigError(f'duration {self.duration:g} is too short: give at least {SHORTEST:g} seconds')

    @property
    def source(self) -> str:
        """Name of the recording."""
        return self.bag.name

    @property
    def described(self) -> dict[str, str | int]:
        """What the summary begins with."""
        return {'bag': str(self.bag), 'robot': self.robot}

    def runs(self) -> dict[str, NodeRun]:
        """Return node -> what is started for it."""
        return {
            'replay': NodeRun('replay', {'bag': str(self.bag), 'loop': True, 'restamp': True,
                                         'topics': list(self.topics), 'wait_for_subscribers': 30.0}),
            'perception': NodeRun('perception', {'robot': self.robot}),
            'inference': NodeRun('inference', {
                'autostart': True, 'model': self.model, 'checkpoint': self.checkpoint, 'robot': self.robot,
                'mode': self.mode, 'text_repetitions': 0,  # random words repeat; a text is to be as long as a real one
                'allow_random_weights': True, 'trace_file': str(self.trace), 'memory.path': str(self.memory),
                **TEXT_LOAD})}


def check_bag_settings(arguments: argparse.Namespace) -> BagSettings:
    """
    Return the settings of a command line.

    :raises OxygenError: the bag cannot be read or lacks an input of the robot, the model or robot is unknown, or a
        person shall talk to it.
    """
    if arguments.interactive:
        raise ConfigError('--interactive needs the simulator: leave out --bag')
    model, robot_name = arguments.model or MODEL, arguments.robot or ROBOT
    config_file('models', model)
    robot = load_robot(robot_name)
    path = arguments.bag or OWN_BAG
    if path == OWN_BAG and not OWN_BAG.exists():
        raise ConfigError('the recording of the demo comes with the source tree only: name one with --bag')
    with Bag(path) as bag:
        topics = [topic.name for topic in select_topics(bag, [*robot.cameras.values(), JOINT_STATES])[0]]
    duration = DURATION if arguments.duration is None else arguments.duration
    return BagSettings(bag=Path(path).resolve(), output=Path(arguments.output).resolve(), duration=duration,
                       mode=arguments.mode, model=model, robot=robot_name, topics=tuple(topics),
                       checkpoint=arguments.checkpoint, parameters=tuple(arguments.param))
