"""Settings: what the demo runs and where it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from oxygen_ros.errors import ConfigError
from oxygen_ros.suite import Argument, NodeRun, suite_arguments
from oxygen_ros.up import command


@dataclass(frozen=True, kw_only=True)
class Settings:
    """
    A run of the demo; a subclass says which nodes it has.

    :param output: folder for all results. :param duration: seconds to measure from the first chunk on.
    :param parameters: further `name:=value` of the inference node.
    """

    nodes: ClassVar[tuple[str, ...]]  # names of the nodes, the one that gives the pictures first
    setup_seconds: ClassVar[float]  # until the first chunk
    changed_arguments: ClassVar[tuple[Argument, ...]] = ()  # of the launch file; its parameter file is used here too
    output: Path
    duration: float
    mode: str
    model: str
    robot: str
    parameters: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What runs, in a few words."""
        return f'{self.model} on {self.robot}, {self.mode}'

    @property
    def source(self) -> str:
        """Where the pictures come from."""
        raise NotImplementedError

    @property
    def described(self) -> dict[str, str | int]:
        """What the summary begins with."""
        raise NotImplementedError

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
            logs = ('replay', 'simulator', 'perception', 'inference')
            old = [self.summary, self.timeline, self.trace, *(self.log(node) for node in logs),
                   *self.output.glob(f'{self.memory.name}*'), self.output / 'demo.mp4', self.output / 'demo.gif']
            for path in old:
                path.unlink(missing_ok=True)
            self.log(self.nodes[0]).touch()
        except OSError as error:
            raise ConfigError(f'output folder {str(self.output)!r} cannot be written ({error.strerror}): '
                              'give another one with --output') from error

    def runs(self) -> dict[str, NodeRun]:
        """Return node -> what is started for it."""
        raise NotImplementedError

    def commands(self) -> dict[str, list[str]]:
        """Return node -> command line."""
        values = {argument.name: argument.default or ''
                  for argument in (*suite_arguments(), *self.changed_arguments)}
        commands = {name: command(run, values) for name, run in self.runs().items()}
        for parameter in self.parameters:
            commands['inference'] += ['--param', parameter]
        return commands
