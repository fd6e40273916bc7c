"""Settings of the demo that runs in the simulator."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from oxygen_ros.demo.settings import Settings
from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.simulation.renderer import choose_backend
from oxygen_ros.simulation.robot_model import import_mujoco, robot_folder
from oxygen_ros.suite import NodeRun, simulate_arguments

MODEL = ROBOT = 'openarm'
SEED = 3  # a scene with four objects, for both hands
DURATION = 60.0  # s of the simulator: more than the script takes
RATE = 10.0  # pictures per second of the film, and moments per second at which the truth is known
INSTRUCTION = 'rest'  # until something is told


@dataclass(frozen=True, kw_only=True)
class SimulatorSettings(Settings):
    """
    :param checkpoint: folder of the weights; empty for those of the model file.
    :param seed: of the scene. :param speed: of simulated time at most, 1 being real time.
    :param interactive: a person tells and asks, instead of the script.
    """

    nodes = ('simulator', 'perception', 'inference')
    changed_arguments = simulate_arguments()
    setup_seconds = 120.0  # a first import of everything on a busy machine
    checkpoint: str = ''
    seed: int = SEED
    speed: float = 1.0
    interactive: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f'seed {self.seed} must be from 0 to {2**31 - 1}')
        if not 0.01 <= self.speed <= 10:
            raise ConfigError(f'speed {self.speed:g} must be from 0.01 to 10')
        if not self.duration > 0:
            raise ConfigError(f'duration {self.duration:g} must be more than 0 seconds')

    @property
    def source(self) -> str:
        """Which scene it is."""
        return f'the simulator, seed {self.seed}'

    @property
    def described(self) -> dict[str, str | int]:
        """What the summary begins with."""
        return {'model_file': self.model, 'robot': self.robot, 'seed': self.seed}

    def runs(self) -> dict[str, NodeRun]:
        """Return node -> what is started for it."""
        common = {'robot': self.robot, 'use_sim_time': True}
        return {
            'simulator': NodeRun('simulate', {'seed': self.seed, 'simulated_time': True, 'speed': self.speed,
                                              'image_rate': RATE, 'view_rate': RATE, 'view_smooth': False,
                                              'truth_rate': RATE}),
            'perception': NodeRun('perception', common),
            'inference': NodeRun('inference', {
                **common, 'autostart': True, 'model': self.model, 'checkpoint': self.checkpoint, 'mode': self.mode,
                'instruction': INSTRUCTION, 'allow_random_weights': True, 'trace_file': str(self.trace),
                'memory.path': str(self.memory)})}


def check_simulator_settings(arguments: argparse.Namespace) -> SimulatorSettings:
    """
    Return the settings of a command line.

    :raises ConfigError: the simulator cannot run here, the model is unknown, or a number is out of range.
    """
    if arguments.robot not in (None, ROBOT):
        raise ConfigError(f'the simulator has the robot {ROBOT!r} only, not {arguments.robot!r}: leave out --robot, or '
                          'play a recording with --bag')
    model = arguments.model or MODEL
    config_file('models', model)
    load_robot(ROBOT)
    try:
        if find_spec('mujoco') is None:
            import_mujoco()  # says how to install it
        robot_folder()
        choose_backend()
    except ConfigError as error:
        raise ConfigError(f'{error}. Without a simulator: make demo-bag, which is oxygen_ros demo --bag') from None
    duration = arguments.duration if arguments.duration is not None else DURATION
    if arguments.interactive and arguments.duration is None:
        duration = float('inf')
    return SimulatorSettings(
        output=Path(arguments.output).resolve(), duration=duration, mode=arguments.mode, model=model, robot=ROBOT,
        checkpoint=arguments.checkpoint, seed=arguments.seed, speed=arguments.speed, interactive=arguments.interactive,
        parameters=tuple(arguments.param))
