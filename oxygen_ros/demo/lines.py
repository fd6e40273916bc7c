"""Lines that a person types, or the demo's own script: an instruction, a question, or a word to the demo."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from oxygen_ros.simulation.language import normalise
from oxygen_ros.simulation.objects import COLOURS, SHAPES

LONGEST_WAIT = 60.0  # s
MOST_SEED = 2**31 - 1


class Wish(enum.Enum):
    """What a line wants."""

    NOTHING = 'nothing'
    INSTRUCT = 'instruct'
    ASK = 'ask'
    RECALL = 'recall'  # from memory
    STOP = 'stop'
    WAIT = 'wait'
    SCENE = 'scene'
    LOOK = 'look'
    HELP = 'help'
    QUIT = 'quit'


SINGLE_WORDS = {'stop': Wish.STOP, 'halt': Wish.STOP, 'look': Wish.LOOK, 'help': Wish.HELP, '?': Wish.HELP,
                'quit': Wish.QUIT, 'exit': Wish.QUIT, 'bye': Wish.QUIT}
FILLERS = ('the', 'a', 'an', 'any', 'about', 'of', 'where', 'is', 'was', 'seeing')  # no words to search memory for

NAMED = ', '.join((*COLOURS, *SHAPES))
HELP = f'''go to the red cube             an instruction: also point at, reach for; rest; go home
where is the red cube?         a question ends with a question mark. Also:
                               is there a blue ball?  how many cubes (objects, red objects) are there?
                               is the red cube left of (right of, behind, in front of) the blue ball?
                               what colour is the cube?  what shape is the red object?  what is leftmost (rightmost)?
remember the red cube?         what memory has about it; remember? shows the last notes
stop                           hold still, until the next instruction
look                           a picture of the scene; scene 12: another one; wait 3: read on after 3 s; quit
The policy knows {NAMED}. It was trained on these sentences alone.'''


@dataclass(frozen=True)
class Line:
    """
    :param words: of an instruction or a question as the policy was trained on them; what to look for in memory.
    :param seconds: of a wait, in time of the simulator. :param number: of a scene: its seed.
    """

    wish: Wish
    words: str = ''
    seconds: float = 0.0
    number: int = 0


def read_line(text: str) -> Line:
    """Return what a line means. The policy was trained on lower-case words without marks at their end."""
    text = ' '.join(text.split())
    if not text or text.startswith('#'):
        return Line(Wish.NOTHING)
    words = normalise(text)
    wish = SINGLE_WORDS.get(text if text == '?' else words)
    if wish is not None:
        return Line(wish)
    first, _, rest = words.partition(' ')
    if first in ('remember', 'recall'):
        return Line(Wish.RECALL, ' '.join(word for word in rest.split() if word not in FILLERS))
    if first == 'wait' and (seconds := _seconds(rest)) is not None:
        return Line(Wish.WAIT, seconds=seconds)
    if first == 'scene' and rest.isdecimal() and int(rest) <= MOST_SEED:
        return Line(Wish.SCENE, number=int(rest))
    if not words:
        return Line(Wish.NOTHING)
    return Line(Wish.ASK if text.endswith('?') else Wish.INSTRUCT, words)


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return min(seconds, LONGEST_WAIT) if math.isfinite(seconds) and seconds >= 0 else None
