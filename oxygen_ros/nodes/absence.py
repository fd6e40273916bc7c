"""Inputs from which nothing comes: of which kind that is, and what to say when it is the same with all of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from rclpy.node import Node

from oxygen_ros.nodes.input import Input, is_announced, is_there, why_nothing
from oxygen_ros.perception.health import Arrivals, Level

DISCOVERY_SECONDS = 3.0  # before an input that never came is reported
BEGIN_SECONDS = 60.0     # that a publisher may take before its first message, such as a replay that waits for a model


class Absence(enum.Enum):
    """How it is that nothing comes from an input."""

    NOT_BEGUN = 'not_begun'      # a publisher is there, which has sent nothing yet
    SILENT = 'silent'            # the same for longer than anything should wait
    UNPUBLISHED = 'unpublished'  # there was no message, and nobody publishes
    NEVER_CAME = 'never_came'    # there was no message, though somebody publishes: another type or QoS
    LATE = 'late'                # messages came, and their publisher is still there
    GONE = 'gone'                # messages came, and nobody publishes any more


@dataclass(frozen=True)
class Absent:
    """What is said about one input from which nothing comes."""

    kind: Absence
    level: Level
    text: str


# What happens to all inputs at once is no fault of one of them, but a replay, a robot or a network: one line tells it.
TOGETHER = {
    Absence.NOT_BEGUN: (Level.OK, 'waiting for the first message of {}: they have publishers, which have not begun'),
    Absence.SILENT: (Level.WARN, 'still no message of {}: are their publishers at work, or do they wait?'),
    Absence.UNPUBLISHED: (Level.WARN, 'nobody publishes {} yet: if this lasts check the names, and that the publishers '
                                      'run in the same ROS domain'),
    Absence.LATE: (Level.ERROR, 'nothing comes any more of {}, which still have publishers: are these paused, or is '
                                'the network down?'),
    Absence.GONE: (Level.WARN, 'nobody publishes {} any more, as after a replay: waiting for other publishers'),
}


def find_absence(node: Node, item: Input, arrivals: Arrivals, now_s: float, timeout_s: float) -> Absent | None:
    """
    Tell whether nothing comes from an input.

    :param now_s: on the clock of `arrivals`. :param timeout_s: without a message until a known input counts as absent.
    """
    age = arrivals.age(now_s)
    if age <= (DISCOVERY_SECONDS if arrivals.never else timeout_s):
        return None
    level = Level.ERROR if item.required else Level.WARN
    if not arrivals.never:
        kind = Absence.LATE if is_there(node, item) else Absence.GONE
        return Absent(kind, level, f'nothing for {age:.1f} s: {why_nothing(node, item)}')
    if is_announced(node, item):
        if age <= BEGIN_SECONDS:
            return Absent(Absence.NOT_BEGUN, Level.WARN, 'it has a publisher, which has sent nothing yet')
        return Absent(Absence.SILENT, level, why_nothing(node, item))
    kind = Absence.NEVER_CAME if is_there(node, item) else Absence.UNPUBLISHED
    return Absent(kind, level, why_nothing(node, item))


def common_absence(inputs: Mapping[str, Input], absent: Mapping[str, Absent]) -> tuple[Absence, Level, str] | None:
    """Return what one line may say for all inputs; None if some are well, or not all are absent in the same way."""
    kinds = {absent[name].kind if name in absent else None for name in inputs}
    kind = kinds.pop()
    if kinds or kind not in TOGETHER:
        return None
    level, text = TOGETHER[kind]
    return kind, level, text.format(', '.join(f'{item.title} ({item.place})' for item in inputs.values()))
