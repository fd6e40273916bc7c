"""What all text tasks share: settings of a task, and requests made from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from oxygen_ros.engine.requests import LONGEST_TIMEOUT, BargeIn, SamplingParams, TextRequest


@dataclass(frozen=True)
class TextTask:
    """
    Settings of one text task.

    :param name: 'speech', 'answer', 'memory' or 'subtask'. :param priority: lower starts first.
    :param timeout: seconds from arrival after which a text is given up.
    :param ids: source of request ids, shared by all tasks of a node.
    """

    name: str
    priority: int
    sampling: SamplingParams
    timeout: float
    ids: Iterator[int]
    queue_limit: int = 2
    drop_oldest: bool = False

    def request(self, now: float, text: str = '', timeout: float | None = None, conversation: str = '',
                barge_in: BargeIn = BargeIn.BESIDE, notes: Sequence[str] = (), **sampling: object) -> TextRequest:
        """
        Return a new request.

        :param now: seconds of the engine's clock. :param timeout: instead of the task's.
        :param conversation, barge_in, notes: see `TextRequest`.
        :param sampling: fields of SamplingParams instead of the task's.
        :raises ValueError: a value is out of range.
        """
        timeout = self.timeout if timeout is None else timeout
        if not 0 < timeout <= LONGEST_TIMEOUT:  # NaN is not either
            raise ValueError(f'timeout {timeout:g} must be above 0 and at most {LONGEST_TIMEOUT:g} seconds')
        params = replace(self.sampling, **sampling)
        request_id = next(self.ids)
        if 'seed' not in sampling:
            # Texts of one task differ, and still the n-th of a run is always the same.
            params = replace(params, seed=(params.seed * 1_000_003 + request_id) % 2**63)
        return TextRequest(request_id, self.name, text, params, self.priority, now,
                           now + timeout, self.queue_limit, self.drop_oldest,
                           conversation, barge_in, tuple(notes))
