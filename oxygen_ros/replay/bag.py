"""
Bag: a rosbag2 recording, as a folder or as a single storage file.

Tolerant where a recording can still be played, and loud about it: everything unusual is a line in `Bag.notes`, and
`Bag.shortfalls` compares what was promised by metadata.yaml with what came out of the files.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import yaml
from rosbags.interfaces import Qos
from rosbags.rosbag2.metadata import parse_qos

from oxygen_ros.errors import BagError
from oxygen_ros.replay.storage import Message, StorageFile, open_storage

SUFFIXES = ('.mcap', '.db3', '.mcap.zstd', '.db3.zstd', '.mcap.zst', '.db3.zst')


@dataclass(frozen=True)
class Topic:
    """
    One topic of a recording with one type.

    :param count: messages in the files, as their indexes say.
    :param promised: messages according to metadata.yaml; equal to count where there is no metadata.yaml.
    :param qos: profiles offered by the recorded publishers; empty when not recorded or not readable.
    :param definition: text of the message definition ('' if not stored), in `definition_format` ros2msg or ros2idl.
    """

    name: str
    type: str
    count: int
    promised: int
    qos: tuple[Qos, ...] = ()
    definition: str = ''
    definition_format: str = ''


class Bag:
    """
    An open recording. Use it as a context manager. Nothing is ever written into its folder.

    :param path: folder of a recording (with or without metadata.yaml) or one .mcap or .db3 file.
    :raises BagError: when there is nothing to play; the text says what was looked for.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.notes: list[str] = []
        self._scratch: TemporaryDirectory | None = None
        self._files: list[StorageFile] = []
        metadata, paths = self._find()
        errors = []
        for file in paths:
            try:
                self._files.append(open_storage(file, self._scratch_folder))
            except BagError as error:
                errors.append(str(error))
        if not self._files:
            self.close()
            raise BagError('; '.join(errors))
        self.notes += [f'left out: {error}' for error in errors]
        self.topics = self._collect_topics(metadata)
        starts = [file.start_ns for file in self._files if file.start_ns is not None]
        ends = [file.end_ns for file in self._files if file.end_ns is not None]
        self.start_ns = min(starts, default=0)
        self.end_ns = max(ends, default=0)
        self.notes += [note for file in self._files for note in file.notes]
        for file in self._files:
            file.notes = self.notes  # what comes to light while reading is noted in one place

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
        return heapq.merge(*(file.messages(topics) for file in self._files), key=lambda message: message.time_ns)

    @staticmethod
    def shortfalls(topics: Collection[Topic], delivered: Mapping[tuple[str, str], int]) -> list[str]:
        """
        Compare promised with delivered counts.

        :param topics: those that were to be delivered.
        :param delivered: (topic, type) -> number of messages that came out.
        :returns: one line for every topic with fewer messages than promised.
        """
        return [f'{topic.name}: {topic.promised} messages promised, {count} delivered' for topic in topics
                if (count := delivered.get((topic.name, topic.type), 0)) < topic.promised]

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

    def _find(self) -> tuple[Mapping, list[Path]]:
        """Return the content of metadata.yaml ({} without one) and the storage files in their order."""
        if not self.path.exists():
            raise BagError(f'recording {str(self.path)!r} does not exist (looked for {self.path.absolute()}): '
                           'give the folder of a rosbag2 recording or an .mcap or .db3 file')
        if self.path.is_file():
            if self.path.name == 'metadata.yaml':
                self.path = self.path.parent
            else:
                return {}, [self.path]
        present = sorted((file for file in self.path.iterdir() if file.name.endswith(SUFFIXES)), key=_natural)
        metadata = self._read_metadata()
        listed = metadata.get('relative_file_paths') or []
        found = [file for name in dict.fromkeys(listed) if (file := self._locate(str(name))) is not None]
        if not found:
            if not present:
                raise BagError(self._nothing_found(listed))
            if metadata:
                self.notes.append('metadata.yaml lists no file that is here, so this is played: '
                                  f'{", ".join(file.name for file in present)}')
            return metadata, present
        return metadata, list(dict.fromkeys(found))

    def _locate(self, name: str) -> Path | None:
        """Find a file listed in metadata.yaml. Old recordings list "folder/file", which lies in the folder itself."""
        listed = PurePosixPath(name)
        if '..' in listed.parts or listed.is_absolute():
            self.notes.append(f'metadata.yaml lists {name}, which leads out of the folder: it is not followed')
            candidates = [self.path / listed.name]
        else:
            candidates = [self.path / listed, self.path / listed.name]
        for file in candidates:
            if file.is_file():
                return file
        self.notes.append(f'{candidates[-1]} is missing, although metadata.yaml lists it')
        return None

    def _read_metadata(self) -> Mapping:
        file = self.path / 'metadata.yaml'
        if not file.is_file():
            self.notes.append(f'{self.path} has no metadata.yaml: counts and QoS are taken from the files')
            return {}
        try:
            metadata = yaml.safe_load(file.read_text())['rosbag2_bagfile_information']
            if not isinstance(metadata, Mapping) or not isinstance(metadata.get('relative_file_paths') or [], list):
                raise TypeError('it is not the description of a recording')
        except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
            self.notes.append(f'{file} is not usable and is ignored: {" ".join(str(error).split())}')
            return {}
        return metadata

    def _nothing_found(self, listed: Collection[str]) -> str:
        text = f'{str(self.path)!r} holds no recording: looked for *.mcap and *.db3 files (also .zstd)'
        if listed:
            text += f', metadata.yaml lists {", ".join(map(str, listed))}'
        inside = sorted({file.parent.name for file in self.path.glob('*/*') if file.name.endswith(SUFFIXES)})
        if inside:
            text += f'; did you mean the folder {str(self.path / inside[0])!r}?'
        elif any(self.path.glob('*.bag')):
            text += '; it holds a ROS 1 bag, convert it with "rosbags-convert --src FILE --dst FOLDER"'
        else:
            text += '; give the folder that a rosbag2 recorder wrote'
        return text

    def _collect_topics(self, metadata: Mapping) -> list[Topic]:
        channels = [channel for file in self._files for channel in file.channels]
        counts: Counter = Counter()
        first = {}
        for channel in channels:
            counts[channel.topic, channel.type] += channel.count
            first.setdefault((channel.topic, channel.type), channel)
        promised, qos = self._promises(metadata)
        topics = []
        for (name, type_), channel in first.items():
            topics.append(Topic(name, type_, counts[name, type_], promised.get((name, type_), counts[name, type_]),
                                qos.get((name, type_)) or channel.qos, channel.definition, channel.definition_format))
        self.notes += [f'{topic.name}: the files hold {topic.count} messages, metadata.yaml lists only {topic.promised}'
                       for topic in topics if topic.count > topic.promised]
        left_out = {note for file in self._files for note in file.notes if 'is left out' in note}
        for (name, type_), number in promised.items():
            if number and (name, type_) not in first and not any(f' {name} is left out' in note for note in left_out):
                topics.append(Topic(name, type_, 0, number, qos.get((name, type_), ())))
        return topics

    def _promises(self, metadata: Mapping) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], tuple[Qos, ...]]]:
        """Return what metadata.yaml says: (topic, type) -> count, (topic, type) -> QoS profiles."""
        promised, qos = {}, {}
        for entry in metadata.get('topics_with_message_count') or []:
            try:
                topic = entry['topic_metadata']
                key = str(topic['name']), str(topic['type'])
                promised[key] = promised.get(key, 0) + int(entry['message_count'])
            except (KeyError, TypeError, ValueError) as error:
                self.notes.append(f'metadata.yaml has an unusable entry in topics_with_message_count: {error!r}')
                continue
            try:
                qos[key] = tuple(parse_qos(topic.get('offered_qos_profiles') or []))
            except Exception:  # text that the library cannot read only costs the QoS; the file has its own
                self.notes.append(f'metadata.yaml has unreadable QoS text for {key[0]}: using that of the file')
        return promised, qos


def _natural(path: Path) -> list:
    """Sort key that puts part 10 behind part 9."""
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', path.name)]
