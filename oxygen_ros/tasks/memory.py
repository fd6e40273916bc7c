"""The memory task: collects the note about a frame until it is complete."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oxygen_ros.engine.requests import FinishReason, TextDelta


@dataclass(frozen=True)
class Note:
    """
    A finished note about an observation. `tf_frame` is handed on to the published entry.

    :param image: picture of its first camera, uint8 [height, width, 3]; None if it had none.
    """

    text: str
    stamp_ns: int
    frame_number: int
    tf_frame: str
    image: np.ndarray | None = field(default=None, compare=False, repr=False)


class NoteCollector:
    """Joins the increments of notes. Notes that were cut short by anything but their length are not remembered."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def push(self, delta: TextDelta) -> Note | None:
        """Take in an increment; return the note when it is complete and not empty."""
        request_id = delta.request.request_id
        text = self._texts.pop(request_id, '') + delta.delta
        if delta.finish is None:
            self._texts[request_id] = text
            return None
        if delta.finish not in (FinishReason.STOP, FinishReason.LENGTH) or not text.strip() or delta.inputs is None:
            return None
        observation = delta.inputs.observation
        image = next(iter(observation.images.values()), None)
        return Note(text.strip(), observation.stamp_ns, observation.number, observation.tf_frame, image)

    def clear(self) -> None:
        """Forget unfinished notes."""
        self._texts.clear()
