"""Checks of plain data as files have it, which collect every problem instead of ending at the first."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any


class FileChecks:
    """Base of readers; `problems` ends up with everything that is wrong, for people."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def _keys(self, where: str, item: Any, required: Set[str], optional: Set[str] = frozenset()) -> bool:
        """Tell whether `item` is a mapping with the required keys; unknown keys are problems, too."""
        if not isinstance(item, Mapping):
            self.problems.append(f'{where} must be a mapping with the keys {sorted(required)}')
            return False
        missing = sorted(required - set(item))
        unknown = sorted(map(str, set(item) - required - optional))
        if missing:
            self.problems.append(f'{where} lacks {missing}')
        if unknown:
            self.problems.append(f'{where} has unknown keys {unknown}: known are {sorted(required | optional)}')
        return not missing

    def _mapping(self, where: str, item: Any) -> Mapping[str, Any]:
        if isinstance(item, Mapping):
            return item
        self.problems.append(f'{where} must be a mapping')
        return {}

    def _text(self, where: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            self.problems.append(f'{where} must be text, not {value!r} (quote it)')
        return str(value)

    def _number(self, where: str, value: Any) -> float | None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and abs(value) < 1e300:  # false for NaN as well
            return float(value)
        self.problems.append(f'{where} must be a finite number, not {value!r}')
        return None

    def _choice(self, enum: type, value: Any, where: str) -> Any:
        choices = [member.value for member in enum]
        if value in choices:
            return enum(value)
        self.problems.append(f'{where} must be one of {choices}, not {value!r}')
        return None
