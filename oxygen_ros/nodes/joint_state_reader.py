"""Reads serialised JointState messages without making Python objects of their names each time."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import JointState

from oxygen_ros.nodes.conversion import NANOSECONDS, time_from_msg

PLAIN_CDR = b'\x00\x01'  # little endian, as every machine that runs ROS 2 today writes it (RTPS specification, 10.2)
MOST_KNOWN, LONGEST_KNOWN = 64, 65536  # lists of names that are remembered, and bytes of one
START = 4                # offset of what alignment counts from, behind the encapsulation


class Joints(NamedTuple):
    """What a JointState says: names, positions and velocities as float64 (each may be empty), stamp in ns."""

    names: tuple[str, ...]
    positions: np.ndarray
    velocities: np.ndarray
    stamp_ns: int


class JointStateReader:
    """
    Takes joint states of hundreds of hertz: a publisher repeats its names, so their bytes are compared, not decoded.

    That takes a tenth of the time of `deserialize_message`, which does the rest: other encodings.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, tuple[str, ...]]] = {}  # position -> the bytes of names there, and these

    def read(self, data: bytes) -> Joints:
        """
        Return the content of a message.

        :raises ValueError: the bytes are no JointState.
        """
        try:
            if data[:2] != PLAIN_CDR:
                return _whole(deserialize_message(data, JointState))
            seconds, nanoseconds, length = struct.unpack_from('<iII', data, START)
            names, position = self._names(data, _aligned(START + 12 + length, 4))
            positions, position = _numbers(data, position)
            velocities, _ = _numbers(data, position)
            return Joints(names, positions, velocities, seconds * NANOSECONDS + nanoseconds)
        except (struct.error, UnicodeDecodeError, RuntimeError) as error:
            raise ValueError(f'{len(data)} bytes are no JointState: {error}') from None

    def _names(self, data: bytes, position: int) -> tuple[tuple[str, ...], int]:
        """Return the names that begin at a position, and the position behind them."""
        known = self._known.get(position)
        if known is not None and data.startswith(known[0], position):
            return known[1], position + len(known[0])
        count, = struct.unpack_from('<I', data, position)
        names, end = [], position + 4
        for _ in range(count):
            end = _aligned(end, 4)
            length, = struct.unpack_from('<I', data, end)
            text = data[end + 4:end + 4 + length]
            if len(text) != length or not length:
                raise ValueError(f'{len(data)} bytes are no JointState: they end in a name')
            names.append(text[:-1].decode())  # without the zero at its end
            end += 4 + length
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        if end - position <= LONGEST_KNOWN:
            self._known[position] = data[position:end], tuple(names)
        return tuple(names), end


def _numbers(data: bytes, position: int) -> tuple[np.ndarray, int]:
    """Return the sequence of float64 at a position, and the position behind it."""
    position = _aligned(position, 4)
    count, = struct.unpack_from('<I', data, position)
    position += 4
    if count:
        position = _aligned(position, 8)
    return np.frombuffer(data, '<f8', count, position) if count else np.zeros(0), position + 8 * count


def _aligned(position: int, size: int) -> int:
    return position + (START - position) % size


def _whole(message: JointState) -> Joints:
    return Joints(tuple(message.name), np.array(message.position), np.array(message.velocity),
                  time_from_msg(message.header.stamp))
