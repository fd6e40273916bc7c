"""Records what the engine did when, as Chrome trace events: open the file in Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, TextIO

logger = logging.getLogger(__name__)


class Tracer:
    """
    Writes one JSON event per line as they happen, inside the array that the trace format wants.

    The format allows a missing end of the array, so that the file of a killed process can be opened too. A full disk
    ends the trace, not the engine.

    :param path: file to write; None records nothing. :param max_events: stop writing after so many, to bound the file.
    """

    def __init__(self, path: str | Path | None = None, max_events: int = 1_000_000) -> None:
        self._left = max_events if path else 0
        self._file: TextIO | None = open(path, 'w', encoding='utf-8') if path else None
        if self._file:
            self._file.write('[\n')

    def span(self, name: str, start: float, end: float, **arguments: object) -> None:
        """Record that `name` took from start to end (seconds of the engine's clock)."""
        if self._file is not None:
            self._write({'name': name, 'ph': 'X', 'ts': start * 1e6, 'dur': (end - start) * 1e6, 'pid': 1, 'tid': name,
                         'args': arguments})

    def mark(self, name: str, time: float, **arguments: object) -> None:
        """Record a moment."""
        if self._file is not None:
            self._write({'name': name, 'ph': 'i', 's': 'g', 'ts': time * 1e6, 'pid': 1, 'tid': name, 'args': arguments})

    def close(self) -> None:
        """Flush and close the file."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                logger.warning('the end of the trace cannot be written: %s', error)

    def _write(self, event: dict[str, object]) -> None:
        try:
            self._file.write(json.dumps(event) + ',\n')
            self._left -= 1
            if self._left == 0:
                self.close()
        except OSError as error:
            logger.warning('the trace ends here, it cannot be written: %s', error)
            self._file = None


def read_trace(path: str | Path) -> list[dict[str, Any]]:
    """Return the events of a trace file, complete or cut off."""
    events = []
    for line in Path(path).read_text(encoding='utf-8').splitlines()[1:]:
        try:
            events.append(json.loads(line.rstrip(',')))
        except json.JSONDecodeError:
            break  # the line that was being written when the process ended
    return events
