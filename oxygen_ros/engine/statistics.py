"""Counters and moving windows of the engine, and the snapshot that is published as EngineStatus."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

WINDOW = 10.0  # seconds that rates and quantiles look back


@dataclass
class Counters:
    """Counts since the last reset. Meanings as in oxygen_ros/EngineStatus."""

    chunks: int = 0
    deadline_misses: int = 0
    stale_frames: int = 0
    texts_finished: int = 0
    texts_unfinished: int = 0
    notes_dropped: int = 0
    frames_received: int = 0
    tokens: int = 0
    action_failures: int = 0  # actions of which the model raised, or gave numbers that are not finite
    late_decodes: int = 0  # decode phases that ended more than one decode step after the action had to begin


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot. Times in seconds, sizes in bytes."""

    counters: Counters
    window: float
    action_rate: float
    lateness_p50: float
    lateness_p99: float
    lateness_max: float
    cycle: float
    tokens_per_second: float
    running: int
    waiting: int
    frames_resident: int
    kv_bytes: int
    kv_bytes_peak: int
    kv_bytes_allocated: int
    kv_bytes_budget: int
    prefill: float
    denoise: float
    decode_step: float


@dataclass
class Windows:
    """What happened lately: (time, value) pairs, oldest first."""

    since: float = 0.0
    chunks: deque[tuple[float, float, float]] = field(default_factory=deque)  # time, lateness, duration
    tokens: deque[tuple[float, int]] = field(default_factory=deque)

    def trim(self, now: float) -> float:
        """Forget what is older than the window; return the seconds that the window covers."""
        for entries in (self.chunks, self.tokens):
            while entries and entries[0][0] < now - WINDOW:
                entries.popleft()
        return min(WINDOW, max(now - self.since, 1e-9))


class Statistics:
    """Collects figures while the engine works."""

    def __init__(self, now: float) -> None:
        self.reset(now)

    def reset(self, now: float) -> None:
        """Start all counters and windows anew."""
        self.counters = Counters()
        self._windows = Windows(since=now)

    def chunk(self, now: float, lateness: float, duration: float) -> None:
        """Take in a published chunk."""
        self.counters.chunks += 1
        self.counters.deadline_misses += lateness > 0
        self._windows.chunks.append((now, lateness, duration))

    def decoded(self, now: float, tokens: int) -> None:
        """Take in the tokens of one step."""
        self.counters.tokens += tokens
        self._windows.trim(now)
        self._windows.tokens.append((now, tokens))

    def snapshot(self, now: float, **state: float) -> EngineStatus:
        """Return the figures of the window together with the given state of the engine."""
        window = self._windows.trim(now)
        lateness = np.array([entry[1] for entry in self._windows.chunks])
        durations = [entry[2] for entry in self._windows.chunks]
        p50, p99, most = (np.quantile(lateness, (0.5, 0.99, 1.0)) if len(lateness) else (0.0, 0.0, 0.0))
        return EngineStatus(
            counters=replace(self.counters), window=window, action_rate=len(durations) / window,
            lateness_p50=float(p50), lateness_p99=float(p99), lateness_max=float(most),
            cycle=float(np.median(durations)) if durations else 0.0,
            tokens_per_second=sum(n for _, n in self._windows.tokens) / window, **state)
