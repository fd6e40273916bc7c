"""Notices a text that says the same again and again."""

from __future__ import annotations

LONGEST_PERIOD = 64  # tokens of what is repeated
LEAST_TOKENS = 24    # of all copies together: a short run of equal tokens, as in "......", is no fault


class RepetitionRule:
    """
    Says when the end of a text is the same piece several times over.

    :param copies: so many in a row are too many; 0 never.
    """

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._tokens: list[int] = []
        self._runs = [0] * (LONGEST_PERIOD + 1)  # period -> tokens in a row that equal the one so many before
        self.period = 0  # of what was repeated, once `push` has returned True

    def push(self, token: int) -> bool:
        """Take in a token; return whether there are too many copies now."""
        if not self._copies:
            return False
        tokens, runs, needed = self._tokens, self._runs, self._copies - 1
        tokens.append(token)
        place = len(tokens) - 1
        for period in range(1, min(LONGEST_PERIOD, place) + 1):
            if tokens[place - period] != token:
                runs[period] = 0
                continue
            run = runs[period] = runs[period] + 1
            if run >= period * needed and run + period >= LEAST_TOKENS:
                self.period = period
                return True
        return False
