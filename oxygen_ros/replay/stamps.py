"""
Moves the header stamps of serialized messages, so that a recording appears to happen now.

A CDR message begins with 4 bytes (byte 1: 0 big endian, 1 little endian; OMG DDSI-RTPS 2.5, 10.2.1.2). A message whose
first field is a std_msgs/Header, or a builtin_interfaces/Time as in rosgraph_msgs/Clock, has its stamp right behind
them: int32 seconds, uint32 nanoseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

from oxygen_ros.replay.bag import Topic
from oxygen_ros.replay.recorded import Message

SECOND = 1_000_000_000
CLOCK_TYPE = 'rosgraph_msgs/msg/Clock'
HEADER_TYPE = 'std_msgs/msg/Header'
TIME_TYPE = 'builtin_interfaces/msg/Time'
LEADING_STAMP = (HEADER_TYPE, TIME_TYPE, CLOCK_TYPE)

# Stamps that differ by more from the time of recording come from another clock (simulated time), not from a delay.
SAME_CLOCK_NS = 60 * SECOND

_LITTLE, _BIG = struct.Struct('<iI'), struct.Struct('>iI')
_BYTE_ORDERS = {b'\x00\x00': _BIG, b'\x00\x01': _LITTLE, b'\x00\x06': _BIG, b'\x00\x07': _LITTLE}  # CDR, plain CDR2


def read_stamp(data: bytes) -> int | None:
    """Return the stamp in ns at the beginning of a CDR message, or None if it is too short or in another encoding."""
    order = _BYTE_ORDERS.get(data[:2])
    if order is None or len(data) < 12:
        return None
    seconds, nanoseconds = order.unpack_from(data, 4)
    return seconds * SECOND + nanoseconds


def write_stamp(data: bytes, stamp_ns: int) -> bytes:
    """Return a copy of a CDR message with another stamp at its beginning."""
    copy = bytearray(data)
    _BYTE_ORDERS[data[:2]].pack_into(copy, 4, *divmod(stamp_ns, SECOND))
    return bytes(copy)


def clock_message(time_ns: int) -> bytes:
    """Return a serialized rosgraph_msgs/Clock."""
    return write_stamp(b'\x00\x01' + bytes(10), time_ns)


class StampedTypes:
    """
    Knows which topics have a stamp at the beginning of their messages, from the definitions in the recording.

    Types without a stored definition are looked up among the standard ones. `left_alone` names the topics whose
    messages hold stamps further inside (tf), which are not moved.
    """

    def __init__(self, topics: Iterable[Topic]) -> None:
        self.types: set[str] = set()
        self.left_alone: list[str] = []
        for topic in topics:
            fields = self._fields(topic)
            if fields and fields[0][1] in [(Nodetype.NAME, name) for name in LEADING_STAMP[:2]]:
                self.types.add(topic.type)
            elif self._holds_stamp(topic.type, {topic.type}, self._definitions(topic)):
                self.left_alone.append(topic.name)

    @cached_property
    def _standard(self) -> Mapping:
        return get_typestore(Stores.ROS2_JAZZY).fielddefs

    def _definitions(self, topic: Topic) -> Mapping:
        if topic.definition and topic.type not in self._standard:
            try:
                if topic.definition_format == 'ros2idl':
                    return get_types_from_idl(topic.definition)
                return get_types_from_msg(topic.definition, topic.type)
            except Exception:  # a definition that the library cannot read: nothing is known about the type
                return {}
        return {}

    def _fields(self, topic: Topic) -> list:
        definitions = self._definitions(topic)
        return (definitions.get(topic.type) or self._standard.get(topic.type) or ((), []))[1]

    def _holds_stamp(self, type_: str, seen: set[str], definitions: Mapping) -> bool:
        for _, description in (definitions.get(type_) or self._standard.get(type_) or ((), []))[1]:
            kind, inner = description
            if kind in (Nodetype.ARRAY, Nodetype.SEQUENCE):
                kind, inner = inner[0]
            if kind != Nodetype.NAME or inner in seen:
                continue
            seen.add(inner)
            if inner in LEADING_STAMP or self._holds_stamp(inner, seen, definitions):
                return True
        return False


def clock_shift(messages: Iterable[Message], types: set[str], at_most: int = 500) -> int:
    """
    Return what must be added to a header stamp to get the time of recording, in ns; 0 when both are of one clock.

    Looks at the first `at_most` messages and takes the smallest distance: an old latched message does not count.
    """
    distances = []
    for number, message in enumerate(messages):
        if number == at_most:
            break
        if message.type in types and (stamp := read_stamp(message.data)):
            distances.append(message.time_ns - stamp)
    nearest = min(distances, key=abs, default=0)
    return 0 if abs(nearest) <= SAME_CLOCK_NS else nearest


def restamped(message: Message, types: set[str], moved: Callable[[int], int]) -> bytes:
    """Return the data of a message with its stamp moved. A stamp of zero means "not set" and stays."""
    if message.type not in types:
        return message.data
    stamp = read_stamp(message.data)
    return write_stamp(message.data, moved(stamp)) if stamp else message.data
