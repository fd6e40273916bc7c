"""Reads the outputs of a run out of a recording, one made offline or one recorded live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from oxygen_ros.errors import BagError
from oxygen_ros.replay.bag import Bag, Topic
from oxygen_ros.replay.message_types import reader_of
from oxygen_ros.replay.recorded import Message

SECOND = 1_000_000_000
JOINT_STATE, TRAJECTORY = 'sensor_msgs/msg/JointState', 'trajectory_msgs/msg/JointTrajectory'
TEXT, ENTRY = 'oxygen_ros/msg/TextChunk', 'oxygen_ros/msg/MemoryEntry'
# What is looked for, in the first namespace that has it: key -> (name, type).
SOURCES = {'chunks': ('chunks', TRAJECTORY), 'commands': ('joint_commands', JOINT_STATE),
           'trajectories': ('joint_trajectory', TRAJECTORY), 'speech': ('speech', TEXT), 'memory': ('memory', ENTRY)}


@dataclass(frozen=True)
class Chunk:
    """One chunk of the model. `rows` float64 [horizon, joints] at `times_ns` from the stamp of its frame."""

    stamp_ns: int
    published_ns: int
    names: tuple[str, ...]
    times_ns: tuple[int, ...]
    rows: np.ndarray


@dataclass
class Text:
    """One text; times in ns, `finish` as the constants of TextChunk (0: its end is not in the recording)."""

    task: str
    stamp_ns: int
    text: str = ''
    finish: int = 0
    first_ns: int = 0
    last_ns: int = 0


@dataclass
class Outputs:
    """
    What one recording holds.

    :param names: joints of the commands. :param command_times: int64 [n], ns. :param commands: float64 [n, joints].
    :param notes: (stamp of the first observation in ns, text, count).
    :param commands_from: the topic that the commands are from; empty if there are none.
    """

    path: str
    chunks: list[Chunk] = field(default_factory=list)
    names: tuple[str, ...] = ()
    command_times: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    commands: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    commands_from: str = ''
    texts: list[Text] = field(default_factory=list)
    notes: list[tuple[int, str, int]] = field(default_factory=list)


def read_outputs(path: str | Path, commands: str = '') -> Outputs:
    """
    Read the outputs in a recording.

    :param path: the folder that an offline run wrote (with bag/ in it), or any recording.
    :param commands: topic of JointState or JointTrajectory to take as the commands, such as what a person commanded;
        empty takes joint_commands, or without it joint_trajectory.
    :raises BagError: it cannot be read, or holds nothing to compare.
    """
    path = Path(path)
    folder = path / 'bag' if (path / 'bag').is_dir() else path
    with Bag(folder) as bag:
        sources = _sources(bag, commands)
        collector = _Collector(Outputs(str(path)), sources)
        for message in bag.messages({topic.name for topic in sources.values()}):
            collector.take(message)
        outputs = collector.finish()
    if not sources:
        raise BagError(f'{str(path)!r} holds nothing to compare: no {", ".join(name for name, _ in SOURCES.values())}')
    return outputs


def _sources(bag: Bag, commands: str) -> dict[str, Topic]:
    found: dict[str, Topic] = {}
    for key, (name, type_) in SOURCES.items():
        fitting = [topic for topic in bag.topics if topic.count and topic.type == type_
                   and ('/' + topic.name.lstrip('/')).endswith('/' + name)]
        if fitting:
            found[key] = min(fitting, key=lambda topic: (topic.name.count('/'), topic.name))
    if commands:
        chosen = [topic for topic in bag.topics if topic.name == commands and topic.type in (JOINT_STATE, TRAJECTORY)]
        if not chosen:
            there = [topic.name for topic in bag.topics if topic.type in (JOINT_STATE, TRAJECTORY)]
            raise BagError(f'{str(bag.path)!r} has no topic {commands} of joint states or trajectories: choose from '
                           f'{", ".join(there) or "none"}')
        found.pop('commands', None)
        found.pop('trajectories', None)
        found['commands' if chosen[0].type == JOINT_STATE else 'trajectories'] = chosen[0]
    elif 'commands' in found:
        found.pop('trajectories', None)  # what was really sent wins
    return found


class _Collector:
    def __init__(self, outputs: Outputs, sources: Mapping[str, Topic]) -> None:
        self._outputs = outputs
        self._keys = {(topic.name, topic.type): key for key, topic in sources.items()}
        self._readers = {key: reader_of(topic) for key, topic in sources.items()}
        self._times: list[int] = []
        self._rows: list[dict[str, float]] = []
        self._trajectories: list[Chunk] = []
        self._texts: dict[tuple[int, int], Text] = {}
        self._notes: dict[int, tuple[int, str, int]] = {}
        outputs.commands_from = next((topic.name for key, topic in sources.items()
                                      if key in ('commands', 'trajectories')), '')

    def take(self, message: Message) -> None:
        key = self._keys.get((message.topic, message.type))
        if key is None:
            return
        content = self._readers[key](message.data)
        if key == 'chunks':
            self._outputs.chunks.append(_chunk(content, message.time_ns))
        elif key == 'trajectories':
            self._trajectories.append(_chunk(content, message.time_ns))
        elif key == 'commands':
            if len(content.position) == len(content.name):
                self._times.append(_nanoseconds(content.header.stamp) or message.time_ns)
                self._rows.append(dict(zip(content.name, content.position)))
        elif key == 'speech':
            self._take_text(content, message.time_ns)
        else:
            first_ns = _nanoseconds(content.first_seen)
            self._notes[content.entry_id] = first_ns, content.text, content.count

    def finish(self) -> Outputs:
        outputs = self._outputs
        if self._trajectories:
            self._sample_trajectories()
        if self._rows:
            names: dict[str, None] = {}
            for row in self._rows:
                names.update(dict.fromkeys(row))
            outputs.names = tuple(names)
            order = np.argsort(np.array(self._times), kind='stable')
            outputs.command_times = np.array(self._times, np.int64)[order]
            outputs.commands = np.array([[row.get(name, np.nan) for name in names] for row in self._rows])[order]
        outputs.texts = list(self._texts.values())
        outputs.notes = list(self._notes.values())
        return outputs

    def _take_text(self, content: object, time_ns: int) -> None:
        # A node that was started anew counts its requests from 1 again: a first piece begins another text.
        key = content.request_id, 0
        while content.sequence == 0 and key in self._texts:
            key = content.request_id, key[1] + 1
        while content.sequence and (content.request_id, key[1] + 1) in self._texts:
            key = content.request_id, key[1] + 1
        text = self._texts.setdefault(key, Text(content.task, 0, first_ns=time_ns))
        text.stamp_ns = _nanoseconds(content.header.stamp) or text.stamp_ns
        text.text += content.delta
        text.finish, text.last_ns = int(content.finish_reason), time_ns

    def _sample_trajectories(self) -> None:
        """Take each trajectory as followed until the next one begins: that is what was commanded."""
        starts = [chunk.stamp_ns for chunk in self._trajectories[1:]] + [2**63 - 1]
        for chunk, until in zip(self._trajectories, starts):
            for offset, row in zip(chunk.times_ns, chunk.rows):
                if chunk.stamp_ns + offset < until:
                    self._times.append(chunk.stamp_ns + offset)
                    self._rows.append(dict(zip(chunk.names, row)))


def _chunk(message: object, time_ns: int) -> Chunk:
    rows = np.array([point.positions for point in message.points], dtype=np.float64)
    return Chunk(_nanoseconds(message.header.stamp) or time_ns, time_ns, tuple(message.joint_names),
                 tuple(_nanoseconds(point.time_from_start) for point in message.points),
                 rows.reshape(len(message.points), len(message.joint_names)))


def _nanoseconds(time: object) -> int:
    return time.sec * SECOND + time.nanosec
