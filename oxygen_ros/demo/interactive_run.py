"""InteractiveRun: the demo in the simulator, talked to by a person at the keyboard or by a pipe."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from oxygen_ros.demo.events import Kind
from oxygen_ros.demo.keyboard import open_keyboard
from oxygen_ros.demo.lines import HELP, Line, Wish, read_line
from oxygen_ros.demo.record import Record
from oxygen_ros.demo.run import Interrupted
from oxygen_ros.demo.simulator_run import SimulatorRun
from oxygen_ros.demo.stage import blocks
from oxygen_ros.demo.summary import outages
from oxygen_ros.demo.view import RANDOM_WEIGHTS, is_random
from oxygen_ros.nodes.simulator_monitor import SimulatorMonitor
from oxygen_ros.simulation.asking import read_question
from oxygen_ros.simulation.language import read_instruction

LAST_SECONDS = 1.2  # of the simulator, for answers that are open at the end
LOOK_COLUMNS = 72
SHORTEST = 5.0  # s: in less nothing has to happen


class InteractiveRun(SimulatorRun):
    """Does what is typed, and prints what comes of it."""

    _talking = False

    def enter(self, monitor: SimulatorMonitor, text: str) -> bool:
        """
        Do what a line says, also what the demo does by itself: help and look.

        :returns: False if it says to end.
        """
        line = read_line(text)
        if line.wish is Wish.LOOK:
            self._look()
        elif line.wish is Wish.HELP:
            self._console.print(HELP, markup=False, highlight=False)
        elif self._is_foreign(line):
            self._console.print('the small policy was not trained on that sentence, and it is not judged (help lists '
                                'what it knows)', highlight=False, soft_wrap=True)
        return super().enter(monitor, text)

    def failures(self, record: Record, end: float) -> list[str]:
        """Return what should have happened and did not. What a person told and asked may have been refused."""
        return outages(record, end) if self._lasted >= SHORTEST else []

    def _happen(self, monitor: SimulatorMonitor) -> None:
        self._close_picture()
        self._talking = True
        if self._console.is_terminal:
            self._look()
        self._console.print('type an instruction or a question?  (help, quit)', highlight=False)
        try:
            with open_keyboard(lambda: self._toolbar(monitor.record)) as keyboard:
                while not self._is_over():
                    self._pass(monitor, math.inf, lambda: keyboard.waiting or self._is_over())
                    line = keyboard.next_line()
                    if keyboard.ended or (line is not None and not self.enter(monitor, line)):
                        break
                self._pass(monitor, LAST_SECONDS, lambda: monitor.record.settled)
        except Interrupted:
            self._group.stop_requested = False  # the end is orderly; another signal ends it at once

    def _is_foreign(self, line: Line) -> bool:
        """Whether a line is an instruction or a question that is none of the simulator's language."""
        if line.wish is Wish.ASK:
            return read_question(line.words, self.ledger.truth.objects) is None
        return line.wish is Wish.INSTRUCT and not read_instruction(line.words)[0]

    def _show(self, record: Record) -> None:
        if self._talking:
            self._print_events(record)
        else:
            super()._show(record)

    def _toolbar(self, record: Record) -> str:
        """Return the lines below what a person types."""
        with record.lock:
            status, told = record.status, self.ledger.told[-1] if self.ledger.told else None
            said = next((event for event in reversed(self.ledger.events) if event.kind is Kind.SAID), None)
            open_answers = [text.text for text in record.texts.values() if text.task == 'answer' and not text.finish]
            show = self._show_of(record)
            lines = [f'{self._lasted:5.1f} s  actions {show.rate(record.chunks):.1f} of '
                     f'{status.action_rate_set:.1f} Hz, {status.deadline_misses} late, '
                     f'{status.tokens_per_second:.0f} tokens/s, {record.note_messages} notes'
                     + (f'  *** {RANDOM_WEIGHTS} ***' if is_random(record) else '')]
            doing = told.words if told is not None and told.until_ns is None else 'nothing'
            distance = told.judge.distance if told is not None and told.judge is not None else math.nan
            lines.append(f'told: {doing}' + ('' if math.isnan(distance) else f' ({100 * distance:.0f} cm away)')
                         + (f'   says: {said.text} {said.verdict.mark}' if said is not None else ''))
            lines += [f'answers: {" ".join(text.split())}…' for text in open_answers[-1:]]
        return '\n'.join(lines)

    def _look(self) -> None:
        picture: np.ndarray | None = self.film.newest
        if picture is None:
            return
        if self._console.is_terminal:
            self._console.print(blocks(picture, LOOK_COLUMNS))
        else:
            path = self._settings.output / 'look.png'
            Image.fromarray(picture).save(path)
            self._console.print(f'a picture of the scene: {path}', soft_wrap=True, highlight=False)
