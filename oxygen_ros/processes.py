"""ProcessGroup: child processes that start together and end together."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Ended:
    """
    A child process that ended.

    :param name: the name that it was started under.
    :param code: its exit code as a shell gives it: 128 + n if signal n ended it.
    """

    name: str
    code: int


class ProcessGroup:
    """
    Child processes that end together. Used as a context manager, from the thread that starts the children.

    While entered in the main thread, the first SIGINT or SIGTERM to this process only sets `stop_requested`, which ends
    `wait`; leaving the context then stops the children in an orderly way. A second one kills them.

    Each child gets exactly one SIGTERM (a second signal ends a node without its clean-up), so it has a session of its
    own, which a Ctrl-C in the terminal does not reach. It is SIGTERM because SIGINT makes a Python that is still
    importing print a traceback. If this process dies without leaving the context, the kernel sends the SIGTERM.

    :param grace: seconds that the children have to end after SIGTERM; then they are killed.
    """

    def __init__(self, grace: float = 10.0):
        self.grace = grace
        self.stop_requested = False
        self._children: dict[str, subprocess.Popen] = {}
        self._ended: list[Ended] = []
        self._asked: set[str] = set()  # to end, by stop()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> ProcessGroup:
        if threading.current_thread() is threading.main_thread():
            # A handler here gives the children the default action, also where SIGINT was ignored before, as it is in
            # the background jobs of a shell: exec resets handled signals, but not ignored ones.
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def start(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen:
        """
        Start a child process.

        :param name: unique in the group.
        :param command: program and arguments.
        :param options: as for `subprocess.Popen`, for example env or stdout. Standard input is empty unless given.
        :raises OSError: the program cannot be run.
        """
        if name in self._children:
            raise ValueError(f'two processes are named {name!r}')
        child = subprocess.Popen(
            [*_ends_with_parent(), *command],
            **{'stdin': subprocess.DEVNULL, 'start_new_session': True, **options})
        self._children[name] = child
        return child

    @property
    def ended(self) -> tuple[Ended, ...]:
        """Return the children that have ended, in the order in which it was noticed."""
        known = {end.name for end in self._ended}
        for name, child in self._children.items():
            if name not in known and (code := child.poll()) is not None:
                self._ended.append(Ended(name, code if code >= 0 else 128 - code))
        return tuple(self._ended)

    @property
    def running(self) -> tuple[str, ...]:
        """Return the names of the children that have not ended."""
        ended = {end.name for end in self.ended}
        return tuple(name for name in self._children if name not in ended)

    def wait(self, timeout: float | None = None, count: int = 1) -> bool:
        """
        Wait until `count` children (or all, if there are fewer) have ended.

        :param timeout: seconds, None for ever.
        :return: False if the time is over or a stop was requested before.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self.ended) < min(count, len(self._children)):
            if self.stop_requested or (deadline is not None and time.monotonic() >= deadline):
                return False
            time.sleep(POLL_SECONDS)
        return True

    def stop(self) -> None:
        """Send SIGTERM to the children that run, wait up to `grace` seconds, then kill the rest and say so."""
        for name in self.running:
            self._asked.add(name)
            self._children[name].terminate()
        deadline = time.monotonic() + self.grace
        while self.running and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        for name in self.running:
            print(f'{name} did not end within {self.grace:g} s and is killed', file=sys.stderr)
            self._children[name].kill()
            self._children[name].wait()

    @property
    def exit_code(self) -> int:
        """Return the code of the first child that failed, or 0. To end by the SIGTERM of `stop` is no failure."""
        for end in self.ended:
            if end.code and not (end.code == 128 + signal.SIGTERM and end.name in self._asked):
                return end.code
        return 0

    def _handle_signal(self, *_: object) -> None:
        if self.stop_requested:
            for name in self.running:
                self._children[name].kill()
        self.stop_requested = True


def _ends_with_parent() -> list[str]:
    """Return the words before a command that make the kernel send it SIGTERM when the thread that started it dies."""
    setpriv = shutil.which('setpriv')
    return [setpriv, '--pdeathsig', 'TERM', '--'] if setpriv else []
