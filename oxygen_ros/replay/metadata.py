"""Reads metadata.yaml of a rosbag2 recording, versions 1 to 9, and whatever people have made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from rosbags.interfaces import Qos
from rosbags.rosbag2.metadata import parse_qos

from oxygen_ros.replay.recorded import full_type


@dataclass
class Promise:
    """What metadata.yaml says about one topic and type: messages, serialization, type hash, QoS of the publishers."""

    count: int
    serialization: str
    type_hash: str
    qos: tuple[Qos, ...] = ()


@dataclass
class Metadata:
    """
    Content of metadata.yaml as far as it is used.

    :param files: listed storage files, as written.
    :param promises: (topic, type) -> what is said about it.
    :param notes: one line for everything that could not be used.
    """

    files: list[str] = field(default_factory=list)
    promises: dict[tuple[str, str], Promise] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_metadata(folder: Path) -> Metadata:
    """Read metadata.yaml in a folder. A file that is missing or unusable gives empty metadata with a note."""
    file = folder / 'metadata.yaml'
    metadata = Metadata()
    if not file.is_file():
        metadata.notes.append(f'{folder} has no metadata.yaml: counts and QoS are taken from the files')
        return metadata
    try:
        content = yaml.safe_load(file.read_text())['rosbag2_bagfile_information']
        metadata.files = [str(name) for name in content.get('relative_file_paths') or []]
        entries = list(content.get('topics_with_message_count') or [])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        metadata.notes.append(f'{file} is not usable and is ignored ({" ".join(str(error).split())})')
        return metadata
    for entry in entries:
        try:
            _add_promise(metadata, entry['message_count'], entry['topic_metadata'])
        except (KeyError, TypeError, ValueError) as error:
            metadata.notes.append(f'{file}: an entry of topics_with_message_count is not usable ({error!r})')
    return metadata


def _add_promise(metadata: Metadata, count: int, topic: Mapping) -> None:
    name, type_ = str(topic['name']), full_type(str(topic['type']))
    try:
        qos = tuple(parse_qos(topic.get('offered_qos_profiles') or []))
    except Exception:  # text that the library cannot read only costs the QoS; the storage file has its own
        metadata.notes.append(f'metadata.yaml has unreadable QoS for {name}: using that of the storage file')
        qos = ()
    promise = metadata.promises.setdefault((name, type_), Promise(
        0, str(topic.get('serialization_format', 'cdr')), str(topic.get('type_description_hash') or '')))
    promise.count += int(count)
    promise.qos += qos
