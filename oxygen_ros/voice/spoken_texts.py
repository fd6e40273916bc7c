"""Makes lines for the voice of texts that stream: which texts, in whole sentences, and not the same again and again."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence

from oxygen_ros.tasks.speech import SentenceStream
from oxygen_ros.voice.lines import Line, LineQueue

ANSWER = 'answer'
REMEMBERED = 256  # texts that have ended: pieces of them that come late are not spoken


class TextEnd(enum.Enum):
    """How a text ended, as far as the voice is concerned."""

    WHOLE = 'whole'            # all of it is spoken
    CUT = 'cut'                # whole sentences are spoken, the rest of one is not
    TAKEN_BACK = 'taken back'  # not a word more


class SpokenTexts:
    """
    Takes pieces of texts and puts lines into a queue. One thread.

    Answers are urgent, and a newer one of the same conversation replaces an older one. Lines of other tasks are
    replaced by newer ones of their task; the same line is not said again within `repeat_after`.

    :param queue: where lines go.
    :param tasks: the tasks whose texts are spoken.
    :param repeat_after: seconds.
    """

    def __init__(self, queue: LineQueue, tasks: Sequence[str], repeat_after: float) -> None:
        self.repeated = 0  # lines that were left out for that
        self._queue = queue
        self._tasks = frozenset(tasks)
        self._repeat_after = repeat_after
        self._sentences = SentenceStream()
        self._said: dict[str, tuple[str, float]] = {}  # task -> its last line, when
        self._ended: OrderedDict[int, None] = OrderedDict()

    def push(self, now: float, request: int, task: str, conversation: str, delta: str, first: bool,
             end: TextEnd | None) -> None:
        """
        Take a piece of a text.

        :param now: seconds of a clock that only goes on.
        :param first: it is the first piece; a number that was there before belongs to an earlier run of the engine.
        :param end: None if more pieces follow.
        """
        if task not in self._tasks:
            return
        if first:
            self._ended.pop(request, None)
            self._sentences.push(request, '', finished=True)
        elif request in self._ended:
            return
        sentences = self._sentences.push(request, delta, end is not None)
        if end is TextEnd.TAKEN_BACK:
            self._queue.take_back(request)
            sentences = []
        elif end is TextEnd.CUT and sentences and not _finished(sentences[-1]):
            sentences.pop()
        for sentence in sentences:
            self._put(now, request, task, conversation, sentence)
        if end is not None:
            self._ended[request] = None
            if len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)

    def _put(self, now: float, request: int, task: str, conversation: str, sentence: str) -> None:
        if task == ANSWER:
            stream = f'{ANSWER} {conversation}' if conversation else ''
            self._queue.put(Line(sentence, request, stream, urgent=True))
            return
        text, when = self._said.get(task, ('', 0.0))
        if text == sentence and now - when < self._repeat_after:
            self.repeated += 1
            return
        self._said[task] = sentence, now
        self._queue.put(Line(sentence, request, task))


def _finished(sentence: str) -> bool:
    return sentence.rstrip('"\'”’)]」』）').endswith(('.', '!', '?', '…', '。', '！', '？'))

