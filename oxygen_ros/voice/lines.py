"""Lines that wait to be spoken: which comes next, which are not worth it any more, and when to stop amid one."""

from __future__ import annotations

import enum
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


class Ending(enum.Enum):
    """What became of a line."""

    SPOKEN = 'spoken'
    INTERRUPTED = 'interrupted'  # in the middle
    TAKEN_BACK = 'taken back'    # its text was cancelled or superseded before it was begun
    REPLACED = 'replaced'        # a newer line of its stream came before it was begun
    DROPPED = 'dropped'          # too many waited
    FAILED = 'failed'            # the synthesiser or the sound device


@dataclass(frozen=True)
class Line:
    """
    A sentence to speak.

    :param text: what to say.
    :param request: number of the text that it is part of; 0 for one that is no part of any.
    :param stream: lines of one stream by a newer text replace those by older ones. Empty: it replaces nothing.
    :param urgent: it comes before lines that are not, and interrupts them.
    """

    text: str
    request: int = 0
    stream: str = ''
    urgent: bool = False


class LineQueue:
    """
    Lines of several texts, in the order in which they shall be spoken.

    Threads: any puts and interrupts; one thread takes, asks `wanted` while it speaks, and then says `done`.

    :param limit: most lines that wait; beyond it the oldest one that is not urgent goes, else the oldest.
    """

    def __init__(self, limit: int = 8) -> None:
        if limit < 1:
            raise ValueError(f'limit {limit} of a LineQueue is below 1')
        self.counts: Counter[Ending] = Counter()
        self._limit = limit
        self._changed = threading.Condition()
        self._lines: list[Line] = []
        self._current: Line | None = None
        self._wanted = False
        self._closed = False
        self._held_until = 0.0  # of time.monotonic

    def put(self, line: Line) -> None:
        """Add a line."""
        with self._changed:
            self._remove(Ending.REPLACED, lambda other: self._replaces(line, other))
            current = self._current
            if current is not None and line.urgent and (not current.urgent or self._replaces(line, current)):
                self._wanted = False
            if len(self._lines) == self._limit:
                victim = next((other for other in self._lines if not other.urgent), self._lines[0])
                self._lines.remove(victim)
                self.counts[Ending.DROPPED] += 1
            self._lines.append(line)
            self._changed.notify_all()

    def take_back(self, request: int) -> None:
        """Drop the lines of a text, and stop the one that is being spoken if it is one of them."""
        with self._changed:
            self._remove(Ending.TAKEN_BACK, lambda other: other.request == request)
            if self._current is not None and self._current.request == request:
                self._wanted = False

    def hold(self, seconds: float) -> None:
        """Begin no line within so many seconds from now; 0 ends that. What is being spoken goes on."""
        with self._changed:
            self._held_until = time.monotonic() + seconds
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting, now and later; what is being spoken stops."""
        with self._changed:
            self._closed, self._wanted = True, False
            self._changed.notify_all()

    def take(self, timeout: float | None = None) -> Line | None:
        """Wait for a line and return it; None after the timeout in seconds, or when the queue is closed."""
        with self._changed:
            end = None if timeout is None else time.monotonic() + timeout
            while not self._closed and (not self._lines or time.monotonic() < self._held_until):
                moments = [end, self._held_until if self._lines else None]
                wait = min((moment for moment in moments if moment is not None), default=None)
                if end is not None and time.monotonic() >= end:
                    return None
                self._changed.wait(None if wait is None else max(0.0, wait - time.monotonic()))
            if self._closed:
                return None
            line = next((line for line in self._lines if line.urgent), self._lines[0])
            self._lines.remove(line)
            self._current, self._wanted = line, True
            return line

    def wanted(self) -> bool:
        """Whether to go on with the line that was taken."""
        with self._changed:
            return self._wanted

    def done(self, ending: Ending) -> bool:
        """Say how the line that was taken has ended; return whether no other waits."""
        with self._changed:
            self._current, self._wanted = None, False
            self.counts[ending] += 1
            return not self._lines

    @staticmethod
    def _replaces(line: Line, other: Line) -> bool:
        return bool(line.stream) and line.stream == other.stream and line.request != other.request

    def _remove(self, ending: Ending, condition: Callable[[Line], bool]) -> None:
        kept = [line for line in self._lines if not condition(line)]
        self.counts[ending] += len(self._lines) - len(kept)
        self._lines = kept
