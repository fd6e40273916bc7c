"""Reads an mcap file record by record, without its index: files that are cut off, and those without an index."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel as McapChannel
from mcap.records import Chunk, Schema
from mcap.records import Message as McapMessage
from mcap.stream_reader import breakup_chunk
from rosbags.interfaces import Qos
from rosbags.rosbag2.metadata import parse_qos

from oxygen_ros.replay.recorded import Channel, Message, full_type, one_line, plain

MCAP_MAGIC = b'\x89MCAP0\r\n'
HEAD = struct.Struct('<BQ')  # of a record: opcode, length of its content

# What reading a damaged record can raise (wrong checksum, lz4 and zstd errors, text that is no UTF-8, ...).
DAMAGE = (McapError, ValueError, EOFError, RuntimeError, struct.error, zstandard.ZstdError)


class _Place(NamedTuple):
    """Where a message lies: record in the file, number of the message in it. Sorts by time, then by place."""

    time_ns: int
    record: int
    number: int
    channel: int


class ScannedMcap:
    """
    An mcap file, read up to the point where it is cut off or damaged.

    Opening reads the whole file once and remembers the place of every message, so that they come in time order.
    """

    def __init__(self, path: Path) -> None:
        self.notes: list[str] = []
        self._name = path.name
        self._places: list[_Place] = []
        self._schemas: dict[int, Schema] = {}
        self._mcap_channels: dict[int, McapChannel] = {}
        self._latest: tuple[int, list[McapMessage]] = (-1, [])  # record read last, and its messages
        self._file = path.open('rb')
        self._size = self._file.seek(0, os.SEEK_END)
        self._scan()
        counts = Counter(place.channel for place in self._places)
        self._channels = {identity: self._describe(channel, counts[identity])
                          for identity, channel in sorted(self._mcap_channels.items())}
        self.channels = list(self._channels.values())
        self._places = sorted(place for place in self._places if place.channel in self._channels)
        self.start_ns = self._places[0].time_ns if self._places else None
        self.end_ns = self._places[-1].time_ns if self._places else None

    def messages(self, topics: Collection[str]) -> Iterator[Message]:
        for place in self._places:
            channel = self._channels[place.channel]
            if channel.topic in topics:
                if self._latest[0] != place.record:
                    records = self._read(place.record)
                    self._latest = place.record, [item for item in records if isinstance(item, McapMessage)]
                yield Message(place.time_ns, channel.topic, channel.type, plain(self._latest[1][place.number].data))

    def close(self) -> None:
        self._file.close()

    def _scan(self) -> None:
        """Note schemas, channels and places of messages, until the footer or the first damage."""
        position = len(MCAP_MAGIC)
        try:
            while (head := self._head(position))[0] != Opcode.FOOTER:
                number = 0
                for item in self._read(position):
                    if isinstance(item, Schema):
                        self._schemas[item.id] = item
                    elif isinstance(item, McapChannel):
                        self._mcap_channels[item.id] = item
                    else:
                        self._places.append(_Place(item.log_time, position, number, item.channel_id))
                        number += 1
                if head[1] > self._size:
                    raise EOFError(f'the record there lacks {head[1] - self._size} bytes')
                position = head[1]
        except DAMAGE as error:
            self.notes.append(f'{self._name} is truncated or damaged at byte {position} of {self._size} '
                              f'({one_line(error)}): it is played up to there, {len(self._places)} messages')

    def _describe(self, channel: McapChannel, count: int) -> Channel:
        schema = self._schemas.get(channel.schema_id)
        if schema is None:  # the type is not known
            return Channel(channel.topic, '', count, serialization=f'{channel.message_encoding} without a schema')
        qos = _qos(channel.metadata.get('offered_qos_profiles', ''))
        return Channel(channel.topic, full_type(schema.name), count, qos, schema.data.decode(errors='replace'),
                       schema.encoding, channel.message_encoding)

    def _head(self, position: int) -> tuple[int, int]:
        """Return opcode and end of the record at a position, and leave the file at its content."""
        self._file.seek(position)
        head = self._file.read(HEAD.size)
        if len(head) < HEAD.size:
            raise EOFError('the end mark is missing')
        opcode, length = HEAD.unpack(head)
        return opcode, position + HEAD.size + length

    def _read(self, position: int) -> list[Schema | McapChannel | McapMessage]:
        """Read the schemas, channels and messages of one record (a chunk holds many, one that is cut off its first)."""
        opcode, end = self._head(position)
        if opcode == Opcode.CHUNK:
            if end <= self._size:
                return breakup_chunk(Chunk.read(ReadDataStream(self._file)), validate_crc=True)
            return list(_simple_records(*_cut_chunk(self._file.read())))
        self._file.seek(position)
        return list(_simple_records(self._file, min(end, self._size)))


def _simple_records(file: BinaryIO, size: int) -> Iterator[Schema | McapChannel | McapMessage]:
    """Yield the schemas, channels and messages that lie complete between the present position and `size`."""
    readers = {Opcode.SCHEMA: Schema.read, Opcode.CHANNEL: McapChannel.read}
    while (start := file.tell() + HEAD.size) <= size:
        opcode, length = HEAD.unpack(file.read(HEAD.size))
        if start + length > size:
            return
        if opcode == Opcode.MESSAGE:
            yield McapMessage.read(ReadDataStream(file), length)
        elif opcode in readers:
            yield readers[opcode](ReadDataStream(file))
        file.seek(start + length)


def _cut_chunk(content: bytes) -> tuple[BinaryIO, int]:
    """Decompress what there is of a chunk. Returns its records and their size in bytes."""
    name_length = int.from_bytes(content[28:32], 'little')  # behind start, end, size and checksum
    compression = content[32:32 + name_length].decode()
    records = content[32 + name_length + 8:]
    if compression == 'zstd':
        records = zstandard.ZstdDecompressor().decompressobj().decompress(records)
    elif compression == 'lz4':
        records = lz4.frame.LZ4FrameDecompressor().decompress(records)
    return BytesIO(records), len(records)


def _qos(text: str) -> tuple[Qos, ...]:
    try:
        return tuple(parse_qos(text))
    except Exception:  # QoS text that nobody can read only costs the QoS
        return ()
