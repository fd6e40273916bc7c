"""Rows of the database of notes, and the values that go into it and come out."""

from __future__ import annotations

import itertools
import json
import operator
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oxygen_ros.memory.database import MemoryStoreError
from oxygen_ros.memory.entry import Entry, Pose

MOST_WORDS, LONGEST_QUERY = 64, 4000  # words and characters of one query
INT64 = (-2**63, 2**63 - 1)


def entries(connection: sqlite3.Connection, source: str, *values: object) -> list[Entry]:
    """Return the entries of a source of rows, without pose and picture."""
    columns = 'n.id, t.text, n.stamp_ns, n.frame_number, n.first_seen_ns, n.last_seen_ns, n.count, n.tf_frame'
    return [Entry(*row) for row in connection.execute(f'SELECT {columns} FROM {source}', values)]


def detailed(connection: sqlite3.Connection, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with their poses."""
    ids = [entry.entry_id for entry in entries]
    poses = dict(connection.execute(f'SELECT id, pose FROM details WHERE id IN ({_marks(ids)})', ids))
    return [replace(entry, pose=pose_of(poses.get(entry.entry_id))) for entry in entries]


def pictured(connection: sqlite3.Connection, entries: Sequence[Entry], most_bytes: int) -> list[Entry]:
    """Return the entries with the pictures of the first ones, as many as have so many bytes together."""
    ids = [entry.entry_id for entry in entries]
    sizes = dict(connection.execute('SELECT id, length(thumbnail) FROM details WHERE length(thumbnail) > 0 AND '
                                    f'id IN ({_marks(ids)})', ids))
    totals = itertools.accumulate(sizes.get(entry_id, 0) for entry_id in ids)
    fit = [entry_id for entry_id, total in zip(ids, totals) if total <= most_bytes]
    pictures = dict(connection.execute(f'SELECT id, thumbnail FROM details WHERE id IN ({_marks(fit)})', fit))
    return [replace(entry, thumbnail=pictures.get(entry.entry_id) or b'',
                    picture_left_out=entry.entry_id in sizes and entry.entry_id not in pictures) for entry in entries]


def _marks(values: Sequence[object]) -> str:
    return ', '.join('?' * len(values))


def pose_text(pose: Pose | None) -> str | None:
    """Return a pose as it is stored."""
    return None if pose is None else json.dumps([clean(pose.frame), *pose.position, *pose.orientation])


def pose_of(text: str | None) -> Pose | None:
    """Return a pose that was stored."""
    if text is None:
        return None
    frame, *numbers = json.loads(text)
    return Pose(frame, tuple(numbers[:3]), tuple(numbers[3:]))


def id_of(connection: sqlite3.Connection, query: str, value: int) -> int | None:
    """Return the id that a query gives for a value; None without one."""
    row = connection.execute(query, (value,)).fetchone()
    return row and row[0]


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells the file at a path from any other; None when there is none, or it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def match_all(words: str) -> str:
    """Return an FTS5 expression that asks for every word: each is quoted, so that nothing in it is an operator."""
    if len(words) > LONGEST_QUERY:  # not even split
        raise MemoryStoreError(f'{len(words)} characters are too many to search for: at most {LONGEST_QUERY}')
    quoted = ['"' + word.replace('"', '""') + '"' for word in clean(words).split()]
    if len(quoted) > MOST_WORDS:
        raise MemoryStoreError(f'{len(quoted)} words are too many to search for: at most {MOST_WORDS}')
    return ' '.join(quoted)


def clean(text: str) -> str:
    """Return text that UTF-8 can carry: pairs of surrogates joined, lone ones and NUL replaced by U+FFFD."""
    return text.encode('utf-16-le', 'surrogatepass').decode('utf-16-le', 'replace').replace('\0', '\ufffd')


def int64(name: str, value: int) -> int:
    """Return the value as a plain int (SQLite would store NumPy's as bytes)."""
    value = operator.index(value)
    if not INT64[0] <= value <= INT64[1]:
        raise MemoryStoreError(f'{name} {value} does not fit into 64 bits')
    return value
