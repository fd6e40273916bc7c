"""Figures of a series of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Figures:
    """Quantiles of measurements, in their unit."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figures | None:
        """Return the figures of some values, None if there are none."""
        if not len(values):
            return None
        p50, p95, p99, most = np.quantile(values, (0.5, 0.95, 0.99, 1.0))
        return cls(len(values), float(np.mean(values)), float(p50), float(p95), float(p99), float(most))

    def as_json(self) -> dict[str, float]:
        """Return them by name."""
        return asdict(self)


def median(values: Sequence[float]) -> float | None:
    """Return the median of some values, None if there are none."""
    return float(np.median(values)) if len(values) else None


def median_ratio(values: Sequence[float], bases: Sequence[float]) -> float | None:
    """
    Return the median of value by base, pair by pair.

    Two measured one right after the other see the same machine, so that their ratio is steadier than that of medians.
    """
    return median([value / base for value, base in zip(values, bases, strict=True) if base > 0])
