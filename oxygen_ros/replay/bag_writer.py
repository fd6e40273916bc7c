"""
Writes a recording: rosbag2 with mcap, every type with its whole definition, so that other tools can open it.

Crash-safe: what `flush` has written can be read again even if the process is killed. Then there is no index and no
metadata.yaml; `Bag` and `oxygen_ros replay` read such a file up to the cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rosbags.interfaces import Connection, Qos
from rosbags.rosbag2 import CompressionMode, StoragePlugin, Writer
from rosbags.rosbag2.enums import CompressionFormat

from oxygen_ros.errors import BagError
from oxygen_ros.replay.message_types import definition_of, serialize


class BagWriter:
    """
    A recording that is being written. Use it as a context manager; leaving it writes index and metadata.yaml.

    :param folder: must not exist yet. The file in it is named as the folder.
    :param compress: whether to compress with zstd, chunk by chunk.
    :raises BagError: it exists, or cannot be written.
    """

    def __init__(self, folder: str | Path, compress: bool = False) -> None:
        self.folder = Path(folder).expanduser()
        self.written: Counter[str] = Counter()  # topic -> messages
        self._connections: dict[str, Connection] = {}
        if self.folder.exists():
            raise BagError(f'{str(self.folder)!r} exists already: choose another folder, nothing is overwritten')
        self._writer = Writer(self.folder, version=9, storage_plugin=StoragePlugin.MCAP)
        if compress:
            self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        try:
            self._writer.open()
        except OSError as error:
            raise BagError(f'{str(self.folder)!r} cannot be written: {error.strerror}') from error

    def add(self, topic: str, type_: str, qos: Sequence[Qos] = (), definition: tuple[str, str] | None = None) -> None:
        """
        Add a topic. Once for each name.

        :param definition: text of the message definition and its hash; None looks it up.
        :raises BagError: the type is not known.
        """
        try:
            text, type_hash = definition or definition_of(type_)
        except KeyError:
            raise BagError(f'{topic}: no definition of type {type_} is at hand') from None
        self._connections[topic] = self._writer.add_connection(
            topic, type_, msgdef=text, rihs01=type_hash or 'RIHS01_unknown', offered_qos_profiles=qos)

    def has(self, topic: str) -> bool:
        """Whether a topic of this name was added."""
        return topic in self._connections

    def write(self, topic: str, time_ns: int, message: Any) -> None:
        """Write a message of `message_types.make`; its topic is added with the first one."""
        if topic not in self._connections:
            self.add(topic, message.__msgtype__)
        self.write_serialized(topic, time_ns, serialize(message))

    def write_serialized(self, topic: str, time_ns: int, data: bytes) -> None:
        """Write a message as it is (CDR) to a topic that was added."""
        try:
            self._writer.write(self._connections[topic], time_ns, data)
        except OSError as error:
            raise BagError(f'{str(self.folder)!r} cannot be written: {error.strerror}') from error
        self.written[topic] += 1

    def flush(self) -> None:
        """Hand everything to the operating system, as a chunk of its own."""
        storage = self._writer.storage
        try:
            if storage.chunk.bio.tell():
                storage.close_chunk()
            storage.bio.flush()
        except OSError as error:
            raise BagError(f'{str(self.folder)!r} cannot be written: {error.strerror}') from error

    def close(self) -> None:
        """Write index and metadata.yaml; closing again does nothing."""
        if self._writer.storage is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._writer.abort()
                raise BagError(f'{str(self.folder)!r} cannot be finished: {error.strerror}') from error

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
