"""
One storage file of a recording: an .mcap or .db3 file, whole, zstd-compressed or cut off.

The PyPI library `rosbags` reads the file where it can. An mcap file that it refuses (cut off, without an index, another
profile) is scanned record by record with the library `mcap`.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import EndOfFile, McapError
from mcap.opcode import Opcode
from mcap.records import Channel as McapChannel
from mcap.records import Chunk, Schema
from mcap.records import Message as McapMessage
from mcap.stream_reader import breakup_chunk
from rosbags.interfaces import MessageDefinitionFormat, Qos
from rosbags.rosbag2 import Reader
from rosbags.rosbag2.metadata import parse_qos

from oxygen_ros.errors import BagError

MCAP_MAGIC = b'\x89MCAP0\r\n'
SQLITE_MAGIC = b'SQLite format 3\0'
ZSTD_MAGIC = b'\x28\xb5\x2f\xfd'

# What reading a damaged mcap record can raise (wrong checksum, lz4 and zstd errors, text that is no UTF-8, ...).
DAMAGE = (McapError, ValueError, EOFError, RuntimeError, struct.error, zstandard.ZstdError)


class Message(NamedTuple):
    """One recorded message: log time in ns, topic, type ('pkg/msg/Name'), serialized CDR bytes."""

    time_ns: int
    topic: str
    type: str
    data: bytes


@dataclass(frozen=True)
class Channel:
    """What one file holds of one topic. `definition` is the text of the message definition ('' if not stored)."""

    topic: str
    type: str
    count: int
    qos: tuple[Qos, ...] = ()
    definition: str = ''
    definition_format: str = ''


class StorageFile(Protocol):
    """An open storage file. `start_ns` and `end_ns` are the first and the last log time, None when it is empty."""

    channels: list[Channel]
    start_ns: int | None
    end_ns: int | None
    notes: list[str]

    def messages(self, topics: Collection[str] | None) -> Iterator[Message]:
        """Yield the CDR messages of these topics (None: all) in log time order, equal times in file order."""

    def close(self) -> None:
        """Close the file."""


def open_storage(path: Path, scratch: Callable[[], Path]) -> StorageFile:
    """
    Open a storage file, told apart by its first bytes.

    :param scratch: returns a folder for temporary files; called only when one is needed (zstd, write-ahead log).
    :raises BagError: with the name of the file and the reason.
    """
    try:
        with path.open('rb') as file:
            head = file.read(64)
        if head.startswith(ZSTD_MAGIC):
            path, whole = _decompressed(path, scratch() / path.stem)
            with path.open('rb') as file:
                head = file.read(64)
            note = '' if whole else f'{path.name} was decompressed only up to the point where it is cut off'
        else:
            note = ''
        if head.startswith(MCAP_MAGIC):
            storage = _open_mcap(path)
        elif head.startswith(SQLITE_MAGIC):
            storage = LibraryFile(_checkpointed(path, scratch), path.name)
        else:
            raise BagError(f'{path} is no recording: {_describe(head)}')
    except OSError as error:
        raise BagError(f'cannot read {path}: {error.strerror or error}') from error
    if note:
        storage.notes.append(note)
    return storage


def _describe(head: bytes) -> str:
    if not head:
        return 'the file is empty (0 bytes), so the recorder wrote nothing or the copy failed; copy it again'
    if head.startswith(b'version https://'):
        return 'it looks like a Git LFS pointer; fetch the file itself with "git lfs pull"'
    if head.startswith(b'#ROSBAG'):
        return 'it is a ROS 1 bag; convert it with "rosbags-convert --src FILE --dst FOLDER"'
    return f'it begins with {head[:16]!r}, which is neither mcap nor sqlite3 (.db3)'


def _decompressed(path: Path, target: Path) -> tuple[Path, bool]:
    """Decompress a zstd file. Returns the new file and whether the end was reached."""
    with path.open('rb') as source, target.open('wb') as sink:
        try:
            for block in zstandard.ZstdDecompressor().read_to_iter(source):
                sink.write(block)
        except zstandard.ZstdError:
            return target, False
    return target, True


def _checkpointed(path: Path, scratch: Callable[[], Path]) -> Path:
    """Return the database, or a copy that includes its write-ahead log, which a killed recorder leaves behind."""
    log = path.with_name(path.name + '-wal')
    if not log.exists() or not log.stat().st_size:
        return path
    copy = scratch() / path.name
    copy.write_bytes(path.read_bytes())
    copy.with_name(copy.name + '-wal').write_bytes(log.read_bytes())
    with closing(sqlite3.connect(copy)) as database:
        database.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    return copy


def _open_mcap(path: Path) -> StorageFile:
    try:
        storage = LibraryFile(path, path.name)
    except BagError:
        return ScannedMcap(path)
    if storage.channels and not storage.indexed:
        storage.close()
        return ScannedMcap(path)  # the library delivers an unindexed file only if it happens to be in time order
    return storage


class LibraryFile:
    """A storage file read by `rosbags`. The file is opened alone, so that metadata.yaml cannot mislead the library."""

    def __init__(self, path: Path, name: str) -> None:
        self.notes: list[str] = []
        self._name = name
        self._reader = Reader(path)
        try:
            self._reader.open()
        except Exception as error:  # ReaderError, but also KeyError, struct.error, apsw errors for damaged files
            raise BagError(f'cannot read {path}: {_one_line(error)}') from error
        self.channels = []
        self._connections = []
        for connection in self._reader.connections:
            encoding = connection.ext.serialization_format
            if encoding != 'cdr':
                self.notes.append(f'{name}: {connection.topic} is left out, its serialization is {encoding!r}, not cdr')
                continue
            definition = connection.msgdef
            self._connections.append(connection)
            self.channels.append(Channel(
                connection.topic, connection.msgtype, connection.msgcount, tuple(connection.ext.offered_qos_profiles),
                definition.data, {MessageDefinitionFormat.MSG: 'ros2msg',
                                  MessageDefinitionFormat.IDL: 'ros2idl'}.get(definition.format, '')))
        empty = not self._reader.message_count
        self.start_ns = None if empty else self._reader.start_time
        self.end_ns = None if empty else self._reader.end_time - 1

    @property
    def indexed(self) -> bool:
        """Whether messages come in time order (always so in sqlite3)."""
        return bool(getattr(self._reader.storage, 'chunks', True))

    def messages(self, topics: Collection[str] | None) -> Iterator[Message]:
        connections = [c for c in self._connections if topics is None or c.topic in topics]
        if not connections:
            return
        try:
            for connection, time_ns, data in self._reader.messages(connections):
                yield Message(time_ns, connection.topic, connection.msgtype, _plain(data))
        except Exception as error:  # see above: damage shows as many kinds of error
            self.notes.append(f'{self._name} is damaged, the messages after this point are lost: {_one_line(error)}')

    def close(self) -> None:
        self._reader.close()


class _Place(NamedTuple):
    """Where a message lies in a scanned file. Sorts by time, then by place in the file."""

    time_ns: int
    record: int
    index: int
    channel: int


class ScannedMcap:
    """
    An mcap file read without its index, up to the point where it is cut off.

    Opening reads the whole file once and remembers the place of every message. A chunk that is not complete is lost.
    """

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self._name = path.name
        self._places: list[_Place] = []
        self._names: dict[int, tuple[str, str]] = {}
        self._chunk: tuple[int, list[McapMessage]] = (-1, [])
        self._file = path.open('rb')
        try:
            channels, schemas = self._scan()
        except BaseException:
            self._file.close()
            raise
        counts = Counter(place.channel for place in self._places)
        self.channels = []
        encodings = set()
        for identity, channel in sorted(channels.items()):
            schema = schemas.get(channel.schema_id)
            if channel.message_encoding != 'cdr' or schema is None:
                encodings.add(channel.message_encoding)
                self.notes.append(f'{path.name}: {channel.topic} is left out, its messages are '
                                  f'{channel.message_encoding!r}, not cdr of ROS 2')
                continue
            self._names[identity] = channel.topic, schema.name
            self.channels.append(Channel(channel.topic, schema.name, counts[identity],
                                         _qos(channel.metadata.get('offered_qos_profiles', '')),
                                         schema.data.decode(errors='replace'), schema.encoding))
        if encodings and not self.channels:
            self._file.close()
            raise BagError(f'{path} is an mcap file without ROS 2 messages: they are encoded as '
                           f'{", ".join(sorted(map(repr, encodings)))}, and cdr is needed')
        self._places = sorted(place for place in self._places if place.channel in self._names)
        self.start_ns = self._places[0].time_ns if self._places else None
        self.end_ns = self._places[-1].time_ns if self._places else None

    def _scan(self) -> tuple[dict[int, McapChannel], dict[int, Schema]]:
        channels: dict[int, McapChannel] = {}
        schemas: dict[int, Schema] = {}
        size = self._file.seek(0, os.SEEK_END)
        position, reason = len(MCAP_MAGIC), ''
        while not reason:
            try:
                opcode, end = self._head(position)
                if opcode == Opcode.FOOTER:
                    break
                if end > size:
                    raise EndOfFile(f'it ends {end - size} bytes too early')
                index = 0
                for item in self._records(opcode, end):
                    if isinstance(item, Schema):
                        schemas[item.id] = item
                    elif isinstance(item, McapChannel):
                        channels[item.id] = item
                    else:
                        self._places.append(_Place(item.log_time, position, index, item.channel_id))
                        index += 1
                position = end
            except DAMAGE as error:
                reason = _one_line(error)
        if reason:
            self.notes.append(f'{self._name} is truncated or damaged at byte {position} of {size} ({reason}): '
                              f'{len(self._places)} complete messages were found before that')
        return channels, schemas

    def _head(self, position: int) -> tuple[int, int]:
        """Return opcode and end of the record at this position, and leave the file at its content."""
        self._file.seek(position)
        head = self._file.read(9)
        if len(head) < 9:
            raise EndOfFile('it has no end mark')
        return head[0], position + 9 + int.from_bytes(head[1:], 'little')

    def _records(self, opcode: int, end: int) -> list[Schema | McapChannel | McapMessage]:
        """Read the schemas, channels and messages of one record (a chunk holds many)."""
        stream = ReadDataStream(self._file)
        if opcode == Opcode.CHUNK:
            return breakup_chunk(Chunk.read(stream), validate_crc=True)
        if opcode == Opcode.MESSAGE:
            return [McapMessage.read(stream, end - self._file.tell())]
        reader = {Opcode.SCHEMA: Schema, Opcode.CHANNEL: McapChannel}.get(opcode)
        return [reader.read(stream)] if reader else []

    def messages(self, topics: Collection[str] | None) -> Iterator[Message]:
        for place in self._places:
            topic, type_ = self._names[place.channel]
            if topics is None or topic in topics:
                yield Message(place.time_ns, topic, type_, _plain(self._read(place)))

    def _read(self, place: _Place) -> bytes:
        if self._chunk[0] != place.record:
            records = self._records(*self._head(place.record))
            self._chunk = place.record, [item for item in records if isinstance(item, McapMessage)]
        return self._chunk[1][place.index].data

    def close(self) -> None:
        self._file.close()


def _plain(data: bytes) -> bytes:
    """Undo compression by message. A CDR message begins with a zero byte, a zstd frame never does."""
    return zstandard.decompress(data) if data[:4] == ZSTD_MAGIC else bytes(data)


def _qos(text: str) -> tuple[Qos, ...]:
    try:
        return tuple(parse_qos(text))
    except Exception:  # QoS text that nobody can read only costs the QoS
        return ()


def _one_line(error: BaseException) -> str:
    return ' '.join(str(error).split()) or type(error).__name__
