"""One text while it waits and decodes: its branch, its sampler, and the text that has not been handed out yet."""

from __future__ import annotations

from collections.abc import Sequence

from oxygen_ros.engine.detokenizer import IncrementalDetokenizer
from oxygen_ros.engine.markup_filter import MarkupFilter
from oxygen_ros.engine.repetition import RepetitionRule
from oxygen_ros.engine.requests import FinishReason, TextDelta, TextRequest
from oxygen_ros.engine.sampling import Sampler
from oxygen_ros.engine.stop_strings import StopStrings
from oxygen_ros.models.interface import PolicyInput, TextTokenizer


class TextStream:
    """
    State of a text request. `slot` and `inputs` (the observation that it is about) are set by `start`.

    :param left_out: what its prompt lacks, in words; see `PromptBuilder.build`.
    :param copies: of one piece in a row that end the text; 0 is no limit.
    :ivar prompted: tokens of its prompt that are in its branch.
    :ivar blocked: it waits for others of its conversation.
    :ivar said: all text handed out so far.
    """

    def __init__(self, request: TextRequest, prompt: Sequence[int], tokenizer: TextTokenizer, left_out: str = '',
                 copies: int = 0) -> None:
        self.request, self.prompt, self.left_out = request, list(prompt), left_out
        self.sampler = Sampler(request.sampling)
        self.slot: int | None = None
        self.inputs: PolicyInput | None = None
        self.last_token: int | None = None
        self.tokens = 0
        self.prompted = 0
        self.blocked = False
        self.said = ''
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._markup = MarkupFilter()
        self._stop = StopStrings(request.sampling.stop)
        self._repetition = RepetitionRule(copies)
        self._pending = ''
        self._sequence = 0
        self._sent = float('-inf')

    def start(self, slot: int, inputs: PolicyInput) -> None:
        """Say which branch it decodes on, and which observation that is about."""
        self.slot, self.inputs = slot, inputs

    def push(self, token: int) -> FinishReason | None:
        """Take in a generated token; return why the text ends with it, None if it goes on."""
        self.last_token = token
        self.tokens += 1
        self._pending += self._stop.push(self._markup.push(self._detokenizer.push(token)))
        if self._stop.found:
            return FinishReason.STOP
        if self._repetition.push(token):
            return FinishReason.REPETITION
        return FinishReason.LENGTH if self.tokens >= self.request.sampling.max_tokens else None

    @property
    def prompt_left(self) -> list[int]:
        """The tokens of its prompt that are not in its branch yet; until there are none it does not decode."""
        return self.prompt[self.prompted:]

    def due(self, now: float, interval: float) -> bool:
        """Return whether there is text to hand out and the last piece is long enough ago."""
        return bool(self._pending) and now - self._sent >= interval

    def expired(self, now: float) -> bool:
        """Return whether its time limit is over."""
        return self.request.expires is not None and self.request.expires <= now

    def take(self, now: float, finish: FinishReason | None = None, message: str = '') -> TextDelta:
        """Return the text since the piece before; with a finish reason, the last piece."""
        if finish is not None:
            self._flush()
        delta = TextDelta(self.request, self.inputs, self._sequence, self._pending, self.tokens,
                          now - self.request.arrived, finish, message, self.left_out if finish else '')
        self.said += self._pending
        self._pending = ''
        self._sequence += 1
        self._sent = now
        return delta

    @property
    def repeated(self) -> int:
        """Number of tokens of the piece that ended the text with REPETITION."""
        return self._repetition.period

    def _flush(self) -> None:
        """Take in what the stages held back until now, each through those behind it."""
        rest = self._stop.push(self._markup.push(self._detokenizer.flush()) + self._markup.flush())
        self._pending += rest + self._stop.flush()
