"""The subtask task: the model says what to do next, and that becomes the instruction of its actions, as in π0.5."""

from __future__ import annotations

import re

from oxygen_ros.engine.requests import FinishReason, TextDelta

_END = re.compile(r'[;\n]')  # what follows belongs to the next part of the prompt that the model was trained on


class SubtaskCollector:
    """Joins the increments of subtasks. Those that were cut short are no instructions."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def push(self, delta: TextDelta) -> str:
        """Take in an increment; return the subtask when it is complete, else an empty string."""
        request_id = delta.request.request_id
        text = self._texts.pop(request_id, '') + delta.delta
        if delta.finish is None:
            self._texts[request_id] = text
            return ''
        first, ended = _END.split(text, maxsplit=1)[0], _END.search(text) is not None
        return first.strip(' .') if delta.finish is FinishReason.STOP or ended else ''

    def clear(self) -> None:
        """Forget unfinished subtasks."""
        self._texts.clear()
