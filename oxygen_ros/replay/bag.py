"""
Bag: a rosbag2 recording, as a folder or as a single storage file.

Tolerant where a recording can still be played, and loud about it: everything unusual is a line in `Bag.notes`, and
`shortfalls` compares what metadata.yaml promised with what came out of the files.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from rosbags.interfaces import Qos, QosDurability

from oxygen_ros.errors import BagError
from oxygen_ros.replay.metadata import Metadata, Promise, read_metadata
from oxygen_ros.replay.recorded import Message, StorageFile
from oxygen_ros.replay.storage import open_storage

SUFFIXES = ('.mcap', '.db3', '.mcap.zstd', '.db3.zstd', '.mcap.zst', '.db3.zst')


@dataclass(frozen=True)
class Topic:
    """
    One topic of a recording with one type.

    :param count: messages in the files, as their indexes say.
    :param promised: messages according to metadata.yaml; equal to count where there is no metadata.yaml.
    :param qos: profiles offered by the recorded publishers; empty when not recorded or not readable.
    :param definition: text of the message definition ('' if not stored), in `definition_format` ros2msg or ros2idl.
    :param type_hash: hash of the message definition (REP 2016, 'RIHS01_...'), '' if not recorded.
    """

    name: str
    type: str
    count: int
    promised: int
    qos: tuple[Qos, ...] = ()
    definition: str = ''
    definition_format: str = ''
    type_hash: str = ''

    @property
    def latched(self) -> bool:
        """Whether late subscribers get earlier messages: transient local at every recorded publisher."""
        return bool(self.qos) and all(qos.durability == QosDurability.TRANSIENT_LOCAL for qos in self.qos)


def shortfalls(topics: Collection[Topic], delivered: Mapping[tuple[str, str], int]) -> list[str]:
    """
    Compare promised with delivered counts.

    :param topics: those that were to be delivered as a whole.
    :param delivered: (topic, type) -> number of messages that came out.
    :returns: one line for every topic with fewer messages than promised.
    """
    return [f'{topic.name}: {topic.promised} messages promised, {count} delivered' for topic in topics
            if (count := delivered.get((topic.name, topic.type), 0)) < topic.promised]


class Bag:
    """
    An open recording. Use it as a context manager. Nothing is ever written into its folder.

    `start_ns` and `end_ns` are the first and the last log time (0 when there are no messages).

    :param path: folder of a recording (with or without metadata.yaml) or one .mcap or .db3 file.
    :raises BagError: when there is nothing to play; the text says what was looked for.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.notes: list[str] = []
        self._scratch: TemporaryDirectory | None = None
        self._files: list[StorageFile] = []
        try:
            metadata, paths = self._find()
            self._open(paths)
            self.topics = self._collect_topics(metadata.promises)
        except OSError as error:
            self.close()
            raise BagError(f'cannot read {str(self.path)!r}: {error.strerror or error}') from error
        except BaseException:
            self.close()
            raise
        self.start_ns = min((file.start_ns for file in self._files if file.start_ns is not None), default=0)
        self.end_ns = max((file.end_ns for file in self._files if file.end_ns is not None), default=0)

    @property
    def duration_ns(self) -> int:
        """Time from the first to the last message."""
        return self.end_ns - self.start_ns

    @property
    def count(self) -> int:
        """Number of messages in the files."""
        return sum(topic.count for topic in self.topics)

    def messages(self, topics: Collection[str] | None = None) -> Iterator[Message]:
        """Yield the messages of these topics (None: all) in log time order; equal times keep the order of the files."""
        names = {topic.name for topic in self.topics if topics is None or topic.name in topics}
        return heapq.merge(*(file.messages(names) for file in self._files), key=lambda message: message.time_ns)

    def close(self) -> None:
        """Close the files and remove temporary ones."""
        for file in self._files:
            file.close()
        self._files = []
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _scratch_folder(self) -> Path:
        if self._scratch is None:
            self._scratch = TemporaryDirectory(prefix='oxygen_ros_bag_')
        return Path(self._scratch.name)

    def _find(self) -> tuple[Metadata, list[Path]]:
        """Return the metadata and the storage files in their order."""
        if not self.path.exists():
            raise BagError(f'recording {str(self.path)!r} does not exist (looked for {self.path.absolute()}): '
                           'give the folder of a rosbag2 recording or an .mcap or .db3 file')
        if self.path.is_file():
            if self.path.name != 'metadata.yaml':
                return Metadata(), [self.path]
            self.path = self.path.parent
        present = sorted((file for file in self.path.iterdir() if file.name.endswith(SUFFIXES)), key=_natural)
        if not present:
            raise BagError(self._nothing_found())
        metadata = read_metadata(self.path)
        self.notes += metadata.notes
        found = [file for name in metadata.files if (file := self._locate(name)) is not None]
        if metadata.files and not found:
            self.notes.append('metadata.yaml lists no file that is here, so this is played: '
                              f'{", ".join(file.name for file in present)}')
        return metadata, list(dict.fromkeys(found or present))

    def _locate(self, name: str) -> Path | None:
        """Find a file listed in metadata.yaml. Old recordings list "folder/file", which lies in the folder itself."""
        listed = PurePosixPath(name)
        candidates = [self.path / listed, self.path / listed.name]
        if '..' in listed.parts or listed.is_absolute():
            self.notes.append(f'metadata.yaml lists {name}, which leads out of the folder: it is not followed')
            del candidates[0]
        for file in candidates:
            if file.is_file():
                return file
        self.notes.append(f'{candidates[-1]} is missing, although metadata.yaml lists it')
        return None

    def _nothing_found(self) -> str:
        text = f'{str(self.path)!r} holds no recording (looked for *.mcap and *.db3 files in it, also with .zstd)'
        inside = sorted({file.parent for file in self.path.glob('*/*') if file.name.endswith(SUFFIXES)})
        if inside:
            return f'{text}: did you mean {str(inside[0])!r}?'
        if any(self.path.glob('*.bag')):
            return f'{text}: it holds a ROS 1 bag, convert it with "rosbags-convert --src FILE --dst FOLDER"'
        return f'{text}: give the folder that a rosbag2 recorder wrote'

    def _open(self, paths: Collection[Path]) -> None:
        errors = []
        for path in paths:
            try:
                self._files.append(open_storage(path, self._scratch_folder))
            except BagError as error:
                errors.append(str(error))
        if not self._files:
            raise BagError('; '.join(errors))
        self.notes += [f'a part is left out: {error}' for error in errors]
        for file in self._files:
            self.notes += file.notes
            file.notes = self.notes  # what comes to light while reading is noted in one place

    def _collect_topics(self, promises: Mapping[tuple[str, str], Promise]) -> list[Topic]:
        channels = [channel for file in self._files for channel in file.channels]
        counts = Counter()
        first = {}
        foreign = {key: promise.serialization for key, promise in promises.items() if promise.serialization != 'cdr'}
        for channel in channels:
            key = channel.topic, channel.type
            counts[key] += channel.count
            first.setdefault(key, channel)
            if channel.serialization != 'cdr':
                foreign[key] = channel.serialization
        if foreign and not first.keys() - foreign.keys():
            raise BagError(f'{str(self.path)!r} holds no ROS 2 messages: they are serialized as '
                           f'{", ".join(sorted(set(map(repr, foreign.values()))))}, and cdr is needed')
        self.notes += [f'{name} is left out: its messages are serialized as {serialization!r}, not as cdr'
                       for (name, _), serialization in foreign.items()]
        topics = []
        for key in dict.fromkeys([*first, *promises]):
            channel, promise = first.get(key), promises.get(key)
            if key in foreign or (channel is None and not promise.count):
                continue
            topic = Topic(*key, counts[key], promise.count if promise else counts[key],
                          promise.qos if promise and promise.qos else channel.qos if channel else (),
                          channel.definition if channel else '', channel.definition_format if channel else '',
                          promise.type_hash if promise else '')
            if topic.count > topic.promised:
                self.notes.append(f'{topic.name}: {topic.count} messages, metadata.yaml lists only {topic.promised}')
            topics.append(topic)
        if not any(counts.values()):
            self.notes.append('the recording holds no messages')
        return topics


def _natural(path: Path) -> list:
    """Sort key that puts part 10 behind part 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', path.name)]
