"""
SimulatorRun: the demo in the simulator, by its script or by what a person types.

`enter` is where a line goes in, wherever it comes from. What the robot says comes out as events: `ledger.listeners`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console, RenderableType

from oxygen_ros.demo.conversation import Act, Step
from oxygen_ros.demo.events import Kind
from oxygen_ros.demo.film import Film
from oxygen_ros.demo.keyboard import open_keyboard
from oxygen_ros.demo.ledger import NANOSECONDS, Ledger
from oxygen_ros.demo.lines import HELP, Wish, read_line
from oxygen_ros.demo.record import Record
from oxygen_ros.demo.run import DemoFailed, DemoRun, Interrupted
from oxygen_ros.demo.script import Part, write_script
from oxygen_ros.demo.simulator_settings import INSTRUCTION, RATE, SimulatorSettings
from oxygen_ros.demo.stage import blocks, event_line, render_stage
from oxygen_ros.demo.subtitles import Subtitles
from oxygen_ros.demo.summary import outages
from oxygen_ros.demo.verdicts import verdicts_of
from oxygen_ros.demo.view import RANDOM_WEIGHTS, Show, is_random
from oxygen_ros.nodes.simulator_monitor import SimulatorMonitor
from oxygen_ros.simulation.episode import DURATION

READY_SECONDS = 20.0  # real ones, until all services have been found
FIRST_SECONDS, QUESTION_SECONDS = 0.8, 1.2  # of the simulator, before the first question and after each
AFTERWARDS = 0.8  # s of the simulator: for what is said when an instruction is over
STANDSTILL = 15.0  # real seconds without any of the simulator
LOOK_COLUMNS = 72
SHORTEST = 5.0  # s: in less nothing has to happen


class SimulatorRun(DemoRun):
    """
    One run in the simulator.

    :param console: where progress goes. :param live: a live picture instead of a line now and then.
    """

    def __init__(self, settings: SimulatorSettings, console: Console, live: bool) -> None:
        super().__init__(settings, console, live)
        self._interactive = settings.interactive
        self.ledger = Ledger(INSTRUCTION)
        self.film = Film(RATE)
        self.began_ns = 0
        self._printed = 0  # events
        self._said = ''  # the spoken line that was printed last
        self._talking = False  # with a person

    def enter(self, monitor: SimulatorMonitor, text: str) -> bool:
        """
        Do what a line says: tell, ask, search memory, and so on. Does not wait for what comes of it.

        :returns: False if it says to end.
        """
        line = read_line(text)
        if line.wish is Wish.INSTRUCT:
            monitor.act(Step(0.0, Act.INSTRUCT, line.words))
        elif line.wish is Wish.ASK:
            monitor.act(Step(0.0, Act.ASK, line.words))
        elif line.wish is Wish.RECALL:
            monitor.recall(line.words)
        elif line.wish is Wish.STOP:
            monitor.stop()
        elif line.wish is Wish.WAIT:
            self._pass(monitor, line.seconds)
        elif line.wish is Wish.LOOK:
            self._look()
        elif line.wish is Wish.HELP:
            self._console.print(HELP, markup=False, highlight=False)
        return line.wish is not Wish.QUIT

    def failures(self, record: Record, end: float) -> list[str]:
        """Return what should have happened and did not. What a person told and asked may have been refused."""
        if not self._interactive:
            return super().failures(record, end)
        return outages(record, end) if self._lasted >= SHORTEST else []

    def speed(self, since: float) -> float:
        """Return how quick simulated time went since a moment of `time.monotonic`, 1 being real time."""
        return self.ledger.speed(since)

    @property
    def stopped(self) -> bool:
        """Whether the robot was told to stop in between."""
        return self.ledger.stopped

    def results(self, record: Record) -> dict[str, Any]:
        """Write the video; returns what summary.json says about it and about what is true."""
        settings = self._settings
        self._console.print('writing the video')
        title = settings.model, Path(settings.checkpoint).name, settings.mode.replace('_', ' '), settings.source
        warning = RANDOM_WEIGHTS if is_random(record) else ''
        subtitles = Subtitles([line for line in title if line], warning, self.began_ns)
        video = self.film.write(settings.output, self.ledger.events, subtitles, self.began_ns)
        return {**verdicts_of(self.ledger, self.began_ns),
                'simulated_time_speed': round(self.speed(record.chunks[0]), 3),
                'video': video.to_dict() if video is not None else None}

    @property
    def _lasted(self) -> float:
        """Seconds of the simulator that were watched."""
        return (self.ledger.now_ns - self.began_ns) / NANOSECONDS

    # -- what happens ------------------------------------------------------------------------------------------------

    def _monitor(self, record: Record) -> SimulatorMonitor:
        return SimulatorMonitor(record, self._settings.nodes, self.ledger, self.film)

    def _measure(self, monitor: SimulatorMonitor) -> None:
        ready = self._watch(monitor, lambda: monitor.services_ready and self.ledger.truth is not None,
                            time.monotonic() + READY_SECONDS)
        if not ready:
            raise DemoFailed(f'services or the simulator are not there after {READY_SECONDS:.0f} s\n'
                             f'{self._last_lines("simulator")}')
        self.began_ns = self.ledger.now_ns
        if self._interactive:
            self._talk(monitor)
        else:
            self._play(monitor)
        with monitor.record.lock:
            self.ledger.conclude()
        self._wait_for_the_rest(monitor)

    def _play(self, monitor: SimulatorMonitor) -> None:
        """Tell and ask what the script says."""
        for part in write_script(self.ledger.truth.objects, self._settings.seed):
            if not self._is_over():
                self._play_part(monitor, part)

    def _play_part(self, monitor: SimulatorMonitor, part: Part) -> None:
        """Tell, ask, and wait until a fingertip has reached the object or the time for it is over."""
        ledger, count = self.ledger, len(self.ledger.told)
        self.enter(monitor, part.instruction)
        self._pass(monitor, DURATION, lambda: len(ledger.told) > count)
        if len(ledger.told) == count:
            return  # no answer, or refused: that is in the summary
        told = ledger.told[-1]
        self._pass(monitor, FIRST_SECONDS)
        for question in part.questions:
            self.enter(monitor, question)
            self._pass(monitor, QUESTION_SECONDS)
        self._pass(monitor, DURATION - told.seconds_to(ledger.now_ns), lambda: told.reached_ns is not None)
        with monitor.record.lock:
            ledger.conclude()
        self._pass(monitor, AFTERWARDS)
        if part.recall:
            self.enter(monitor, part.recall)
            self._pass(monitor, QUESTION_SECONDS)

    def _talk(self, monitor: SimulatorMonitor) -> None:
        """Do what a person types, until that ends."""
        self._close_picture()
        self._talking = True
        self._console.print('type an instruction or a question?  (help, quit)', highlight=False)
        try:
            with open_keyboard(lambda: self._toolbar(monitor.record)) as keyboard:
                while not self._is_over():
                    self._pass(monitor, math.inf, lambda: keyboard.waiting or self._is_over())
                    line = keyboard.next_line()
                    if keyboard.ended or (line is not None and not self.enter(monitor, line)):
                        break
                self._pass(monitor, QUESTION_SECONDS, lambda: monitor.record.settled)
        except Interrupted:
            self._group.stop_requested = False  # the end is orderly; another signal ends it at once

    def _is_over(self) -> bool:
        return self._lasted >= self._settings.duration

    def _pass(self, monitor: SimulatorMonitor, seconds: float, condition: Callable[[], bool] = lambda: False) -> None:
        """
        Let time of the simulator pass, or less if a condition holds.

        :raises DemoFailed: it does not pass.
        """
        end = self.ledger.now_ns + seconds * NANOSECONDS
        while True:
            before_ns = self.ledger.now_ns
            if self._watch(monitor, lambda: condition() or self.ledger.now_ns >= end, time.monotonic() + STANDSTILL):
                return
            if self.ledger.now_ns == before_ns:
                raise DemoFailed(f'the simulator has stood still for {STANDSTILL:.0f} s\n'
                                 f'{self._last_lines("simulator")}')

    # -- what is shown -----------------------------------------------------------------------------------------------

    def _render(self, record: Record, show: Show) -> RenderableType:
        return render_stage(record, self.ledger, self.film.newest, show)

    def _show(self, record: Record) -> None:
        if self._picture is None:
            self._print_events(record)
        if not self._talking:
            super()._show(record)

    def _print_events(self, record: Record) -> None:
        """Print what has come since the last time, but no spoken line twice in a row."""
        with record.lock:
            events = self.ledger.events[self._printed:]
        self._printed += len(events)
        for event in events:
            if event.kind is not Kind.SAID or event.text != self._said:
                self._console.print(event_line(event), soft_wrap=True)
            if event.kind is Kind.SAID:
                self._said = event.text

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
