"""What of a memory note is true."""

from __future__ import annotations

from dataclasses import dataclass

from oxygen_ros.simulation.language import NOTHING


@dataclass(frozen=True)
class NoteScore:
    """
    :param true: facts of the note that hold. :param said: facts of the note.
    :param missing: facts that the note should have and has not.
    """

    true: int
    said: int
    missing: int


def score_note(text: str, truth: str) -> NoteScore:
    """
    Compare a note with the true one, fact by fact; a fact is an object with its place ('red cube near left').

    'nothing' is one fact. An object that is named twice counts twice, and is true once.
    """
    said, right = _facts(text), _facts(truth)
    true = sum(min(said.count(fact), 1) for fact in set(said) & set(right))
    return NoteScore(true, len(said), sum(fact not in said for fact in right))


def _facts(text: str) -> list[str]:
    facts = [' '.join(part.split()) for part in text.lower().strip(' .').split(',')]
    return [fact for fact in facts if fact] or [NOTHING]
