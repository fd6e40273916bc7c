"""Levels of diagnostics that do not flicker. No ROS here."""

from __future__ import annotations

from dataclasses import dataclass

CALM = 3  # reports in a row that must be better before a level goes down


@dataclass
class _Held:
    level: int
    text: str
    better: int = 0  # reports in a row


class SteadyLevels:
    """A level of a part goes up at once, and down only after some better reports in a row."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def settle(self, part: str, level: int, text: str) -> tuple[int, str]:
        """
        Take in what a part reports, and return what is to be published.

        :param level: 0 is fine, higher is worse.
        """
        held = self._held.get(part)
        if held is None or level >= held.level:
            self._held[part] = _Held(level, text)
            return level, text
        held.better += 1
        if held.better >= CALM:
            self._held[part] = _Held(level, text)
            return level, text
        return held.level, f'{text} (a moment ago: {held.text})'
