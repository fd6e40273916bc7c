"""
Keyboard: lines that a person types while everything runs.

Threads: a thread of its own reads them; the main thread takes them with `next_line`.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack

JOIN_SECONDS = 2.0
REFRESH = 0.3  # s
PROMPT = '> '


class Keyboard:
    """
    Lines of standard input, which is no terminal. Used as a context manager.

    A thread that waits for a line cannot be ended: it dies with the process.
    """

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read_all, name='keyboard', daemon=True)
        self.ended = False  # no line will come any more

    def __enter__(self) -> Keyboard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def waiting(self) -> bool:
        """Whether a line, or the end, is there to be taken."""
        return self.ended or not self._lines.empty()

    def next_line(self) -> str | None:
        """Return the next line, or None if there is none at the moment; `ended` tells whether more can come."""
        try:
            line = self._lines.get_nowait()
        except queue.Empty:
            return None
        self.ended = line is None
        return line

    def _read_all(self) -> None:
        try:
            self._read()
        finally:
            self._lines.put(None)

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)


class Prompt(Keyboard):
    """
    A line at the bottom of a terminal, with editing and history; what is printed meanwhile scrolls above it.

    :param toolbar: called often, returns what is shown below the line.
    :raises ModuleNotFoundError: prompt_toolkit is not installed.
    """

    def __init__(self, toolbar: Callable[[], str]) -> None:
        super().__init__()
        from prompt_toolkit import PromptSession
        from prompt_toolkit.patch_stdout import patch_stdout
        self._session = PromptSession(bottom_toolbar=toolbar, refresh_interval=REFRESH)
        self._patch = patch_stdout(raw=True)  # colours stay colours
        self._stack = ExitStack()
        self._closing = False

    def __enter__(self) -> Keyboard:
        self._stack.enter_context(self._patch)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._closing = True
        app = self._session.app
        if app.loop is not None and app.is_running:
            app.loop.call_soon_threadsafe(lambda: app.is_running and app.exit(exception=EOFError))
        self._thread.join(timeout=JOIN_SECONDS)
        self._stack.close()

    def _read(self) -> None:
        with self._session.app.input.raw_mode():  # between two lines too: what is typed then would be lost in part
            while not self._closing:
                try:
                    line = self._session.prompt(PROMPT, handle_sigint=False)
                except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C
                    return
                self._lines.put(line)


def open_keyboard(toolbar: Callable[[], str]) -> Keyboard:
    """Return what reads the lines of a person, or of a pipe."""
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        try:
            return Prompt(toolbar)
        except ModuleNotFoundError:
            pass  # lines without editing, then
    return Keyboard()
