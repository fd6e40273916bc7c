"""The texts that were asked for and have not ended; so that each of them ends, whatever becomes of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from oxygen_ros.engine.requests import FinishReason, TextDelta, TextRequest


class OpenTexts:
    """
    Knows the last piece of every text that has not ended.

    Threads: one at a time, the one that takes in what the engine emits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[int, TextDelta] = {}

    def opened(self, request: TextRequest) -> None:
        """Note a request that is handed to the engine."""
        self._last[request.request_id] = TextDelta(request, None, -1, '', 0, 0.0)

    def refused(self, request: TextRequest) -> None:
        """Forget a request that somebody else answers."""
        self._last.pop(request.request_id, None)

    def arrived(self, delta: TextDelta) -> None:
        """Take in a piece."""
        if delta.finish is not None:
            self._last.pop(delta.request.request_id, None)
        elif delta.request.request_id in self._last:
            self._last[delta.request.request_id] = delta

    def fail(self, message: str) -> list[TextDelta]:
        """Return a last piece, with the reason ERROR, for every text that has not ended; none is open then."""
        now = self._clock()
        ends = [replace(last, sequence=last.sequence + 1, delta='', elapsed=now - last.request.arrived,
                        finish=FinishReason.ERROR, message=message) for last in self._last.values()]
        self._last.clear()
        return ends
