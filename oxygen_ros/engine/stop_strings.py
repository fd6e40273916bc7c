"""Ends a text where one of some strings appears in it."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Looks for the strings in a text that comes in pieces; holds back what may be the beginning of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ''
        self.found = False

    def push(self, text: str) -> str:
        """Take in a piece and return what can be handed on; once one is `found`, nothing more."""
        if not self._strings or self.found:
            return '' if self.found else text
        text = self._held + text
        places = [place for string in self._strings if (place := text.find(string)) >= 0]
        if places:
            self.found, self._held = True, ''
            return text[:min(places)]
        keep = max(self._begun(text, string) for string in self._strings)
        self._held = text[len(text) - keep:]
        return text[:len(text) - keep]

    def flush(self) -> str:
        """Return what is left at the end of the text."""
        held, self._held = self._held, ''
        return held

    @staticmethod
    def _begun(text: str, string: str) -> int:
        """Return how many characters at the end of the text are the beginning of a string."""
        return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)
