"""
Opens one storage file of a recording: mcap or sqlite3, whole, zstd-compressed, cut off, with a write-ahead log.

The PyPI library `rosbags` reads the file where it can. An mcap file that it refuses (cut off, another profile) or may
deliver out of order (without an index) is scanned instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path

import zstandard
from rosbags.interfaces import MessageDefinitionFormat
from rosbags.rosbag2 import Reader

from oxygen_ros.errors import BagError
from oxygen_ros.replay.recorded import ZSTD_MAGIC, Channel, Message, StorageFile, full_type, one_line, plain
from oxygen_ros.replay.scanned_mcap import MCAP_MAGIC, ScannedMcap

SQLITE_MAGIC = b'SQLite format 3\0'
DEFINITION_FORMATS = {MessageDefinitionFormat.MSG: 'ros2msg', MessageDefinitionFormat.IDL: 'ros2idl'}


def open_storage(path: Path, scratch: Callable[[], Path]) -> StorageFile:
    """
    Open a storage file, told apart by its first bytes.

    :param scratch: returns a folder for temporary files; called only when one is needed (zstd, write-ahead log).
    :raises BagError: with the name of the file and the reason.
    """
    try:
        note = ''
        head = _head(path)
        if head.startswith(ZSTD_MAGIC):
            original, path = path, scratch() / path.stem
            if not _decompress(original, path):
                note = f'{original.name} is cut off or damaged, it is played up to there'
            head = _head(path)
        if head.startswith(MCAP_MAGIC):
            storage = _open_mcap(path)
        elif head.startswith(SQLITE_MAGIC):
            storage = LibraryFile(_checkpointed(path, scratch))
        else:
            raise BagError(f'{path} is no recording: {_describe(head)}')
    except OSError as error:
        raise BagError(f'cannot read {path}: {error.strerror or error}') from error
    storage.notes += [note] if note else []
    return storage


def _head(path: Path) -> bytes:
    with path.open('rb') as file:
        return file.read(64)


def _describe(head: bytes) -> str:
    if not head:
        return 'the file is empty (0 bytes), so the recorder wrote nothing or a copy failed; copy it again'
    if head.startswith(b'version https://'):
        return 'it looks like a Git LFS pointer; fetch the file itself with "git lfs pull"'
    if head.startswith(b'#ROSBAG'):
        return 'it is a ROS 1 bag; convert it with "rosbags-convert --src FILE --dst FOLDER"'
    return f'it begins with {head[:16]!r}, which is neither mcap nor sqlite3 (.db3)'


def _decompress(source: Path, target: Path) -> bool:
    """Decompress a zstd file as far as possible. Returns whether its end was reached."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    with source.open('rb') as compressed, target.open('wb') as sink:
        try:
            while block := compressed.read(1 << 20):
                sink.write(decompressor.decompress(block))
                while decompressor.eof and (rest := decompressor.unused_data):  # several frames in one file
                    decompressor = zstandard.ZstdDecompressor().decompressobj()
                    sink.write(decompressor.decompress(rest))
        except zstandard.ZstdError:
            return False
    return decompressor.eof


def _checkpointed(path: Path, scratch: Callable[[], Path]) -> Path:
    """Return the database, or a copy that includes its write-ahead log, which a killed recorder leaves behind."""
    log = path.with_name(path.name + '-wal')
    if not log.exists() or not log.stat().st_size:
        return path
    copy = scratch() / path.name
    copy.write_bytes(path.read_bytes())
    copy.with_name(log.name).write_bytes(log.read_bytes())
    try:
        with closing(sqlite3.connect(copy)) as database:
            database.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    except sqlite3.Error as error:
        raise BagError(f'cannot read {path} with its write-ahead log {log.name}: {error}') from error
    return copy


def _open_mcap(path: Path) -> StorageFile:
    try:
        storage = LibraryFile(path)
    except BagError:
        return ScannedMcap(path)
    if storage.ordered:
        return storage
    storage.close()
    return ScannedMcap(path)


class LibraryFile:
    """A storage file read by `rosbags`. The file is opened alone, so that metadata.yaml cannot mislead the library."""

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self._name = path.name
        self._reader = Reader(path)
        try:
            self._reader.open()
        except Exception as error:  # ReaderError, but also KeyError, struct.error, apsw errors for damaged files
            raise BagError(f'{path} is damaged or no recording: {one_line(error)}') from error
        self.channels = [
            Channel(connection.topic, full_type(connection.msgtype), connection.msgcount,
                    tuple(connection.ext.offered_qos_profiles), connection.msgdef.data,
                    DEFINITION_FORMATS.get(connection.msgdef.format, ''), connection.ext.serialization_format)
            for connection in self._reader.connections]
        empty = not self._reader.message_count
        self.start_ns = None if empty else self._reader.start_time
        self.end_ns = None if empty else self._reader.end_time - 1

    @property
    def ordered(self) -> bool:
        """Whether the library delivers in time order: not for an mcap file with messages but without indexed chunks."""
        return bool(getattr(self._reader.storage, 'chunks', True)) or self.start_ns is None

    def messages(self, topics: Collection[str]) -> Iterator[Message]:
        connections = [connection for connection in self._reader.connections if connection.topic in topics]
        if not connections:
            return  # to the library, no connections means all
        try:
            for connection, time_ns, data in self._reader.messages(connections):
                yield Message(time_ns, connection.topic, full_type(connection.msgtype), plain(data))
        except Exception as error:  # see above: damage shows as many kinds of error
            self.notes.append(f'{self._name} is damaged, the messages behind that point are lost: {one_line(error)}')

    def close(self) -> None:
        self._reader.close()
