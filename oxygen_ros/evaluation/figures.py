"""Figures with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

Z95 = 1.959963984540054  # quantile of the normal distribution for 95 %


@dataclass(frozen=True)
class Share:
    """How many of `count` are right, with the 95 % interval of Wilson (1927)."""

    right: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.count:
            raise ValueError(f'{self.right} of {self.count} cannot be')

    @property
    def share(self) -> float:
        """Share of right ones; NaN of none."""
        return self.right / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end of the interval that holds the true share in 95 % of all samples."""
        if not self.count:
            return 0.0, 1.0
        n, p = self.count, self.share
        centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
        half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
        # Rounding must not push the ends beyond the share itself.
        return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))

    @property
    def text(self) -> str:
        """For people: '92.0 % (87.4 to 95.0, n 200)'."""
        if not self.count:
            return 'none'
        low, high = self.interval
        return f'{100 * self.share:.1f} % ({100 * low:.1f} to {100 * high:.1f}, n {self.count})'

    def to_dict(self) -> dict:
        """Return plain data for JSON."""
        low, high = self.interval
        share = self.share if self.count else None
        return {**asdict(self), 'share': share, 'low': low, 'high': high, 'text': self.text}


@dataclass(frozen=True)
class Mean:
    """Mean of numbers with its 95 % interval (normal), median and 95th percentile, in `unit`."""

    values: tuple[float, ...]
    unit: str = ''

    @property
    def mean(self) -> float:
        """Their mean; NaN of none."""
        return math.fsum(self.values) / len(self.values) if self.values else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval of the mean."""
        n, mean = len(self.values), self.mean
        if n < 2:
            return mean, mean
        half = Z95 * math.sqrt(math.fsum((v - mean) ** 2 for v in self.values) / (n - 1) / n)
        return mean - half, mean + half

    def quantile(self, q: float) -> float:
        """Return a quantile, interpolated; NaN of none."""
        if not self.values:
            return math.nan
        order = sorted(self.values)
        place = q * (len(order) - 1)
        low = math.floor(place)
        high = min(low + 1, len(order) - 1)
        return order[low] + (place - low) * (order[high] - order[low])

    @property
    def text(self) -> str:
        """For people: '1.24 cm (1.10 to 1.38; median 1.02, p95 2.90, n 200)'."""
        if not self.values:
            return 'none'
        low, high = self.interval
        return (f'{self.mean:.3g}{self.unit and " " + self.unit} ({low:.3g} to {high:.3g}; '
                f'median {self.quantile(0.5):.3g}, p95 {self.quantile(0.95):.3g}, n {len(self.values)})')

    def to_dict(self) -> dict:
        """Return plain data for JSON."""
        if not self.values:
            return {'count': 0, 'text': self.text}
        low, high = self.interval
        return {'mean': self.mean, 'low': low, 'high': high, 'median': self.quantile(0.5), 'p95': self.quantile(0.95),
                'count': len(self.values), 'unit': self.unit, 'text': self.text}


def shares(results: Sequence[tuple[str, bool]]) -> dict[str, Share]:
    """Return the share of right results by kind, kinds in order."""
    kinds = sorted({kind for kind, _ in results})
    return {kind: Share(sum(right for k, right in results if k == kind), sum(k == kind for k, _ in results))
            for kind in kinds}
