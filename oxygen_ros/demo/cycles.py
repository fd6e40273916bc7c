"""Cycles: what a trace file says about each action cycle, and figures of the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxygen_ros.engine.trace import read_trace

STAGES = ('prefill', 'denoise', 'extend', 'decode', 'publish')


@dataclass(frozen=True)
class Span:
    """
    One piece of work; times in seconds of the engine's clock.

    :param branches: texts in the batch, for extend and decode; 0 for the other stages.
    """

    stage: str
    start: float
    end: float
    branches: int = 0
    frame: int = 0


@dataclass(frozen=True)
class Cycle:
    """
    One published action chunk.

    :param begin: start of its prefill, or of its denoising if the frame was prefilled before.
    :param published: when it was handed out. :param deadline: the deadline that it serves.
    :param due: the first deadline that had no chunk when its work began; before `deadline` if some were given up.
    :param decode: the last decode step since the chunk before, None if no text ran.
    """

    frame: int
    begin: float
    published: float
    deadline: float
    due: float
    decode: Span | None = None

    @property
    def lateness(self) -> float:
        """Seconds from the deadline to the publication; negative is early."""
        return self.published - self.deadline

    @property
    def decoded_past_deadline(self) -> bool:
        """Whether decoding before it went past the deadline that was due by more than one decode step."""
        return self.decode is not None and self.decode.start > self.due


@dataclass(frozen=True)
class Trace:
    """
    The spans and deadlines of a run, in the order in which they were recorded, and its cycles.

    :param skipped: deadlines for which there was no frame to act on.
    """

    spans: tuple[Span, ...]
    deadlines: tuple[float, ...]
    cycles: tuple[Cycle, ...]
    skipped: int = 0

    def medians(self) -> dict[str, float]:
        """Return stage -> median duration in seconds, for the stages that occurred."""
        durations: dict[str, list[float]] = {}
        for span in self.spans:
            durations.setdefault(span.stage, []).append(span.end - span.start)
        return {stage: float(np.median(durations[stage])) for stage in STAGES if stage in durations}


def load_trace(path: Path) -> Trace:
    """Read a trace file. What comes before the first deadline is the warm-up and is left out."""
    return analyse(read_trace(path))


def analyse(events: Sequence[dict]) -> Trace:
    """
    Find the cycles in the events of a trace.

    A chunk belongs to the deadline that the engine says, and those before it are given up. Where it does not say so,
    the chunk belongs to the first that had not passed when the work began.

    :param events: as `read_trace` returns them.
    """
    spans: list[Span] = []
    deadlines: list[float] = []
    cycles: list[Cycle] = []
    open_deadlines: list[float] = []
    last_decode: Span | None = None
    begin, skipped = 0.0, 0
    for event in events:
        time = event['ts'] / 1e6
        if event['name'] == 'deadline':
            deadlines.append(time)
            open_deadlines.append(time)
        elif event['name'] == 'skip':  # there was no frame to act on: no chunk was possible
            skipped += 1
            last = event['args']['deadline'] + 1e-6
            open_deadlines = [deadline for deadline in open_deadlines if deadline > last]
        if event['ph'] != 'X' or event['name'] not in STAGES or not deadlines:
            continue
        arguments = event.get('args', {})
        span = Span(event['name'], time, time + event['dur'] / 1e6, arguments.get('branches', 0),
                    arguments.get('frame', 0))
        before = spans[-1] if spans else None
        spans.append(span)
        if span.stage == 'decode':
            last_decode = span
        elif span.stage == 'denoise':
            own_prefill = before is not None and before.stage == 'prefill' and before.frame == span.frame
            begin = before.start if own_prefill else span.start
        elif span.stage == 'publish' and open_deadlines:
            due = deadline = open_deadlines.pop(0)
            served = arguments['deadline'] - 1e-6 if 'deadline' in arguments else begin
            while open_deadlines and deadline < served:
                deadline = open_deadlines.pop(0)
            cycles.append(Cycle(span.frame, begin, span.end, deadline, due, last_decode))
            last_decode = None
    return Trace(tuple(spans), tuple(deadlines), tuple(cycles), skipped)
