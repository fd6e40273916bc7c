"""Keeps track of how inputs do, for logs and diagnostics. No ROS here."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass


class Level(enum.IntEnum):
    """Severity; the numbers are those of diagnostic_msgs/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2


@dataclass
class Alarm:
    """Something that is wrong with one input at the moment."""

    level: Level
    text: str
    ends_s: float
    quiet: bool = False


class Alarms:
    """Turns what happens again and again into edges: it began, it is over."""

    def __init__(self) -> None:
        self._alarms: dict[tuple[str, str], Alarm] = {}

    def raise_alarm(self, source: str, reason: str, level: Level, text: str, now_s: float, lasts_s: float,
                    quiet: bool = False) -> bool:
        """
        Note that something is wrong now. Returns True at the moment to log it: it was not wrong before.

        :param lasts_s: it is over if it is not raised again for this long.
        :param quiet: not to be logged now, beginning and end; when it is raised again without, that is the moment.
        """
        before = self._alarms.get((source, reason))
        quiet = quiet and (before is None or before.quiet)
        self._alarms[source, reason] = Alarm(level, text, now_s + lasts_s, quiet)
        return not quiet and (before is None or before.quiet)

    def holds(self, source: str, reason: str) -> bool:
        """Tell whether this is wrong already."""
        return (source, reason) in self._alarms

    def withdraw(self, source: str, reason: str) -> None:
        """Forget an alarm that another one takes the place of, without an end."""
        self._alarms.pop((source, reason), None)

    def expire(self, now_s: float) -> list[tuple[str, str]]:
        """Return (source, reason) of the alarms that are over and were not quiet."""
        over = {key: alarm for key, alarm in self._alarms.items() if now_s > alarm.ends_s}
        for key in over:
            del self._alarms[key]
        return [key for key, alarm in over.items() if not alarm.quiet]

    def summary(self, source: str) -> tuple[Level, str]:
        """Return the worst level of a source and the texts of its alarms, the worst first."""
        alarms = sorted((alarm for (name, _), alarm in self._alarms.items() if name == source),
                        key=lambda alarm: -alarm.level)
        return (alarms[0].level, '; '.join(alarm.text for alarm in alarms)) if alarms else (Level.OK, 'ok')


class Stillness:
    """How long the content of an input has stayed the same."""

    def __init__(self) -> None:
        self._mark: object = None
        self._since_s = 0.0
        self._repeats = 0

    def seen(self, mark: object, now_s: float) -> tuple[int, float]:
        """
        Note the mark of a content; return how often it came again in a row, and for how many seconds.

        :param mark: equal for equal contents, and nearly never for others.
        """
        if mark != self._mark:
            self._mark, self._since_s, self._repeats = mark, now_s, 0
        else:
            self._repeats += 1
        return self._repeats, now_s - self._since_s


class Arrivals:
    """When messages came: age and rate on a steady clock."""

    def __init__(self, start_s: float):
        self._start_s = start_s
        self._times: deque[float] = deque(maxlen=256)

    def add(self, now_s: float) -> None:
        """Note one message."""
        self._times.append(now_s)

    @property
    def never(self) -> bool:
        """Tell whether nothing has come at all."""
        return not self._times

    def age(self, now_s: float) -> float:
        """Return seconds since the last message, or since the start if there was none."""
        return now_s - (self._times[-1] if self._times else self._start_s)

    def rate(self, now_s: float, window_s: float = 3.0) -> float:
        """Return messages per second over the last seconds."""
        recent = [time_s for time_s in self._times if now_s - time_s <= window_s]
        return (len(recent) - 1) / (recent[-1] - recent[0]) if len(recent) > 1 and recent[-1] > recent[0] else 0.0
