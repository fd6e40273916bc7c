"""Opens the database file of the memory store, whatever state a power loss has left it in."""

from __future__ import annotations

import errno
import os
import sqlite3
from datetime import datetime, timezone
from pathlib import Path

from oxygen_ros.errors import ConfigError, OxygenError

APPLICATION_ID = 0x6F78796D  # 'oxym': marks the file as ours
SCHEMA_VERSION = 2  # 1 had no details and no jumps; a file of it is extended when it is opened

# Rows of times are narrow, so that a search for a time window reads little; the text lies with its index. newest_ns is
# the largest last_seen_ns so far: it never falls from one id to the next, so it leads straight to the start of one. It
# leads to the end as well, as notes that are older than those before them (the clock went back) are in jumps.
# AUTOINCREMENT: an id is never used again, even after its entry was deleted.
SCHEMA = f'''
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS notes(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stamp_ns INTEGER NOT NULL,
    frame_number INTEGER NOT NULL,
    first_seen_ns INTEGER NOT NULL,
    last_seen_ns INTEGER NOT NULL,
    newest_ns INTEGER NOT NULL,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    tf_frame TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS notes_by_time ON notes(newest_ns);
CREATE VIRTUAL TABLE IF NOT EXISTS note_texts USING fts5(text, tokenize = 'unicode61 remove_diacritics 2');
CREATE TABLE IF NOT EXISTS jumps(id INTEGER PRIMARY KEY, first_seen_ns INTEGER NOT NULL);
INSERT OR IGNORE INTO jumps SELECT id, first_seen_ns FROM notes
    WHERE first_seen_ns < newest_ns AND (SELECT user_version FROM pragma_user_version) < {SCHEMA_VERSION};
CREATE TABLE IF NOT EXISTS details(id INTEGER PRIMARY KEY, pose TEXT, thumbnail BLOB, vector BLOB);
CREATE TABLE IF NOT EXISTS totals(entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM totals);
CREATE TRIGGER IF NOT EXISTS note_added AFTER INSERT ON notes BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER IF NOT EXISTS note_deleted AFTER DELETE ON notes BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - old.bytes;
    DELETE FROM note_texts WHERE rowid = old.id;
END;
CREATE TRIGGER IF NOT EXISTS note_resized AFTER UPDATE OF bytes ON notes BEGIN
    UPDATE totals SET bytes = bytes + new.bytes - old.bytes;
END;
CREATE TRIGGER IF NOT EXISTS note_added_late AFTER INSERT ON notes WHEN new.first_seen_ns < new.newest_ns BEGIN
    INSERT INTO jumps VALUES (new.id, new.first_seen_ns);
END;
CREATE TRIGGER IF NOT EXISTS note_with_details_deleted AFTER DELETE ON notes BEGIN
    DELETE FROM details WHERE id = old.id;
    DELETE FROM jumps WHERE id = old.id;
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
'''


class MemoryStoreError(OxygenError):
    """The memory store cannot do what was asked; it stays usable for what is still possible."""


class MemoryUnavailable(MemoryStoreError):
    """The file is locked, or its disk is full: later it may work."""


class MemoryDamaged(MemoryStoreError):
    """The file was damaged, removed or replaced while in use: to open it anew helps."""


def open_database(path: Path, busy_timeout: float) -> tuple[sqlite3.Connection, str]:
    """
    Open or create the database; a damaged file is moved aside, kept, and replaced by a new one.

    :param busy_timeout: seconds to wait for another process that is writing.
    :returns: the connection (autocommit, usable from every thread), and a warning if a file was moved aside, else ''.
    :raises ConfigError: when the file is a sound database of another program, or of a newer version of this one.
    :raises MemoryStoreError: when the file cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _open_sound(path, busy_timeout), ''
        except sqlite3.OperationalError:
            raise  # locked, full, not writable: the file itself may be fine
        except sqlite3.DatabaseError as error:
            aside = move_aside(path)
            reason = ' '.join(str(error).split())
            warning = f'memory {path} was damaged ({reason}): it is kept as {aside}, and memory starts empty'
            return _open_sound(path, busy_timeout), warning
    except (OSError, sqlite3.Error) as error:
        kind = MemoryUnavailable if is_passing(error) else MemoryStoreError
        raise kind(f'memory {path} cannot be opened ({error}): '
                   'check path, permissions, free space and other programs that use it') from error


def is_passing(error: Exception) -> bool:
    """Whether an error may go away by itself."""
    text = str(error)
    return isinstance(error, sqlite3.OperationalError) and any(
        word in text for word in ('locked', 'is full', 'disk I/O error')) or isinstance(error, OSError) and (
        error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO))


def _open_sound(path: Path, busy_timeout: float) -> sqlite3.Connection:
    """Open, check and set up the database; a damaged one raises sqlite3.DatabaseError itself, not a subclass."""
    connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
    try:
        problem = connection.execute('PRAGMA quick_check(1)').fetchone()[0]
        if problem != 'ok':
            raise sqlite3.DatabaseError(problem)
        _check_owner(connection, path)
        # Survives a killed process; a power loss may cost the last notes, never the file.
        connection.execute('PRAGMA journal_mode = WAL')
        connection.execute('PRAGMA synchronous = NORMAL')
        connection.executescript(SCHEMA)
        return connection
    except BaseException:
        connection.close()
        raise


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    application, version = (connection.execute(f'PRAGMA {name}').fetchone()[0]
                            for name in ('application_id', 'user_version'))
    tables = connection.execute('SELECT count(*) FROM sqlite_master').fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise ConfigError(f'memory {path} is a database of another program: choose another path; nothing was changed')
    if version > SCHEMA_VERSION:
        raise ConfigError(f'memory {path} has version {version}, this program knows {SCHEMA_VERSION}: '
                          'update oxygen_ros or choose another path; nothing was changed')


def move_aside(path: Path) -> Path:
    """Rename a damaged database, and the journal files that belong to it; return the new path."""
    stamp = datetime.now(timezone.utc).strftime('%Y%m%dT%H%M%S')
    aside, number = path.with_name(f'{path.name}.damaged-{stamp}'), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f'{path.name}.damaged-{stamp}-{number}')
    for suffix in ('-wal', '-shm'):  # first: a new database must never meet an old journal
        if os.path.exists(f'{path}{suffix}'):
            os.rename(f'{path}{suffix}', f'{aside}{suffix}')
    os.rename(path, aside)
    return aside
