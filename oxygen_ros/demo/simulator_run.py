"""
SimulatorRun: the demo in the simulator. ScriptedRun plays its script, InteractiveRun does what a person types.

`enter` is where a line goes in, wherever it comes from. What the robot says comes out as events: `ledger.listeners`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from oxygen_ros.demo.conversation import Act, Step
from oxygen_ros.demo.events import Kind
from oxygen_ros.demo.film import Film
from oxygen_ros.demo.ledger import NANOSECONDS, Ledger
from oxygen_ros.demo.lines import Wish, read_line
from oxygen_ros.demo.record import Record
from oxygen_ros.demo.run import DemoFailed, DemoRun
from oxygen_ros.demo.simulator_settings import INSTRUCTION, RATE, SimulatorSettings
from oxygen_ros.demo.stage import event_line, render_stage
from oxygen_ros.demo.subtitles import Subtitles
from oxygen_ros.demo.verdicts import verdicts_of
from oxygen_ros.demo.view import RANDOM_WEIGHTS, Show, is_random
from oxygen_ros.nodes.simulator_monitor import SimulatorMonitor

READY_SECONDS = 20.0  # real ones, until all services have been found
STANDSTILL = 15.0  # real seconds without any of the simulator


class SimulatorRun(DemoRun):
    """
    One run in the simulator. A subclass says what is told and asked.

    :param console: where progress goes. :param live: a live picture instead of a line now and then.
    """

    def __init__(self, settings: SimulatorSettings, console: Console, live: bool) -> None:
        super().__init__(settings, console, live)
        self.ledger = Ledger(INSTRUCTION)
        self.film = Film(RATE)
        self.began_ns = 0
        self._printed = 0  # events
        self._said = ''  # the spoken line that was printed last

    def enter(self, monitor: SimulatorMonitor, text: str) -> bool:
        """
        Do what a line says: tell, ask, search memory, stop, wait. Does not wait for what comes of it.

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
        elif line.wish is Wish.SCENE:
            monitor.change_scene(line.number)
        return line.wish is not Wish.QUIT

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
        self._happen(monitor)
        with monitor.record.lock:
            self.ledger.conclude()
        self._wait_for_the_rest(monitor)

    def _happen(self, monitor: SimulatorMonitor) -> None:
        """Tell and ask."""
        raise NotImplementedError

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
