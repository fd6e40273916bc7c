"""The demo's own script: what it tells and asks in the simulator, made for the scene that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxygen_ros.simulation import language
from oxygen_ros.simulation.objects import TableObject

QUESTIONS = 2  # with each instruction
DRAWN = 8  # questions to choose from


@dataclass(frozen=True)
class Part:
    """
    An instruction with the questions that come while it is followed.

    :param recall: what is asked of memory at its end, as a line; empty for nothing.
    """

    instruction: str
    questions: tuple[str, ...]
    recall: str = ''


def write_script(objects: Sequence[TableObject], seed: int) -> tuple[Part, ...]:
    """
    Return the script for a scene: reach for two objects, for one that is not there, and rest.

    :param objects: what is on the table, with the pixels that the head camera sees of each.
    :param seed: equal seeds are equal scripts.
    """
    random = np.random.default_rng([seed, 7])
    named = language.mentioned(objects) or list(objects)
    first = named[int(random.integers(len(named)))]
    others = [item for item in named if item is not first]
    far = [item for item in others if item.arm != first.arm]  # with the other hand, rather
    second = (far or others or [first])[0]
    absent = language.draw_absent(random, objects)
    drawn = [f'{question.question}?' for question in language.draw_questions(random, objects, DRAWN) if question.clear]
    own = {2: f'is there a {absent}?'}
    templates = random.permutation(language.REACH_INSTRUCTIONS)
    told = [template.format(item) for template, item in zip(templates, (first.name, second.name, absent))]
    parts = []
    for number, instruction in enumerate((*told, str(random.choice(language.REST_INSTRUCTIONS)))):
        questions = [own[number]] if number in own else []
        while drawn and len(questions) < QUESTIONS:
            questions.append(drawn.pop(0))
        parts.append(Part(instruction, tuple(questions), f'remember {first.name}?' if number == 3 else ''))
    return tuple(parts)
