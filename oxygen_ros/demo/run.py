"""DemoRun: starts the nodes, watches them until all is done, and shows it meanwhile."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from oxygen_ros.demo.record import RATE_WINDOW, Record
from oxygen_ros.demo.settings import Settings
from oxygen_ros.demo.summary import failures
from oxygen_ros.demo.view import RANDOM_WEIGHTS, Show, plain_line, render
from oxygen_ros.nodes.demo_monitor import DemoMonitor
from oxygen_ros.processes import ProcessGroup
from oxygen_ros.suite import dds_environment

ANSWER_SECONDS = 8.0  # for what is still missing at the end: answers, memory, a last status
TICK = 0.05
LIVE_PERIOD, PLAIN_PERIOD = 0.5, 3.0
LAST_LINES = 8


class DemoFailed(Exception):
    """The run came to no result; the text says why, in one or more lines."""


class Interrupted(Exception):
    """SIGINT or SIGTERM came."""


class DemoRun:
    """
    One run over real processes and DDS. A subclass says what happens in it.

    :param console: where progress goes. :param live: a live picture instead of a line now and then.
    """

    def __init__(self, settings: Settings, console: Console, live: bool) -> None:
        self._settings = settings
        self._console, self._live = console, live
        self._group = ProcessGroup()
        self._picture: Live | None = None
        self._next_show = 0.0
        self._warned = False

    def run(self) -> tuple[Record, float]:
        """
        Run the demo and return what was seen, and when watching ended.

        The nodes have ended when this returns or raises.

        :raises DemoFailed: a node ended, or no action chunk came in time.
        :raises Interrupted: a signal came.
        """
        with self._group:
            record = Record(started=time.monotonic())
            self._start_nodes()
            with self._monitor(record) as monitor:
                try:
                    self._open_picture()
                    seconds = self._settings.setup_seconds
                    if not self._watch(monitor, lambda: bool(record.chunks), record.started + seconds):
                        raise DemoFailed(f'no action chunk was published within {seconds:.0f} s\n'
                                         f'{plain_line(record, self._show_of(record))}\n'
                                         f'{self._last_lines("inference")}')
                    self._measure(monitor)
                    end = time.monotonic()
                finally:
                    self._close_picture()
            self._console.print('stopping the nodes')
        return record, end

    @property
    def settings(self) -> Settings:
        """What is run, and where results go."""
        return self._settings

    def failures(self, record: Record, end: float) -> list[str]:
        """Return what should have happened and did not, one line each; see `summary.failures`."""
        return failures(record, end)

    def speed(self, since: float) -> float:
        """Return how quick the time of the nodes went since a moment of `time.monotonic`, 1 being real time."""
        return 1.0

    @property
    def stopped(self) -> bool:
        """Whether the robot was told to stop in between."""
        return False

    def results(self, record: Record) -> dict[str, Any]:
        """Write results that only this kind of run has; returns what summary.json says about them."""
        return {}

    def _start_nodes(self) -> None:
        environment = {**os.environ, **dds_environment(), 'PYTHONUNBUFFERED': '1', 'RCUTILS_COLORIZED_OUTPUT': '0'}
        for name, command in self._settings.commands().items():
            with open(self._settings.log(name), 'wb') as log:
                self._group.start(name, command, env=environment, stdout=log, stderr=log)

    def _monitor(self, record: Record) -> DemoMonitor:
        """Return what watches the nodes, not entered yet."""
        return DemoMonitor(record, self._settings.nodes)

    def _measure(self, monitor: DemoMonitor) -> None:
        """Do what the demo is for, from the first chunk on."""
        raise NotImplementedError

    def _render(self, record: Record, show: Show) -> RenderableType:
        """Return the live picture. The lock is held."""
        return render(record, show)

    def _wait_for_the_rest(self, monitor: DemoMonitor) -> None:
        """Ask for all that memory has, and wait for that and what else is still to come."""
        record = monitor.record
        monitor.query_memory()
        asked = time.monotonic()
        self._watch(monitor, lambda: record.memory is not None and record.settled and record.status_time > asked,
                    asked + ANSWER_SECONDS)

    def _watch(self, monitor: DemoMonitor, condition: Callable[[], bool], until: float) -> bool:
        """
        Show the record until a condition holds or the time comes.

        :return: whether the condition holds.
        """
        while time.monotonic() < until:
            if self._group.stop_requested:
                raise Interrupted
            if self._group.ended:
                end = self._group.ended[0]
                raise DemoFailed(f'node {end.name} ended with exit code {end.code}\n{self._last_lines(end.name)}')
            monitor.check()
            if condition():
                return True
            self._show(monitor.record)
            time.sleep(TICK)
        return condition()

    def _show(self, record: Record) -> None:
        now = time.monotonic()
        if now < self._next_show:
            return
        self._next_show = now + (LIVE_PERIOD if self._picture else PLAIN_PERIOD)
        show = self._show_of(record)
        with record.lock:
            if self._picture is not None:
                self._picture.update(self._render(record, show), refresh=True)
                return
            if record.status is not None and record.status.random_weights and not self._warned:
                self._warned = True
                self._console.print(f'*** {RANDOM_WEIGHTS} ***', style='bold red')
            self._console.print(plain_line(record, show), markup=False, highlight=False, soft_wrap=True)

    def _show_of(self, record: Record) -> Show:
        now = time.monotonic()
        return Show(f'oxygen_ros demo: {self._settings.title}', self._settings.duration, now,
                    '' if record.chunks else self._doing(), self.speed(now - RATE_WINDOW))

    def _doing(self) -> str:
        lines = _tail(self._settings.log('inference'), 1)
        return lines[0].rpartition(']: ')[2] if lines else ''

    def _open_picture(self) -> None:
        if self._live:
            self._picture = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False,
                                 redirect_stderr=False)
            self._picture.start()

    def _close_picture(self) -> None:
        if self._picture is not None:
            self._picture.stop()
            self._picture = None

    def _last_lines(self, node: str) -> str:
        log = self._settings.log(node)
        lines = _tail(log, LAST_LINES)
        return '\n'.join([f'last lines of {log}:', *(f'  {line}' for line in lines)]) if lines else f'{log} is empty'


def _tail(path: os.PathLike, count: int) -> list[str]:
    """Return the last lines of a file that are not empty."""
    with open(path, encoding='utf-8', errors='replace') as file:
        return list(deque((line.rstrip() for line in file if line.strip()), maxlen=count))
