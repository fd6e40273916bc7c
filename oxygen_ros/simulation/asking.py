"""Finds out which question about a scene a person means, and so what the right answer is."""

from __future__ import annotations

from collections.abc import Sequence

from oxygen_ros.simulation import language
from oxygen_ros.simulation.dataset import Question
from oxygen_ros.simulation.objects import COLOURS, SHAPES, TableObject


def read_question(text: str, objects: Sequence[TableObject]) -> Question | None:
    """
    Return the question that a text asks, with the right answer; case and marks at its end do not count.

    :param objects: what is on the table, with the pixels that the head camera sees of each.
    :returns: None if it is none that the policy was trained on, or one that makes no sense here.
    """
    words = language.normalise(text)
    for start, ask in (('where is the ', language.where_question), ('is there a ', language.exists_question)):
        if words.startswith(start) and words[len(start):] in language.NAMES:
            return ask(words[len(start):], objects)
    if words.startswith('is the '):
        return _relation(words[len('is the '):], objects)
    if words.startswith('how many ') and words.endswith(' are there'):
        which = words[len('how many '):-len(' are there')]
        known = {'objects', *(f'{shape}s' for shape in SHAPES), *(f'{colour} objects' for colour in COLOURS)}
        return language.count_question(which, objects) if which in known else None
    for shape in SHAPES:
        alike = [item for item in language.mentioned(objects) if item.shape == shape]
        if words == f'what colour is the {shape}' and len(alike) == 1:
            return language.colour_question(alike[0], objects)
    for colour in COLOURS:
        alike = [item for item in language.mentioned(objects) if item.colour == colour]
        if words == f'what shape is the {colour} object' and len(alike) == 1:
            return language.shape_question(alike[0], objects)
    for kind in ('leftmost', 'rightmost'):
        if words == f'what is {kind}':
            return language.extreme_question(kind, objects)
    return None


def _relation(words: str, objects: Sequence[TableObject]) -> Question | None:
    """Read 'red cube left of the blue ball'."""
    there = {item.name: item for item in language.mentioned(objects)}
    for relation in language.RELATIONS:
        first, found, second = words.partition(f' {relation} the ')
        if found and first in there and second in there and first != second:
            return language.relation_question(there[first], relation, there[second])
    return None
