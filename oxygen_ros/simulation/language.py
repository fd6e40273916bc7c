"""
What is said about a scene: instructions, spoken lines, questions with answers, notes. All derived from the truth.

Truth is what the head camera can tell. Where that is a matter of opinion, a text is given nevertheless, marked as not
clear. All texts are lower case words with spaces; the items of a note are separated by ', '.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from oxygen_ros.simulation.dataset import Note, Question
from oxygen_ros.simulation.objects import COLOURS, COLUMNS, ROWS, SHAPES, TableObject

REACH_INSTRUCTIONS = ('point at the {}', 'reach for the {}', 'go to the {}')
REST_INSTRUCTIONS = ('rest', 'go home')
NUMBERS = ('zero', 'one', 'two', 'three', 'four')
NOT_HERE = 'not here'
NOTHING = 'nothing'
RELATIONS = {  # words: axis of the position, sign of the difference that makes it true
    'left of': (1, 1), 'right of': (1, -1), 'behind': (0, 1), 'in front of': (0, -1),
}
RELATION_GAP = 0.04  # m: objects nearer to each other along the axis are not asked about
# How often each kind is asked.
QUESTION_KINDS = {'where': 0.30, 'relation': 0.26, 'exists': 0.12, 'count': 0.10, 'colour': 0.07, 'shape': 0.07,
                  'leftmost': 0.04, 'rightmost': 0.04}
QUESTIONS = 6  # of a frame
NAMES = tuple(f'{colour} {shape}' for colour in COLOURS for shape in SHAPES)
MENTIONED = 30  # pixels: what is named where it is a matter of opinion

ARRIVED, ON_THE_WAY = 0.025, 0.045  # m from the goal; in between is a matter of opinion
AT_REST, GOING_HOME = 0.10, 0.20  # rad from the rest pose, of the joint that is furthest; likewise


def reach_line(name: str, arm: str, distance: float) -> tuple[str, bool]:
    """Return what to say while reaching for an object, and whether it is clear, by the distance to the goal in m."""
    verb = 'point at' if distance <= (ARRIVED + ON_THE_WAY) / 2 else 'reach for'
    return f'i {verb} the {name} with my {arm} hand', not ARRIVED < distance < ON_THE_WAY


def rest_line(deviation: float) -> tuple[str, bool]:
    """Return what to say when told to rest, and whether it is clear, by the largest way to the rest pose in rad."""
    return 'i rest' if deviation <= (AT_REST + GOING_HOME) / 2 else 'i go home', not AT_REST < deviation < GOING_HOME


def absent_line(name: str) -> str:
    """Return what to say when told to reach for what is not there."""
    return f'i see no {name}'


def absent_clear(name: str, objects: Sequence[TableObject]) -> bool:
    """Whether nothing that is half hidden could be taken for an object that is not there."""
    return all(item.seen for item in objects if item.colour == name.split()[0])


def absent_names(objects: Sequence[TableObject]) -> tuple[list[str], list[str]]:
    """Return names of objects that are not there: those like one that is there in colour or shape, and the others."""
    there = {item.name for item in objects}
    colours, shapes = {item.colour for item in objects}, {item.shape for item in objects}
    alike, others = [], []
    for name in NAMES:
        if name not in there:
            colour, shape = name.split()
            (alike if colour in colours or shape in shapes else others).append(name)
    return alike, others


def draw_absent(random: np.random.Generator, objects: Sequence[TableObject]) -> str:
    """Draw the name of an object that is not there, mostly one that is easily confused."""
    alike, others = absent_names(objects)
    names = alike if alike and (not others or random.random() < 0.75) else others
    return str(random.choice(names))


def note(objects: Sequence[TableObject]) -> Note:
    """Return the visible objects with their places, in the order of their colours, then shapes."""
    named = mentioned(objects)
    named.sort(key=lambda item: (list(COLOURS).index(item.colour), SHAPES.index(item.shape)))
    text = ', '.join(f'{item.name} {item.region}' for item in named) or NOTHING
    return Note(text, all(item.seen or item.hidden for item in objects) and all(item.region_clear for item in named))


def mentioned(objects: Sequence[TableObject]) -> list[TableObject]:
    """Return the objects that the head camera sees well enough to be named."""
    return [item for item in objects if item.pixels is None or item.pixels >= MENTIONED]


def draw_questions(random: np.random.Generator, objects: Sequence[TableObject],
                   count: int = QUESTIONS) -> tuple[Question, ...]:
    """
    Draw questions about a scene, no two alike, kinds as often as QUESTION_KINDS says.

    :param objects: what is on the table, with the pixels that the camera sees of each.
    """
    kinds, weights = list(QUESTION_KINDS), np.array(list(QUESTION_KINDS.values()))
    questions: dict[str, Question] = {}
    for _ in range(10 * count):
        kind = str(random.choice(kinds, p=weights / weights.sum()))
        question = _DRAW[kind](random, list(objects))
        if question is not None:
            questions.setdefault(question.question, question)
        if len(questions) == count:
            break
    return tuple(questions.values())


def _all_seen(objects: Sequence[TableObject]) -> bool:
    return all(item.seen for item in objects)


def where_question(name: str, objects: Sequence[TableObject]) -> Question:
    """Ask where an object is: row and column, or that it is not here."""
    item = next((item for item in mentioned(objects) if item.name == name), None)
    text = f'where is the {name}'
    if item is None:
        return Question('where', text, NOT_HERE, absent_clear(name, objects))
    return Question('where', text, item.region, item.seen and item.region_clear)


def exists_question(name: str, objects: Sequence[TableObject]) -> Question:
    """Ask whether there is an object."""
    item = next((item for item in mentioned(objects) if item.name == name), None)
    clear = absent_clear(name, objects) if item is None else item.seen
    return Question('exists', f'is there a {name}', 'no' if item is None else 'yes', clear)


def relation_question(first: TableObject, words: str, second: TableObject) -> Question:
    """Ask how two objects lie to each other."""
    axis, sign = RELATIONS[words]
    difference = sign * (first.position[axis] - second.position[axis])
    return Question('relation', f'is the {first.name} {words} the {second.name}', 'yes' if difference > 0 else 'no',
                    abs(difference) >= RELATION_GAP and first.seen and second.seen)


def count_question(which: str, objects: Sequence[TableObject]) -> Question:
    """Ask how many there are: which is 'objects', a plural shape ('cubes') or a colour with objects ('red objects')."""
    word = which.split()[0]
    counted = [item for item in mentioned(objects) if word in ('objects', f'{item.shape}s', item.colour)]
    return Question('count', f'how many {which} are there', NUMBERS[len(counted)],
                    all(item.seen or (word in COLOURS and item.colour != word) for item in objects))


def colour_question(item: TableObject, objects: Sequence[TableObject]) -> Question:
    """Ask for the colour of the only object of its shape."""
    return Question('colour', f'what colour is the {item.shape}', item.colour, _all_seen(objects))


def shape_question(item: TableObject, objects: Sequence[TableObject]) -> Question:
    """Ask for the shape of the only object of its colour."""
    return Question('shape', f'what shape is the {item.colour} object', item.shape,
                    item.seen and all(other.seen for other in objects if other.colour == item.colour))


def extreme_question(kind: str, objects: Sequence[TableObject]) -> Question | None:
    """Ask what is leftmost or rightmost; None where two are too near to each other, or there are none."""
    order = sorted(mentioned(objects), key=lambda item: item.position[1], reverse=kind == 'leftmost')
    if not order or (len(order) > 1 and abs(order[0].position[1] - order[1].position[1]) < RELATION_GAP):
        return None
    return Question(kind, f'what is {kind}', order[0].name, _all_seen(objects))


def _draw_name(random: np.random.Generator, objects: list[TableObject], absent: float) -> str | None:
    named = mentioned(objects)
    if random.random() < absent:
        return draw_absent(random, objects)
    return str(random.choice([item.name for item in named])) if named else None


def _draw_where(random: np.random.Generator, objects: list[TableObject]) -> Question | None:
    name = _draw_name(random, objects, 0.08)
    return name and where_question(name, objects)


def _draw_exists(random: np.random.Generator, objects: list[TableObject]) -> Question | None:
    name = _draw_name(random, objects, 0.5)
    return name and exists_question(name, objects)


def _draw_relation(random: np.random.Generator, objects: list[TableObject]) -> Question | None:
    named = mentioned(objects)
    if len(named) < 2:
        return None
    first, second = random.choice(len(named), 2, replace=False)
    words = str(random.choice(list(RELATIONS)))
    axis = RELATIONS[words][0]
    if abs(named[first].position[axis] - named[second].position[axis]) < RELATION_GAP:
        return None
    return relation_question(named[first], words, named[second])


def _draw_count(random: np.random.Generator, objects: list[TableObject]) -> Question | None:
    draw = random.random()
    if draw < 0.4:
        return count_question('objects', objects)
    if draw < 0.7:
        return count_question(f'{random.choice(SHAPES)}s', objects)
    colours = [item.colour for item in objects] if random.random() < 0.7 else list(COLOURS)
    return count_question(f'{random.choice(colours)} objects', objects)


def _draw_colour(random: np.random.Generator, objects: list[TableObject]) -> Question | None:
    single = [item for item in mentioned(objects) if sum(other.shape == item.shape for other in objects) == 1]
    return colour_question(single[int(random.integers(len(single)))], objects) if single else None


def _draw_shape(random: np.random.Generator, objects: list[TableObject]) -> Question | None:
    single = [item for item in mentioned(objects) if sum(other.colour == item.colour for other in objects) == 1]
    return shape_question(single[int(random.integers(len(single)))], objects) if single else None


_DRAW: dict[str, Callable[[np.random.Generator, list[TableObject]], Question | None]] = {
    'where': _draw_where, 'relation': _draw_relation, 'exists': _draw_exists, 'count': _draw_count,
    'colour': _draw_colour, 'shape': _draw_shape,
    'leftmost': lambda random, objects: extreme_question('leftmost', objects),
    'rightmost': lambda random, objects: extreme_question('rightmost', objects),
}


def vocabulary() -> list[str]:
    """Return every word of every text of this module, and ','; sorted."""
    templates = (*REACH_INSTRUCTIONS, *REST_INSTRUCTIONS, *NUMBERS, *NAMES, *RELATIONS, *ROWS, *COLUMNS, NOT_HERE,
                 NOTHING, 'i point at the with my left right hand', 'i reach for', 'i rest', 'i go home', 'i see no',
                 'yes no', 'where is the', 'is there a', 'is the', 'how many objects are there',
                 *(f'{shape}s' for shape in SHAPES), 'what colour is the', 'what shape is the object',
                 'what is leftmost rightmost', ',')
    return sorted({word for template in templates for word in template.replace('{}', '').split()})


def read_instruction(text: str) -> tuple[str, str]:
    """
    Return what an instruction asks for: ('reach', name of the object), ('rest', '') or ('', '') if it is none of ours.

    Case, full stops and spaces do not count.
    """
    words = normalise(text)
    if words in REST_INSTRUCTIONS:
        return 'rest', ''
    for template in REACH_INSTRUCTIONS:
        start = template.replace('{}', '')
        if words.startswith(start) and words[len(start):] in NAMES:
            return 'reach', words[len(start):]
    return '', ''


def normalise(text: str) -> str:
    """Return a text in lower case, with single spaces, without marks at its end: answers are compared so."""
    return ' '.join(text.lower().split()).rstrip('.?! ')
