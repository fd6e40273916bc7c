"""What a storage file of a recording consists of: channels and messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import zstandard
from rosbags.interfaces import Qos

ZSTD_MAGIC = b'\x28\xb5\x2f\xfd'


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
    serialization: str = 'cdr'


class StorageFile(Protocol):
    """
    An open storage file.

    `start_ns` and `end_ns` are the first and the last log time, None when it is empty. Everything unusual is a line in
    `notes`, also what comes to light while messages are read.
    """

    channels: list[Channel]
    start_ns: int | None
    end_ns: int | None
    notes: list[str]

    def messages(self, topics: Collection[str]) -> Iterator[Message]:
        """Yield the messages of these topics in log time order, equal times in file order."""

    def close(self) -> None:
        """Close the file."""


def full_type(name: str) -> str:
    """Return 'pkg/msg/Name' for the 'pkg/Name' of early recordings, anything else as it is."""
    return name.replace('/', '/msg/') if name.count('/') == 1 else name


def plain(data: bytes) -> bytes:
    """Undo compression by message. A CDR message begins with a zero byte, a zstd frame never does."""
    return zstandard.decompress(data) if data[:4] == ZSTD_MAGIC else bytes(data)


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line."""
    return ' '.join(str(error).split()) or type(error).__name__
