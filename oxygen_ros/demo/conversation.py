"""What the demo says to the robot, and when."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Act(enum.Enum):
    """Service that a step of the conversation calls."""

    INSTRUCT = 'set_instruction'
    ASK = 'ask'
    ASK_AND_WAIT = 'ask, wait for the whole answer'
    ASK_AND_CANCEL = 'ask, then cancel'


@dataclass(frozen=True)
class Step:
    """:param at: share of the measured time after which it comes, 0 to 1."""

    at: float
    act: Act
    words: str


CONVERSATION = (
    Step(0.10, Act.INSTRUCT, 'Pick up the red cup with your left hand.'),
    Step(0.20, Act.ASK, 'What do you see on the table?'),
    Step(0.40, Act.ASK, 'Where is the red cup?'),
    Step(0.55, Act.ASK_AND_CANCEL, 'Tell me all that is in the room.'),
    Step(0.65, Act.ASK_AND_WAIT, 'Is the red cup in your hand?'),
    Step(0.75, Act.ASK, 'What is left of the red cup?'),
)
