"""
Player: turns a recording into a schedule. It has no clock of its own and never waits.

Times: `due_ns` is on the clock that paces the replay (monotonic); moved header stamps are on the system clock. Both
begin at the numbers given to `schedule`, and one second of the recording takes 1 / rate seconds on both.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from oxygen_ros.errors import ConfigError
from oxygen_ros.replay.bag import Bag, Topic, shortfalls
from oxygen_ros.replay.header_order import HeaderOrder
from oxygen_ros.replay.stamps import (
    CLOCK_TYPE,
    SECOND,
    StampedTypes,
    clock_message,
    clock_shift,
    read_stamp,
    restamped,
    write_stamp,
)

CLOCK_TOPIC = '/clock'
NEVER = 2**63 - 1


class Scheduled(NamedTuple):
    """
    A message to publish.

    :param due_ns: when, on the pacing clock.
    :param loop: how often the recording was played through before, from 0.
    :param data: serialized CDR message.
    """

    due_ns: int
    loop: int
    topic: str
    type: str
    data: bytes


class Order(str, enum.Enum):
    """Which time of a message says when it is played."""

    RECEIVE = 'receive'  # that of recording
    HEADER = 'header'    # its header stamp, see `HeaderOrder`


Ticks = Callable[[int, int, int], Iterator[Scheduled]]


@dataclass(frozen=True)
class Timing:
    """
    How to play.

    :param rate: speed, 2 is twice as quick; greater than 0.
    :param start_offset: seconds of the recording to leave out at its beginning. Latched messages (a map, the
        description of the robot) are not left out but come at the start.
    :param duration: seconds of the recording to play; 0 means to its end.
    :param loop: play again and again. Without `restamp` time jumps back at each start, as with rosbag2.
    :param restamp: move header stamps so that the recording happens now; they go on increasing over loops. A stamp of
        zero and stamps that are not at the beginning of a message (tf) stay.
    :param clock_hz: rate of /clock in messages per second of the pacing clock; 0 for none.
    :param order: by time of recording, or by header stamp.
    """

    rate: float = 1.0
    start_offset: float = 0.0
    duration: float = 0.0
    loop: bool = False
    restamp: bool = False
    clock_hz: float = 0.0
    order: Order = Order.RECEIVE

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ConfigError(f'rate is {self.rate}: it must be greater than 0 (1 plays at the recorded speed)')
        for name in ('start_offset', 'duration', 'clock_hz'):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f'{name} is {value}: it must be a number that is not negative')


class Player:
    """
    Plays topics of a recording. One use: `schedule` may be called once at a time.

    :param topics: the topics to play (see `selection.select_topics`).
    :raises ConfigError: when the start offset lies behind the end.
    """

    def __init__(self, bag: Bag, topics: Sequence[Topic], timing: Timing = Timing()) -> None:
        self.bag, self.timing = bag, timing
        self.topics = tuple(topics)
        self.notes: list[str] = []
        self.delivered: Counter[tuple[str, str]] = Counter()
        self.loops = 0  # complete ones
        self._first_loop: Counter[tuple[str, str]] = Counter()
        self._keys = {(topic.name, topic.type) for topic in topics}
        self._latched = {topic.name for topic in topics if topic.latched}
        self._origin = bag.start_ns + round(timing.start_offset * SECOND)
        self._stop = self._origin + round(timing.duration * SECOND) if timing.duration else NEVER
        self._delay = 0  # by pauses
        if bag.count and self._origin > bag.end_ns:
            raise ConfigError(f'start_offset is {timing.start_offset} s, but the recording lasts only '
                              f'{bag.duration_ns / SECOND:.3f} s: choose a smaller one')
        self._stamped: set[str] = set()
        self._shift = 0
        self._order: HeaderOrder | None = None
        if timing.order is Order.HEADER:
            self._order = HeaderOrder(StampedTypes(self.topics).types, bag.start_ns)
        if timing.restamp:
            stamped = StampedTypes(self.topics)
            self._stamped = stamped.types
            if stamped.left_alone:
                self.notes.append(f'the stamps inside the messages of {", ".join(stamped.left_alone)} keep the '
                                  'recorded time, restamp does not reach them')
            self._shift = clock_shift(self._selected(), self._stamped)
            if self._order:
                self._order.strays = {}  # they will come again
            if self._shift:
                self.notes.append(f'header stamps are {self._shift / SECOND:.3f} s away from the time of recording '
                                  '(simulated time?): restamp closes that distance')

    @property
    def whole(self) -> bool:
        """Whether every message of the topics is wanted, so that counts can be compared."""
        return not (self.timing.start_offset or self.timing.duration)

    @property
    def shortfalls(self) -> list[str]:
        """Topics of which fewer messages came out than promised, once the recording was played through as a whole."""
        return shortfalls(self.topics, self._first_loop) if self.whole and self.loops else []

    def postpone(self, message: Scheduled, paused_ns: int) -> Scheduled:
        """
        Take a pause into account: everything from this message on, which was given out already, comes so much later.

        Recorded time stands still in a pause; with `restamp` the recording goes on at a later time.
        """
        self._delay += paused_ns
        moved = message.data
        if self.timing.restamp and (message.type in self._stamped or message.topic == CLOCK_TOPIC):
            stamp = read_stamp(moved)
            moved = write_stamp(moved, stamp + paused_ns) if stamp else moved
        return message._replace(due_ns=message.due_ns + paused_ns, data=moved)

    def schedule(self, start_ns: int, now_ns: int) -> Iterator[Scheduled]:
        """
        Yield what to publish, in the order of its due time.

        :param start_ns: begin of the replay on the pacing clock.
        :param now_ns: the same moment in system time, for header stamps.
        """
        begin = 0  # recorded nanoseconds played in earlier loops
        ticks = self._ticks(start_ns, now_ns)
        for loop in count():
            length = yield from self._play_through(loop, begin, start_ns, now_ns, ticks)
            self.loops += 1
            self._first_loop = self._first_loop or self.delivered.copy()
            if not (self.timing.loop and length):
                return
            begin += length

    def _play_through(self, loop: int, begin: int, start_ns: int, now_ns: int, ticks: Ticks) -> Iterator[Scheduled]:
        """Yield the messages of one loop. Returns its length in recorded nanoseconds, 0 if it has no messages."""
        def elapsed(time_ns: int) -> int:
            return round((time_ns - self._origin + begin) / self.timing.rate)

        def moved(stamp_ns: int) -> int:
            return now_ns + self._delay + elapsed(stamp_ns + self._shift)

        span, last, number = _StampSpan(), self._origin, 0
        for message in self._selected():
            if message.time_ns >= self._stop:
                break
            if message.time_ns >= self._origin:
                number += 1
                last = message.time_ns
            elif message.topic not in self._latched:
                continue
            if message.type in self._stamped:
                span.add(message.topic, read_stamp(message.data))
            passed = elapsed(max(message.time_ns, self._origin))
            yield from ticks(start_ns + passed, loop, begin)
            yield Scheduled(start_ns + self._delay + passed, loop, message.topic, message.type,
                            restamped(message, self._stamped, moved))
            self.delivered[message.topic, message.type] += 1  # only now: the caller may have given up waiting
        if not number:
            return 0
        # The next loop begins one mean message spacing later, and late enough for all stamps to go on increasing.
        gap = min(max((last - self._origin) // number, SECOND // 1000), SECOND)
        if self._order and self._order.strays:
            self.notes += [f'{topic}: the stamps of {number} messages are more than 2 s from those of the others, they '
                           'are played when they were recorded' for topic, number in self._order.strays.items()]
            self._order.strays = {}
        return max(min(self._stop - 1, self.bag.end_ns) - self._origin, last - self._origin, span.longest()) + gap

    def _selected(self) -> Iterator:
        names = {topic.name for topic in self.topics}
        chosen = (message for message in self.bag.messages(names) if (message.topic, message.type) in self._keys)
        return self._order(chosen) if self._order else chosen

    def _ticks(self, start_ns: int, now_ns: int) -> Ticks:
        """Return a generator function (due, loop, begin) that yields the /clock messages due until then."""
        timing = self.timing
        number = 0

        def until(due_ns: int, loop: int, begin: int) -> Iterator[Scheduled]:
            nonlocal number
            while timing.clock_hz and (passed := round(number * SECOND / timing.clock_hz)) <= due_ns - start_ns:
                number += 1
                time_ns = (now_ns + self._delay + passed if timing.restamp
                           else round(passed * timing.rate) + self._origin - begin)
                yield Scheduled(start_ns + self._delay + passed, loop, CLOCK_TOPIC, CLOCK_TYPE, clock_message(time_ns))
        return until


class _StampSpan:
    """Span of the header stamps of each topic in one loop."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def add(self, topic: str, stamp_ns: int | None) -> None:
        if stamp_ns:
            self._first[topic] = min(stamp_ns, self._first.get(topic, stamp_ns))
            self._last[topic] = max(stamp_ns, self._last.get(topic, stamp_ns))

    def longest(self) -> int:
        """Return the longest span of a topic in ns."""
        return max((last - self._first[topic] for topic, last in self._last.items()), default=0)
