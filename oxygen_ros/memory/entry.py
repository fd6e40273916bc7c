"""What is kept of a note."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pose:
    """Where the robot was: position in m and orientation as a quaternion (x, y, z, w), in a TF frame."""

    frame: str
    position: tuple[float, float, float]
    orientation: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)


@dataclass(frozen=True)
class Entry:
    """
    One note, or several equal ones in a row.

    :param entry_id: unique, keeps its value over restarts, grows.
    :param text: valid UTF-8 without NUL.
    :param stamp_ns: stamp of the observation that gave the note last; frame_number: its number; tf_frame: its TF frame.
    :param first_seen_ns: earliest stamp of the observations that gave this note; last_seen_ns: the latest one.
    :param count: how many observations in a row gave it.
    :param pose: where the robot was then, None if that is not known.
    :param thumbnail: JPEG of that observation, empty if none was kept, or none is in this answer; picture_left_out: one
        was kept and asked for, but there was no room for it.
    """

    entry_id: int
    text: str
    stamp_ns: int
    frame_number: int
    first_seen_ns: int
    last_seen_ns: int
    count: int
    tf_frame: str = ''
    pose: Pose | None = None
    thumbnail: bytes = b''
    picture_left_out: bool = False
