"""Collects comparisons, and shows them to people and to programs."""

from __future__ import annotations

import enum
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

    :param relative: instead, the L2 norm of the difference must be no more than this part of the norm of the expected.
        For bfloat16, in which single elements say little. None for the rule above.
    """

    rtol: float = 1e-4
    atol: float = 1e-4
    relative: float | None = None

    def __str__(self) -> str:
        if self.relative is not None:
            return f'L2 {100 * self.relative:g} %'
        return f'{self.atol:.0e}' + (f' + {self.rtol:.0e}|x|' if self.rtol else '')


@dataclass
class Check:
    """
    All comparisons of one quantity in one section and mode.

    :param worst: largest difference of a tensor; number of elements that differ where equality is asked.
    :param relative: largest relative L2 error.
    """

    section: str
    name: str
    mode: str
    kind: Kind
    tolerance: str
    count: int = 0
    worst: float = 0.0
    relative: float = 0.0
    failed: int = 0
    note: str = ''

    def as_dict(self) -> dict:
        """Return what JSON can hold."""
        return {**vars(self), 'kind': self.kind.value, 'passed': not self.failed}


@dataclass
class Report:
    """Comparisons, grouped by section, quantity and mode."""

    checks: dict[tuple[str, str, str], Check] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether there was anything to compare, and all of it agreed."""
        return bool(self.checks) and not any(check.failed for check in self.checks.values())

    def close(self, section: str, name: str, mode: str, got: torch.Tensor, expected: torch.Tensor,
              tolerance: Tolerance) -> bool:
        """Compare two tensors."""
        check = self._check(section, name, mode, Kind.TENSOR, str(tolerance))
        if got.shape != expected.shape:
            check.failed += 1
            check.note = f'shape {list(got.shape)}, not {list(expected.shape)}'
            return False
        got, expected = got.double(), expected.double()
        difference = (got - expected).abs()
        relative = float(difference.norm() / expected.norm().clamp(min=1e-12))
        good = bool(got.isfinite().all())
        if tolerance.relative is not None:
            good &= relative <= tolerance.relative
        else:
            good &= bool((difference <= tolerance.atol + tolerance.rtol * expected.abs()).all())
        check.worst = max(check.worst, _largest(difference))
        check.relative = max(check.relative, relative)
        check.failed += not good
        return good

    def equal(self, section: str, name: str, mode: str, got: Sequence[int], expected: Sequence[int],
              required: bool = True) -> bool:
        """Compare two rows of numbers, which must be equal if that is required."""
        check = self._check(section, name, mode, Kind.EXACT, 'equal' if required else 'none')
        got, expected = list(got), list(expected)
        wrong = sum(a != b for a, b in zip(got, expected)) + abs(len(got) - len(expected))
        check.worst = max(check.worst, wrong)
        if wrong:
            check.failed += required
            check.note = f'{_some(got)} instead of {_some(expected)}'
        return not wrong

    def _check(self, section: str, name: str, mode: str, kind: Kind, tolerance: str) -> Check:
        check = self.checks.setdefault((section, name, mode), Check(section, name, mode, kind, tolerance))
        check.count += 1
        return check

    def as_dict(self) -> dict:
        """Return what JSON can hold."""
        return {'passed': self.passed, 'notes': self.notes,
                'checks': [check.as_dict() for check in self.checks.values()]}


def _largest(difference: torch.Tensor) -> float:
    return float(difference.max()) if difference.numel() else 0.0


def _some(numbers: list[int]) -> str:
    return f'{" ".join(map(str, numbers[:8]))}{" ..." if len(numbers) > 8 else ""}'
