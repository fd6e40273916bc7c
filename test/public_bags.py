"""Finds the recordings in a folder of other people's recordings, and the settings to run them offline."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = 'OXYGEN_ROS_BAGS'
SUFFIXES = ('.mcap', '.db3', '.mcap.zstd', '.db3.zstd', '.bag')
IMAGES = ('sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage')


def recordings(root: Path) -> list[Path]:
    """Return folders with metadata.yaml, and single files that are in no such folder; sorted."""
    folders = {path.parent for path in root.rglob('metadata.yaml')}
    files = {path for path in root.rglob('*')
             if path.is_file() and path.name.endswith(SUFFIXES) and path.parent not in folders}
    return sorted(folders | files)


def public_recordings() -> list[Path]:
    """Return the recordings that the environment variable leads to; none where it is not set."""
    root = os.environ.get(VARIABLE)
    return recordings(Path(root)) if root else []


def offline_settings(topics: list) -> list[str]:
    """
    Return words that have an offline run take the first picture topic of a recording, whatever robot it is of.

    :param topics: `Bag.topics`. Without a picture topic the robot's own are asked for, which is then refused.
    """
    pictures = sorted((topic for topic in topics if topic.type in IMAGES and topic.count), key=lambda topic: topic.name)
    if not pictures:
        return []
    compressed = pictures[0].type == IMAGES[1]
    return ['-p', 'cameras:=head', '-p', f'camera_topics:={pictures[0].name}',
            '-p', f'camera_types:={"compressed" if compressed else "raw"}', '-p', 'channel_order:=rgb']
