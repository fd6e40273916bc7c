"""The folder of a run: recipe, statistics, saved states, a log of figures and its curves, and what it began with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from oxygen_ros.errors import ConfigError
from oxygen_ros.training.config import TrainingConfig, parse_config
from oxygen_ros.training.state import TrainingState, saved_states, saved_step

RECIPE, STATISTICS, LOG, CURVES = 'training.json', 'norm_stats.json', 'log.jsonl', 'curves.png'
START = 'start'  # what another run has left to this one


class RunFolder:
    """
    Files of one run. A folder belongs to one recipe for good.

    :param say: told each line of the log.
    """

    def __init__(self, path: str | Path, say: Callable[[dict], None] = lambda line: None) -> None:
        self.path, self._say = Path(path), say

    def recipe(self) -> TrainingConfig | None:
        """Return the recipe that the folder was begun with; None if it is new."""
        file = self.path / RECIPE
        if not file.is_file():
            return None
        return parse_config(json.loads(file.read_text(encoding='utf-8')), str(file))

    def begin(self, config: TrainingConfig) -> None:
        """
        Write down the recipe, or check that it is the one of the folder.

        :raises ConfigError: the folder is of another recipe.
        """
        mine, there = config.to_mapping(), self.recipe()
        if there is None:
            self._write(RECIPE, mine)
        elif there != config:
            changed = sorted(key for key, value in there.to_mapping().items() if mine[key] != value)
            raise ConfigError(f'{self.path} was begun with another {" and ".join(changed)}: choose another folder')

    def start_from(self, other: RunFolder) -> None:
        """
        Copy from another run what this one begins with: statistics, newest state, and recipe and log for the record.

        :raises ConfigError: the other run is not there or not at its end.
        """
        recipe, newest = other.recipe(), other.newest()
        if recipe is None or newest is None:
            raise ConfigError(f'{other.path} holds no run: give the folder of the run to start from')
        if saved_step(newest) < recipe.last_step:
            raise ConfigError(f'{other.path} is at step {saved_step(newest)} of {recipe.last_step}: let it end first')
        start = self.path / START
        start.mkdir(parents=True, exist_ok=True)
        for file in (other.path / STATISTICS, other.path / LOG, newest):
            shutil.copyfile(file, start / file.name)
        shutil.copyfile(other.path / STATISTICS, self.path / STATISTICS)
        shutil.copyfile(other.path / RECIPE, start / RECIPE)  # last: with it the copy is complete

    @property
    def start(self) -> RunFolder | None:
        """The run that this one began with; None if it began with random weights."""
        start = RunFolder(self.path / START)
        return None if start.recipe() is None else start

    def statistics(self, measure: Callable[[], dict]) -> dict:
        """Return the statistics of states and actions; they are measured once, when the run begins."""
        if not (self.path / STATISTICS).is_file():
            self._write(STATISTICS, measure())
        return json.loads((self.path / STATISTICS).read_text(encoding='utf-8'))

    def newest(self) -> Path | None:
        """Return the newest saved state."""
        states = saved_states(self.path)
        return states[-1] if states else None

    def save(self, state: TrainingState) -> None:
        """Save a state."""
        state.save(self.path)

    def log(self, line: dict) -> None:
        """Append figures to the log."""
        with open(self.path / LOG, 'a', encoding='utf-8') as file:
            file.write(json.dumps(line) + '\n')
        self._say(line)

    def lines(self) -> list[dict]:
        """
        Return the log: of steps that were taken twice, since a run was ended between two saves, the later one.

        A line that was cut off by the end of its process is left out.
        """
        lines: dict[tuple[int, bool], dict] = {}
        if (self.path / LOG).is_file():
            for text in (self.path / LOG).read_text(encoding='utf-8').splitlines():
                try:
                    line = json.loads(text)
                except ValueError:
                    continue
                lines[line['step'], 'held_out' in line] = line
        return [lines[key] for key in sorted(lines)]

    def draw(self) -> None:
        """Draw the curves, behind those of the run that it began with, if matplotlib is there."""
        try:
            from oxygen_ros.training.curves import draw
        except ModuleNotFoundError:
            return
        lines, start = self.lines(), self.start
        if start is not None:
            before = start.recipe().last_step
            lines = [*start.lines(), *({**line, 'step': before + line['step']} for line in lines)]
        draw(lines, self.path / CURVES)

    def _write(self, name: str, content: dict) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f'{name}.partial'
        partial.write_text(json.dumps(content, indent=1) + '\n', encoding='utf-8')
        partial.replace(self.path / name)
