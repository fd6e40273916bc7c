"""Collects comparisons, and shows them to people and to programs."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


class Kind(enum.Enum):
    """What was compared."""

    TENSOR = 'tensor'
    EXACT = 'exact'


@dataclass(frozen=True)
class Tolerance:
    """
    Every element must differ by no more than atol + rtol * |expected|.

    :param relative: moreover, the L2 norm of the difference must be no more than this part of the norm of the expected,
        over everything that is compared (all rows of the case). For bfloat16, where single elements say little.
    """

    rtol: float = 1e-4
    atol: float = 1e-4
    relative: float | None = None

    def __str__(self) -> str:
        if self.relative is not None:
            return f'L2 {100 * self.relative:g} %' + (f', {self.atol:g}' if self.atol < math.inf else '')
        return f'{self.atol:.0e}' + (f' + {self.rtol:.0e}|x|' if self.rtol else '')


@dataclass
class Check:
    """
    All comparisons of one quantity in one section and mode.

    :param worst: largest difference of a tensor; number of elements that differ where equality is asked.
    :param wrong: comparisons that failed on their own. :param squares: of all differences and of all expected numbers.
    """

    section: str
    name: str
    mode: str
    kind: Kind
    tolerance: Tolerance | str
    count: int = 0
    worst: float = 0.0
    wrong: int = 0
    squares: tuple[float, float] = (0.0, 0.0)
    note: str = ''

    @property
    def relative(self) -> float:
        """Relative L2 error over everything compared."""
        return math.sqrt(self.squares[0] / max(self.squares[1], 1e-24))

    @property
    def passed(self) -> bool:
        """Whether all comparisons agree."""
        limit = self.tolerance.relative if isinstance(self.tolerance, Tolerance) else None
        return not self.wrong and (limit is None or self.relative <= limit)

    def as_dict(self) -> dict:
        """Return what JSON can hold."""
        return {'section': self.section, 'name': self.name, 'mode': self.mode, 'kind': self.kind.value,
                'tolerance': str(self.tolerance), 'compared': self.count, 'worst': self.worst,
                'relative': self.relative, 'passed': self.passed, 'note': self.note}


@dataclass
class Report:
    """Comparisons, grouped by section, quantity and mode."""

    checks: dict[tuple[str, str, str], Check] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether there was anything to compare, and all of it agreed."""
        return bool(self.checks) and all(check.passed for check in self.checks.values())

    def close(self, section: str, name: str, mode: str, got: torch.Tensor, expected: torch.Tensor,
              tolerance: Tolerance) -> None:
        """Compare two tensors."""
        check = self._check(section, name, mode, Kind.TENSOR, tolerance)
        if got.shape != expected.shape or not got.isfinite().all():
            check.wrong += 1
            check.note = (f'shape {list(got.shape)} instead of {list(expected.shape)}' if got.shape != expected.shape
                          else 'not finite')
            return
        expected = expected.double()
        difference = (got.double() - expected).abs()
        check.worst = max(check.worst, float(difference.max()) if difference.numel() else 0.0)
        check.squares = (check.squares[0] + float(difference.square().sum()),
                         check.squares[1] + float(expected.square().sum()))
        check.wrong += not bool((difference <= tolerance.atol + tolerance.rtol * expected.abs()).all())

    def equal(self, section: str, name: str, mode: str, got: Sequence[int], expected: Sequence[int],
              required: bool = True) -> None:
        """Compare two rows of numbers, which must be equal if that is required."""
        check = self._check(section, name, mode, Kind.EXACT, 'equal' if required else 'none')
        got, expected = list(got), list(expected)
        different = sum(a != b for a, b in zip(got, expected)) + abs(len(got) - len(expected))
        check.worst = max(check.worst, different)
        if different:
            check.wrong += required
            check.note = f'{_some(got)} instead of {_some(expected)}'

    def _check(self, section: str, name: str, mode: str, kind: Kind, tolerance: Tolerance | str) -> Check:
        check = self.checks.setdefault((section, name, mode), Check(section, name, mode, kind, tolerance))
        check.count += 1
        return check

    def as_dict(self) -> dict:
        """Return what JSON can hold."""
        return {'passed': self.passed, 'notes': self.notes,
                'checks': [check.as_dict() for check in self.checks.values()]}


def _some(numbers: list[int]) -> str:
    return f'{" ".join(map(str, numbers[:8]))}{" ..." if len(numbers) > 8 else ""}'
