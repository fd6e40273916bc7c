"""
Record: what the demo saw of the running nodes. Plain data, no ROS.

Threads: the monitor's executor writes, the main thread reads. Both hold `Record.lock` while they do.
All times are seconds of `time.monotonic`, taken in the demo's process.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

RATE_WINDOW = 5.0  # seconds that a live rate looks back


class Milestone(enum.Enum):
    """What happens while the nodes set up, in order. The values are shown."""

    NODES = 'nodes started'
    MODEL = 'model loaded and warmed up'
    FRAME = 'first frame reached the model'
    CHUNK = 'first action chunk'


@dataclass
class Text:
    """
    One text of the topic `speech`.

    :param first_token: seconds from the arrival of the request in the node to the piece with its first token.
    :param first_seen: when that piece arrived here.
    :param finish: why it ended, in words ('stop', 'length', 'cancelled', ...), empty while it goes on.
    :param stamp_ns: of the frame that it is about.
    """

    request_id: int
    task: str
    text: str = ''
    tokens: int = 0
    first_token: float | None = None
    first_seen: float | None = None
    finish: str = ''
    frame_number: int = 0
    stamp_ns: int = 0


@dataclass
class Question:
    """
    One call of `ask`.

    :param asked: when it was sent. :param accepted: None until the node has answered the call.
    :param message: why it was refused. :param cancel: whether the demo cancels it at once.
    :param cancelled: ids that the `cancel` service named; None until it has answered.
    :param wait: whether the response holds the answer, :param answer: that answer.
    """

    question: str
    asked: float
    cancel: bool = False
    wait: bool = False
    accepted: bool | None = None
    message: str = ''
    request_id: int = 0
    cancelled: list[int] | None = None
    answer: str = ''


@dataclass
class Note:
    """The newest note on the topic `memory`."""

    entry_id: int
    text: str
    count: int


@dataclass
class Instruction:
    """One call of `set_instruction`; accepted is None until the node has answered."""

    instruction: str
    accepted: bool | None = None
    message: str = ''


@dataclass(frozen=True)
class MemoryAnswer:
    """What `query_memory` said: entries in the store, newest first, as texts."""

    success: bool
    message: str
    texts: tuple[str, ...]


@dataclass
class Record:
    """
    What was seen since `started`.

    :param started: when the nodes were started.
    :param status: the newest EngineStatus message; `first_status` the first that came after the first chunk.
    :param diagnostics: name -> (level 0 ok, 1 warning, 2 error, 3 stale; message), from /diagnostics.
    """

    started: float
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    reached: dict[Milestone, float] = field(default_factory=dict)
    chunks: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    texts: dict[int, Text] = field(default_factory=dict)
    sentences: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    questions: list[Question] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    note: Note | None = None
    note_messages: int = 0
    memory: MemoryAnswer | None = None
    status: Any = None
    status_time: float = 0.0
    first_status: Any = None
    first_status_time: float = 0.0
    diagnostics: dict[str, tuple[int, str]] = field(default_factory=dict)

    def reach(self, milestone: Milestone, now: float) -> None:
        """Note that a milestone was reached, the first time; those before it were then reached as well."""
        for each in Milestone:
            self.reached.setdefault(each, now)
            if each is milestone:
                return

    def take_chunk(self, now: float) -> None:
        """Take in an action chunk."""
        self.chunks.append(now)
        self.reach(Milestone.CHUNK, now)

    def take_status(self, status: Any, now: float) -> None:
        """Take in an EngineStatus."""
        self.status, self.status_time = status, now
        self.reach(Milestone.FRAME if status.frames_received else Milestone.MODEL, now)
        if self.chunks and self.first_status is None:
            self.first_status, self.first_status_time = status, now

    def text(self, request_id: int, task: str) -> Text:
        """Return the text of a request, a new one if it is not known yet."""
        return self.texts.setdefault(request_id, Text(request_id, task))

    @property
    def settled(self) -> bool:
        """Whether nothing that was asked is still open."""
        return all(question.accepted is False or (text is not None and bool(text.finish))
                   for question in self.questions for text in (self.answer_of(question),))

    def answer_of(self, question: Question) -> Text | None:
        """Return the text that answers a question, as it was streamed."""
        return self.texts.get(question.request_id) if question.accepted else None


def rate(times: list[float], end: float | None = None) -> float:
    """
    Return events per second, from the first to the last; 0 for fewer than two.

    :param end: when watching ended. If nothing came for two intervals before it, that silence counts.
    """
    if len(times) < 2:
        return 0.0
    span = times[-1] - times[0]
    if end is not None and (end - times[-1]) > 2 * span / (len(times) - 1):
        span = end - times[0]
    return (len(times) - 1) / span if span > 0 else 0.0


def live_rate(times: list[float], now: float) -> float:
    """Return the rate over the last `RATE_WINDOW` seconds."""
    recent = [time for time in times[-1000:] if time >= now - RATE_WINDOW]
    return rate(recent, now)
