"""Finds the notes that have to do with a question, by its words."""

from __future__ import annotations

import math
import re
import sqlite3
from collections import defaultdict

SAMPLE = 100      # newest notes looked at for each word
MOST_WORDS = 12   # of a question

# Words that tell nothing about what is asked for.
_COMMON = frozenset('''
a about after all also am an and any anything are around as at be been before being but by can could did do
does doing earlier ever for from going had has have he her here him his how i if in into is it its just know
last lately me more most my near next no not note notes now of off on once one or our out please recently
remember robot said saw say see seen she should some something tell than that the their them then there these
they thing things this those time to told too up us was we were what when where which who why will with would
you your yesterday ago
'''.split())
_WORD = re.compile(r'\w+')


def key_words(question: str) -> list[str]:
    """Return the words of a question that can tell one note from another, each once, in order."""
    words = dict.fromkeys(word for word in _WORD.findall(question.casefold()) if word not in _COMMON)
    return list(words)[:MOST_WORDS]


def relevant_ids(connection: sqlite3.Connection, question: str, limit: int) -> list[int]:
    """
    Return the ids of the notes that share most with a question, best first; of equal ones the newest.

    A word counts the more the rarer it is. That is estimated from how far apart its newest notes lie, so that the work
    does not grow with the number of notes.
    """
    newest = connection.execute('SELECT coalesce(max(id), 0) FROM notes').fetchone()[0]
    scores: dict[int, float] = defaultdict(float)
    for word in key_words(question):
        ids = [row[0] for row in connection.execute(
            'SELECT rowid FROM note_texts WHERE text MATCH ? ORDER BY rowid DESC LIMIT ?', (_pattern(word), SAMPLE))]
        if not ids:
            continue
        span = newest - (ids[-1] if len(ids) == SAMPLE else 0) + 1
        weight = math.log(1 + span / len(ids))
        for entry_id in ids:
            scores[entry_id] += weight
    best = sorted(scores, key=lambda entry_id: (-scores[entry_id], -entry_id))
    return best[:limit]


def _pattern(word: str) -> str:
    """Return an FTS5 expression for a word in singular and plural; quoted, so that nothing in it is an operator."""
    stem = word[:-1] if len(word) > 3 and word.endswith('s') else word
    return f'"{word}" OR "{stem}" OR "{stem}s"' if len(word) > 2 else f'"{word}"'
