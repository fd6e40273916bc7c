"""What a soak run did, and what did not stay true."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import psutil

MOST_GROWTH = 100e6  # bytes of the process, between two times at which it has no model


@dataclass(frozen=True)
class Footprint:
    """What the process holds at one time."""

    bytes: int
    threads: int
    handles: int

    @classmethod
    def now(cls) -> Footprint:
        """Measure this process."""
        process = psutil.Process()
        return cls(process.memory_info().rss, process.num_threads(), process.num_fds())


@dataclass
class SoakReport:
    """Figures of a run; `broken` says in words what did not stay true."""

    seed: int
    model: str
    seconds: float = 0.0
    frames: int = 0
    chunks: int = 0
    commands: int = 0
    notes: int = 0
    asked: int = 0
    answers: Counter = field(default_factory=Counter)  # how questions ended
    faults: Counter = field(default_factory=Counter)
    drops: Counter = field(default_factory=Counter)
    error_states: int = 0
    recoveries: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # seconds, by fault
    begin: Footprint | None = None
    end: Footprint | None = None
    broken: list[str] = field(default_factory=list)

    def compare(self) -> None:
        """Note growth between the two footprints as broken."""
        if self.end.bytes > self.begin.bytes + MOST_GROWTH:
            self.broken.append(f'memory grew by {(self.end.bytes - self.begin.bytes) / 1e6:.0f} MB')
        for name in ('threads', 'handles'):
            before, after = getattr(self.begin, name), getattr(self.end, name)
            if after > before:
                self.broken.append(f'{name} grew from {before} to {after}')

    def as_json(self) -> dict[str, Any]:
        """Return the report for a file."""
        return {
            'seed': self.seed, 'model': self.model, 'minutes': round(self.seconds / 60, 2), 'frames': self.frames,
            'chunks': self.chunks, 'commands': self.commands, 'notes': self.notes,
            'questions': {'asked': self.asked, **dict(sorted(self.answers.items()))},
            'faults': dict(sorted(self.faults.items())), 'error_states': self.error_states,
            'drops': dict(sorted(self.drops.items())),
            'recovery_seconds': {name: {'median': round(statistics.median(times), 2), 'most': round(max(times), 2)}
                                 for name, times in sorted(self.recoveries.items())},
            'begin': vars(self.begin) if self.begin else None, 'end': vars(self.end) if self.end else None,
            'memory_growth_bytes': self.end.bytes - self.begin.bytes if self.end and self.begin else None,
            'broken': self.broken}
