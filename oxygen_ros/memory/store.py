"""The notes of the robot: kept over restarts, searchable by words and time (SQLite with FTS5)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from oxygen_ros.memory import rows
from oxygen_ros.memory.database import MemoryDamaged, MemoryStoreError, MemoryUnavailable, is_passing, open_database
from oxygen_ros.memory.entry import Entry, Pose
from oxygen_ros.memory.recall import relevant_ids

LARGEST_LIMIT = 1000  # entries of one query
MOST_PICTURE_BYTES = 8 << 20  # of one query, before it fills memory and network
MOST_DELETED = 100  # with one note, when a limit was lowered

# CROSS JOIN keeps SQLite to this order of the tables, which reads only the newest rows that are needed.
BY_ID = 'notes n CROSS JOIN note_texts t ON t.rowid = n.id'
BY_WORDS = 'note_texts t CROSS JOIN notes n ON n.id = t.rowid'


class MemoryStore:
    """
    Notes in one file. May be used from every thread, one call runs at a time.

    Newest means noted last: the order of `add`, which a clock that goes back cannot disturb. A note survives the end of
    the process, by `kill -9` too, once `add` has returned.

    :param path: database file; folders are created.
    :param max_entries: beyond, the oldest entries are deleted.
    :param max_age_ns: the oldest entries are deleted when last seen so long before the note being added; None: never.
    :param max_bytes: the oldest entries are deleted when all texts (UTF-8) and pictures take more; for texts the file
        takes about three times that. The newest entry always stays.
    :param busy_timeout: seconds that a call may wait for another process that writes to the file.
    :ivar warning: says that a damaged file was moved aside, and where it is; empty if none was.
    :raises ConfigError: the file belongs to another program, or to a newer version.
    :raises MemoryStoreError: the file cannot be opened.
    """

    def __init__(self, path: str | Path, *, max_entries: int = 100_000, max_age_ns: int | None = None,
                 max_bytes: int = 100_000_000, busy_timeout: float = 1.0) -> None:
        if max_entries < 1 or max_bytes < 1 or (max_age_ns is not None and max_age_ns < 1):
            raise ValueError('max_entries, max_age_ns and max_bytes must be positive')
        self.path = Path(path).expanduser()
        self._max_entries = max_entries
        self._max_age_ns = max_age_ns
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None
        self._connection, self.warning = open_database(self.path, busy_timeout)
        self._identity = rows.identity(self.path)

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Later calls raise MemoryStoreError; closing again does nothing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def count(self) -> int:
        """
        Number of entries.

        :raises MemoryStoreError: when memory cannot be read.
        """
        with self._transaction('count the notes', 'DEFERRED') as connection:
            return connection.execute('SELECT entries FROM totals').fetchone()[0]

    def add(self, text: str, stamp_ns: int, frame_number: int, tf_frame: str = '', *, thumbnail: bytes = b'',
            pose: Pose | None = None) -> Entry:
        """
        Store a note, or count it if it says the same as the note before.

        A note from before the first observation of that entry (the clock went back) gets an entry of its own.

        :param text: not blank. NUL and lone halves of surrogate pairs, which no message can carry, become U+FFFD.
        :param stamp_ns: of the observation that the note is about, as is all that follows.
        :param thumbnail: a small picture of it, JPEG. :param pose: where the robot was.
        :returns: the entry as it is stored now.
        :raises MemoryStoreError: when it cannot be stored; nothing is changed then.
        """
        text, tf_frame = rows.clean(text), rows.clean(tf_frame)
        stamp_ns, frame_number = rows.int64('stamp_ns', stamp_ns), rows.int64('frame_number', frame_number)
        if not text.strip():
            raise MemoryStoreError('a blank note is not stored')
        if self._connection is not None and rows.identity(self.path) != self._identity:
            # SQLite would go on writing to the file without a name, and all would be lost at the end.
            raise MemoryDamaged(f'memory {self.path}: cannot add a note, the file was removed or replaced while in '
                                'use: put it back, or open it anew to begin another')
        with self._transaction('add a note', 'IMMEDIATE') as connection:
            row = {'stamp': stamp_ns, 'number': frame_number, 'tf': tf_frame,
                   'bytes': len(text.encode()) + len(thumbnail)}
            last = rows.entries(connection, f'{BY_ID} ORDER BY n.id DESC LIMIT 1')
            if last and last[0].text == text and stamp_ns >= last[0].first_seen_ns:
                entry_id = last[0].entry_id
                connection.execute(
                    'UPDATE notes SET stamp_ns = :stamp, frame_number = :number, tf_frame = :tf, bytes = :bytes, '
                    'count = count + 1, '
                    'last_seen_ns = max(last_seen_ns, :stamp), newest_ns = max(newest_ns, :stamp) WHERE id = :id',
                    {**row, 'id': entry_id})
            else:
                entry_id = connection.execute(
                    'INSERT INTO notes(stamp_ns, first_seen_ns, last_seen_ns, frame_number, tf_frame, count, bytes, '
                    'newest_ns) VALUES (:stamp, :stamp, :stamp, :number, :tf, 1, :bytes, '
                    'max(:stamp, (SELECT coalesce(max(newest_ns), :stamp) FROM notes)))', row).lastrowid
                connection.execute('INSERT INTO note_texts(rowid, text) VALUES (?, ?)', (entry_id, text))
            if thumbnail or pose is not None:
                connection.execute('INSERT INTO details(id, pose, thumbnail) VALUES (?, ?, ?) ON CONFLICT(id) DO '
                                   'UPDATE SET pose = excluded.pose, thumbnail = excluded.thumbnail',
                                   (entry_id, rows.pose_text(pose), thumbnail))
            elif last and last[0].entry_id == entry_id:  # what is kept is of the same observation as the stamp
                connection.execute("UPDATE details SET pose = NULL, thumbnail = x'' WHERE id = ?", (entry_id,))
            self._retain(connection, stamp_ns)
            entry, = rows.detailed(connection, rows.entries(connection, f'{BY_ID} WHERE n.id = ?', entry_id))
            return replace(entry, thumbnail=thumbnail)

    def query(self, words: str = '', from_ns: int | None = None, to_ns: int | None = None,
              limit: int = 20) -> list[Entry]:
        """
        Return entries without their pictures, newest first.

        :param words: all of them must be in the note, in any order; case, accents and punctuation do not matter. Empty
            matches every note, punctuation alone matches none.
        :param from_ns: only entries last seen at or after this; to_ns: only those first seen at or before that.
        :param limit: most entries, at least 1; never more than LARGEST_LIMIT are returned.
        :raises MemoryStoreError: when memory cannot be read, or the request makes no sense.
        """
        if limit < 1:
            raise MemoryStoreError(f'limit {limit} must be at least 1')
        from_ns = None if from_ns is None else rows.int64('from_ns', from_ns)
        to_ns = None if to_ns is None else rows.int64('to_ns', to_ns)
        match = rows.match_all(words)
        with self._transaction('search memory', 'DEFERRED') as connection:
            # Every entry of the time window lies between these ids; looking them up spares reading the texts outside.
            first, last = rows.INT64
            if from_ns is not None:
                first = rows.id_of(
                    connection, 'SELECT id FROM notes WHERE newest_ns >= ? ORDER BY newest_ns, id LIMIT 1', from_ns)
            if to_ns is not None:
                last = self._last_id(connection, to_ns)
            if first is None:
                return []
            low, high = rows.INT64
            window = (first, last, low if from_ns is None else from_ns, high if to_ns is None else to_ns)
            within = 'BETWEEN ? AND ? AND n.last_seen_ns >= ? AND n.first_seen_ns <= ?'
            limit = min(limit, LARGEST_LIMIT)
            if match:
                found = rows.entries(connection, f'{BY_WORDS} WHERE t.text MATCH ? AND t.rowid {within} '
                                     'ORDER BY t.rowid DESC LIMIT ?', match, *window, limit)
            else:
                found = rows.entries(connection, f'{BY_ID} WHERE n.id {within} ORDER BY n.id DESC LIMIT ?', *window,
                                     limit)
            return rows.detailed(connection, found)

    def recall(self, question: str, limit: int = 5) -> list[Entry]:
        """
        Return the entries that have to do with a question, most relevant first; see `recall.relevant_ids`.

        :raises MemoryStoreError: when memory cannot be read.
        """
        with self._transaction('search memory', 'DEFERRED') as connection:
            return self._by_ids(connection, relevant_ids(connection, rows.clean(question), limit))

    def by_ids(self, ids: Sequence[int]) -> list[Entry]:
        """
        Return entries in the order of their ids here; those that are gone are left out.

        :raises MemoryStoreError: when memory cannot be read.
        """
        with self._transaction('search memory', 'DEFERRED') as connection:
            return self._by_ids(connection, ids)

    def with_pictures(self, entries: Sequence[Entry], most_bytes: int = MOST_PICTURE_BYTES) -> list[Entry]:
        """
        Return the entries with their pictures, from the first one on until these are so many bytes.

        :raises MemoryStoreError: when memory cannot be read.
        """
        with self._transaction('read the pictures', 'DEFERRED') as connection:
            return rows.pictured(connection, entries, most_bytes)

    def without_vector(self, limit: int) -> list[tuple[int, str]]:
        """
        Return ids and texts of entries that have no vector yet, newest first.

        :raises MemoryStoreError: when memory cannot be read.
        """
        with self._transaction('read the notes', 'DEFERRED') as connection:
            return connection.execute(
                f'SELECT n.id, t.text FROM {BY_ID} LEFT JOIN details d ON d.id = n.id WHERE d.vector IS NULL '
                'ORDER BY n.id DESC LIMIT ?', (limit,)).fetchall()

    def set_vectors(self, vectors: Iterable[tuple[int, bytes]]) -> None:
        """
        Store the vectors of entries; of those that are gone nothing is kept.

        :raises MemoryStoreError: when they cannot be stored.
        """
        with self._transaction('store vectors', 'IMMEDIATE') as connection:
            connection.executemany(
                'INSERT INTO details(id, vector) SELECT id, ?2 FROM notes WHERE id = ?1 '
                'ON CONFLICT(id) DO UPDATE SET vector = excluded.vector', vectors)

    def vectors(self) -> list[tuple[int, bytes]]:
        """
        Return the vectors of all entries that have one, oldest first.

        :raises MemoryStoreError: when memory cannot be read.
        """
        with self._transaction('read the vectors', 'DEFERRED') as connection:
            return connection.execute('SELECT id, vector FROM details WHERE vector IS NOT NULL ORDER BY id').fetchall()

    @staticmethod
    def _last_id(connection: sqlite3.Connection, to_ns: int) -> int:
        """Return an id behind which every note was first seen after a time."""
        behind = rows.id_of(
            connection, 'SELECT id FROM notes WHERE newest_ns > ? ORDER BY newest_ns, id LIMIT 1', to_ns)
        late = rows.id_of(connection, 'SELECT max(id) FROM jumps WHERE first_seen_ns <= ?', to_ns)
        return rows.INT64[1] if behind is None else max(behind, late or 0)

    @staticmethod
    def _by_ids(connection: sqlite3.Connection, ids: Sequence[int]) -> list[Entry]:
        marks = ', '.join('?' * len(ids))
        found = {entry.entry_id: entry for entry in rows.entries(connection, f'{BY_ID} WHERE n.id IN ({marks})', *ids)}
        return rows.detailed(connection, [found[i] for i in ids if i in found])

    def _retain(self, connection: sqlite3.Connection, now_ns: int) -> None:
        """Delete the oldest entries until the rest is within number, age and bytes; a few at a time, to stay quick."""
        for _ in range(MOST_DELETED):
            entries, size = connection.execute('SELECT entries, bytes FROM totals').fetchone()
            oldest, seen_ns = connection.execute('SELECT id, last_seen_ns FROM notes ORDER BY id LIMIT 1').fetchone()
            expired = self._max_age_ns is not None and seen_ns < now_ns - self._max_age_ns
            if entries == 1 or not (entries > self._max_entries or size > self._max_bytes or expired):
                return
            connection.execute('DELETE FROM notes WHERE id = ?', (oldest,))

    @contextmanager
    def _transaction(self, what: str, kind: str) -> Iterator[sqlite3.Connection]:
        """Run a block alone and as a whole or not at all; turn every error of SQLite into a MemoryStoreError."""
        with self._lock:
            connection = self._connection
            if connection is None:
                raise MemoryStoreError(f'memory {self.path} is closed: cannot {what}')
            try:
                connection.execute(f'BEGIN {kind}')
                yield connection
                connection.execute('COMMIT')
            except sqlite3.OperationalError as error:
                kind = MemoryUnavailable if is_passing(error) else MemoryStoreError
                raise kind(f'memory {self.path}: cannot {what} ({error}): '
                           'check free space, permissions and other programs that use it') from error
            except sqlite3.Error as error:
                raise MemoryDamaged(f'memory {self.path}: cannot {what} ({error}): '
                                    'a restart moves a damaged file aside') from error
            finally:
                if connection.in_transaction:
                    connection.rollback()
