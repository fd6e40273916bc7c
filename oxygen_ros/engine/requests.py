"""What goes into the engine and what comes out of it: plain messages, safe to hand between threads."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # programs that only watch the engine need not load torch
    from oxygen_ros.models.interface import PolicyInput

MOST_STOPS, LONGEST_STOP = 16, 200
LONGEST_CONVERSATION = 100  # characters of a name
LONGEST_TIMEOUT = 3600.0    # seconds
LONGEST_INSTRUCTION = 4000  # characters; models are trained with a sentence or two


def instruction_problem(text: str) -> str:
    """Return why a text cannot be an instruction, and what to do; empty if it can."""
    if not text.strip():
        return 'the instruction is empty: use the stop service to stop'
    if len(text) > LONGEST_INSTRUCTION:
        return (f'the instruction has {len(text)} characters, at most {LONGEST_INSTRUCTION} are taken: say it in fewer '
                'words')
    return ''


class FinishReason(enum.Enum):
    """Why a text ended. The values are the constants of oxygen_ros/TextChunk."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    SUPERSEDED = 4
    TIMED_OUT = 5
    FRAME_BUDGET = 6
    DROPPED = 7
    ERROR = 8
    REPETITION = 9


class BargeIn(str, enum.Enum):
    """What becomes of the unfinished answers of a conversation when the next question comes."""

    SUPERSEDE = 'supersede'  # they end now
    QUEUE = 'queue'          # the new one waits until they have ended
    BESIDE = 'beside'        # both decode at the same time


class Refusal(enum.Enum):
    """Why a request was not admitted."""

    PROMPT_TOO_LONG = 'prompt_too_long'
    BAD_PROMPT = 'bad_prompt'
    QUEUE_FULL = 'queue_full'
    NO_TEXT_HEAD = 'no_text_head'
    NO_SUBTASKS = 'no_subtasks'


class AdmissionError(Exception):
    """A request was refused; `refusal` says why, the text names the value and the remedy."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


@dataclass(frozen=True)
class SamplingParams:
    """
    How tokens of one request are chosen.

    :param temperature: 0 is greedy. :param top_p: nucleus sampling, 1 keeps every token.
    :param seed: of the request's own generator, so that its text does not depend on what else is in the batch.
    :param stop: strings that end the text where they would appear; they are not part of it.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1:
            raise ValueError(f'max_tokens {self.max_tokens} must be at least 1, temperature {self.temperature} finite '
                             f'and at least 0, top_p {self.top_p} in (0, 1]')
        if not 0 <= self.seed < 2**63:
            raise ValueError(f'seed {self.seed} must be in [0, 2^63)')
        if len(self.stop) > MOST_STOPS or not all(0 < len(string) <= LONGEST_STOP for string in self.stop):
            raise ValueError(f'stop has {len(self.stop)} strings, at most {MOST_STOPS} of 1 to {LONGEST_STOP} '
                             'characters are looked for')


@dataclass(frozen=True)
class TextRequest:
    """
    One text to generate.

    :param request_id: unique, from 1. :param task: 'speech', 'answer', 'memory' or 'subtask'; it chooses the prompt.
    :param text: the question of 'answer', what the robot shall achieve of 'subtask'.
    :param priority: lower starts first; equal ones start in order of arrival. 0 is for those that somebody waits for.
    :param arrived: when it came, :param expires: when it is given up, both in seconds of the engine's clock.
    :param queue_limit: most waiting requests of this task, this one included.
    :param drop_oldest: over the limit, drop the oldest waiting one instead of refusing this one.
    :param conversation: whose last exchanges are told to the model, and within which `barge_in` applies; empty: none.
    :param notes: from memory, most relevant first; told to the model as quoted data.
    """

    request_id: int
    task: str
    text: str = ''
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 1
    arrived: float = 0.0
    expires: float | None = None
    queue_limit: int = 8
    drop_oldest: bool = False
    conversation: str = ''
    barge_in: BargeIn = BargeIn.BESIDE
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.request_id < 1 or self.queue_limit < 1:
            raise ValueError(f'request_id {self.request_id} and queue_limit {self.queue_limit} must be at least 1')
        if len(self.conversation) > LONGEST_CONVERSATION:
            raise ValueError(f'the name of the conversation has {len(self.conversation)} characters, at most '
                             f'{LONGEST_CONVERSATION} are taken: choose a shorter one')

    @property
    def own_prefix(self) -> bool:
        """Whether it stands on a prefix that no other task can share."""
        return self.task == 'subtask'


@dataclass(frozen=True)
class ActionChunk:
    """
    Actions of one frame in normalised model space.

    :param actions: float32 [horizon, action_dim].
    :param deadline: when it was due, :param started: start of its prefill or denoising, :param finished: when it was
        ready; seconds of the engine's clock.
    """

    inputs: PolicyInput
    actions: np.ndarray
    deadline: float
    started: float
    finished: float


@dataclass(frozen=True)
class ActionSkipped:
    """An action that was due and not taken because there is no frame, or the newest is too old."""

    deadline: float
    reason: str


@dataclass(frozen=True)
class ActionFailed:
    """An action that the model could not make: it raised. The next one is tried."""

    deadline: float
    frame_number: int
    reason: str


@dataclass(frozen=True)
class TextDelta:
    """
    New text of a request. `finish` is None while more follows; `inputs` is None if the request was never started.

    :param sequence: number of this piece from 0. :param tokens: generated so far. :param elapsed: seconds from arrival.
    :param message: explains the end. :param left_out: in the last piece, what the prompt lacked, in words.
    """

    request: TextRequest
    inputs: PolicyInput | None
    sequence: int
    delta: str
    tokens: int
    elapsed: float
    finish: FinishReason | None = None
    message: str = ''
    left_out: str = ''


Event = ActionChunk | ActionSkipped | ActionFailed | TextDelta
