"""Events: what was told, asked, said and remembered, in the order in which it happened; and whether it is true."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What an event is; the values are shown."""

    TOLD = 'told'          # an instruction that the robot took
    DID = 'did'            # what came of it
    ASKED = 'asked'        # a question that was put to it
    ANSWERED = 'answer'
    SAID = 'said'          # a spoken line
    NOTED = 'noted'        # a note that went to memory
    RECALLED = 'recalled'  # a note that came from memory
    INFORMED = 'demo'      # the demo itself has something to say


class Verdict(enum.Enum):
    """Whether a text agrees with what is so; the values are for JSON."""

    TRUE = True
    FALSE = False
    OPEN = None  # a matter of opinion, about nothing that is known here, or of a moment whose truth was not kept

    @property
    def mark(self) -> str:
        """A sign for it, none where it is open."""
        return {Verdict.TRUE: '✓', Verdict.FALSE: '✗', Verdict.OPEN: ''}[self]


@dataclass(frozen=True)
class Event:
    """
    :param time_ns: of the simulator, when it became known here.
    :param detail: what else there is to say: what would have been right, how many facts of a note are.
    :param number: of the question that an answer belongs to, from 0.
    """

    time_ns: int
    kind: Kind
    text: str
    verdict: Verdict = Verdict.OPEN
    detail: str = ''
    number: int = -1
