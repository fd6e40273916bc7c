"""The last exchanges of each conversation, bounded; what was said goes into the next prompt."""

from __future__ import annotations

from collections import OrderedDict

from oxygen_ros.engine.requests import FinishReason
from oxygen_ros.models.prompt_context import Exchange

MOST = 32  # conversations that are kept; the one that was silent for longest goes first

# What was said before the text was ended counts. What went wrong does not: it would only call for more of its kind.
KEPT = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.SUPERSEDED,
        FinishReason.TIMED_OUT, FinishReason.FRAME_BUDGET)


class Conversations:
    """
    Exchanges by the name of their conversation. Belongs to the thread of the engine.

    :param limit: exchanges kept of each; 0 keeps none.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._exchanges: OrderedDict[str, tuple[Exchange, ...]] = OrderedDict()

    def exchanges(self, name: str) -> tuple[Exchange, ...]:
        """Return the last exchanges of a conversation, oldest first."""
        return self._exchanges.get(name, ())

    def ended(self, name: str, question: str, answer: str, reason: FinishReason) -> None:
        """Take in an answer that has ended; one in which nothing was said, or that went wrong, is not kept."""
        if not name or not self._limit or reason not in KEPT or not answer.strip():
            return
        exchanges = (*self._exchanges.pop(name, ()), Exchange(question, answer))
        self._exchanges[name] = exchanges[-self._limit:]
        if len(self._exchanges) > MOST:
            self._exchanges.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._exchanges.clear()
