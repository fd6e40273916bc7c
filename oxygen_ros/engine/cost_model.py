"""
Online estimates of how long each stage of a cycle takes, learnt from what was measured.

Every (stage, size) keeps a moving mean and a moving mean deviation, as TCP does for its round-trip time (Jacobson 1988,
gains 1/8 and 1/4). A prediction is mean + 2 deviations: deadlines need the slow case, not the usual one. For actions,
which must not be late, that is not slow enough: their times have a long tail, and the deviation forgets it within some
actions. `slow` remembers the slowest of the last 100.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

OUTLIER = 4.0  # measurements beyond this multiple of what is expected count as this much
RECENT = 100   # measurements that are remembered


class Stage(enum.Enum):
    """
    Stages with a cost of their own.

    Size of ACTION, PREFILL and DENOISE: 1; of EXTEND: branches times the longest prompt; of DECODE: branches.
    """

    ACTION = 'action'  # all of it, prefill and denoising included
    PREFILL = 'prefill'
    DENOISE = 'denoise'
    EXTEND = 'extend'
    DECODE = 'decode'


@dataclass
class Estimate:
    """
    Moving mean and mean deviation of a latency, in seconds.

    :param surplus: of the last measurements, over the mean of their time.
    """

    mean: float
    deviation: float
    count: int = 1
    surplus: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def update(self, seconds: float) -> None:
        """Take in a measurement. One outlier counts as no more than 4 times the mean: a hiccup is not a trend."""
        self.count += 1
        error = min(seconds, OUTLIER * self.mean) - self.mean
        self.mean += error / min(self.count, 8)
        self.deviation += (abs(error) - self.deviation) / 4
        self.surplus.append(error)


class CostModel:
    """Predicts seconds per stage and size. Not thread safe: it belongs to the engine."""

    def __init__(self) -> None:
        self._estimates: dict[Stage, dict[int, Estimate]] = {stage: {} for stage in Stage}

    def observe(self, stage: Stage, size: int, seconds: float) -> None:
        """Take in a measurement of a stage."""
        known = self._estimates[stage]
        bucket = _bucket(size)
        if bucket in known:
            known[bucket].update(seconds)
        else:
            # A hiccup in the first measurement is told by its neighbours.
            expected = self.predict(stage, size, deviations=0.0)
            seconds = min(seconds, OUTLIER * expected) if expected > 0 else seconds
            known[bucket] = Estimate(seconds, seconds / 4)

    def relax(self, stages: Iterable[Stage]) -> None:
        """
        Trust the means of these stages more. For work that was put off because it seemed too slow: what is never done
        is never measured, and would be put off for ever after one bad measurement.
        """
        for stage in stages:
            for estimate in self._estimates[stage].values():
                estimate.deviation /= 2

    def forget_slowest(self, stage: Stage) -> None:
        """Forget the slowest of the last measurements of a stage: a bad minute does not count for RECENT of them."""
        for estimate in self._estimates[stage].values():
            if estimate.surplus:
                estimate.surplus.remove(max(estimate.surplus))

    def slow(self, stage: Stage) -> float:
        """Return the seconds that a stage of size 1 takes when slow: as the slowest of RECENT, or as predicted."""
        predicted = self.predict(stage)
        estimate = self._estimates[stage].get(1)
        if estimate is None or not estimate.surplus:
            return predicted
        return max(predicted, estimate.mean + max(estimate.surplus))

    def predict(self, stage: Stage, size: int = 1, deviations: float = 2.0) -> float:
        """
        Return the seconds that a stage will take, 0 if it was never measured.

        Between measured sizes it interpolates; outside it scales with the size upwards, and takes the smallest one
        downwards (a small batch costs about as much as a single branch).
        """
        known = self._estimates[stage]
        if not known:
            return 0.0
        bucket = _bucket(size)
        below = max((b for b in known if b <= bucket), default=None)
        above = min((b for b in known if b >= bucket), default=None)
        if below is None:
            return _high(known[above], deviations)
        if above is None:
            return _high(known[below], deviations) * bucket / below
        low, high = _high(known[below], deviations), _high(known[above], deviations)
        return low if above == below else low + (high - low) * (bucket - below) / (above - below)


def _bucket(size: int) -> int:
    """Sizes up to 8 are kept apart, larger ones in steps of 8: prompts of 33 and 35 tokens cost the same."""
    return size if size <= 8 else -(-size // 8) * 8


def _high(estimate: Estimate, deviations: float) -> float:
    return estimate.mean + deviations * estimate.deviation
