"""One text while it waits and decodes: its branch, its sampler, and the text that has not been handed out yet."""

from __future__ import annotations

from collections.abc import Sequence

from oxygen_ros.engine.detokenizer import IncrementalDetokenizer
from oxygen_ros.engine.requests import FinishReason, TextDelta, TextRequest
from oxygen_ros.engine.sampling import Sampler
from oxygen_ros.models.interface import PolicyInput, TextTokenizer


class TextStream:
    """State of a text request. `slot` and `inputs` (the observation that it is about) are set by `start`."""

    def __init__(self, request: TextRequest, prompt: Sequence[int], tokenizer: TextTokenizer) -> None:
        self.request, self.prompt = request, list(prompt)
        self.sampler = Sampler(request.sampling)
        self.slot: int | None = None
        self.inputs: PolicyInput | None = None
        self.last_token: int | None = None
        self.tokens = 0
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._pending = ''
        self._sequence = 0
        self._sent = float('-inf')

    def start(self, slot: int, inputs: PolicyInput) -> None:
        """Say which branch it decodes on, and which observation that is about."""
        self.slot, self.inputs = slot, inputs

    def push(self, token: int) -> None:
        """Take in a generated token."""
        self.last_token = token
        self.tokens += 1
        self._pending += self._detokenizer.push(token)

    def due(self, now: float, interval: float) -> bool:
        """Return whether there is text to hand out and the last piece is long enough ago."""
        return bool(self._pending) and now - self._sent >= interval

    def expired(self, now: float) -> bool:
        """Return whether its time limit is over."""
        return self.request.expires is not None and self.request.expires <= now

    def take(self, now: float, finish: FinishReason | None = None, message: str = '') -> TextDelta:
        """Return the text since the piece before; with a finish reason, the last piece."""
        if finish is not None:
            self._pending += self._detokenizer.flush()
        delta = TextDelta(self.request, self.inputs, self._sequence, self._pending, self.tokens,
                          now - self.request.arrived, finish, message)
        self._pending = ''
        self._sequence += 1
        self._sent = now
        return delta
