"""Plays messages by their header stamps instead of the time at which they were recorded."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import count, islice
from statistics import median_low

from oxygen_ros.replay.recorded import Message
from oxygen_ros.replay.stamps import SECOND, read_stamp

WINDOW_NS = 2 * SECOND  # by which a message may have been recorded later than it was stamped, against the others
FIRST = 500  # messages among which the first stamps are looked for
SAMPLE = 21  # stamps that tell how they and times of recording are related at the beginning


class HeaderOrder:
    """
    Gives messages the time of their header stamp, on the clock of the recording, and brings them into that order.

    A message without a stamp keeps its place in the recording. So does one whose stamp is further than two seconds from
    where the others are (a latched map, a clock that jumped); `strays` counts these by topic.

    :param types: types of messages that begin with a stamp. :param not_before: earliest time that is given out.
    """

    def __init__(self, types: set[str], not_before: int, window_ns: int = WINDOW_NS) -> None:
        self._types, self._not_before, self._window_ns = types, not_before, window_ns
        self.strays: dict[str, int] = {}

    def __call__(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the messages by header stamp; at most those of the window are held in memory."""
        messages = iter(messages)
        first = list(islice(messages, FIRST))
        distances = [message.time_ns - stamp for message in first if (stamp := self._stamp(message))]
        middle = median_low(distances[:SAMPLE]) if distances else 0
        # From a stamp to the clock of the recording: as for the first message that is not a stray.
        usual = next((distance for distance in distances if abs(distance - middle) <= self._window_ns), 0)
        shift = usual  # follows stamps whose clock runs slower or faster than that of the recording
        waiting: list[tuple[int, int, Message]] = []
        latest = self._not_before
        order = count()
        for message in _chain(first, messages):
            stamp = self._stamp(message)
            recorded_ns = message.time_ns - shift + usual
            if stamp and abs(stamp + shift - message.time_ns) <= self._window_ns:
                shift = message.time_ns - stamp
                time_ns = stamp + usual
            else:
                time_ns = recorded_ns
                if stamp:
                    self.strays[message.topic] = self.strays.get(message.topic, 0) + 1
            heapq.heappush(waiting, (time_ns, next(order), message))
            while waiting and waiting[0][0] <= max(recorded_ns, time_ns) - self._window_ns:
                latest = max(latest, waiting[0][0])
                yield heapq.heappop(waiting)[2]._replace(time_ns=latest)
        while waiting:
            latest = max(latest, waiting[0][0])
            yield heapq.heappop(waiting)[2]._replace(time_ns=latest)

    def _stamp(self, message: Message) -> int | None:
        return read_stamp(message.data) if message.type in self._types else None


def _chain(first: list[Message], rest: Iterator[Message]) -> Iterator[Message]:
    yield from first
    first.clear()
    yield from rest
