"""The speech task: narration on a timer, answers to questions, whole sentences for a text-to-speech node."""

from __future__ import annotations

import re

# The end of a sentence: a mark, perhaps a closing quote or bracket, white space. Full-width marks need no white space.
_CLOSE = r'["\'”’)\]」』）]'
_END = re.compile(rf'[.!?…。！？]+{_CLOSE}*\s+|[。！？]+{_CLOSE}*(?=[^\s.!?…。！？"\'”’)\]」』）])|\n+')
LONGEST = 300  # characters after which a sentence is cut at a blank, so that speech never waits for ever


class SentenceSplitter:
    """Collects increments of one text and gives out whole sentences."""

    def __init__(self) -> None:
        self._text = ''

    def push(self, delta: str) -> list[str]:
        """Take in an increment and return the sentences that it completes."""
        self._text += delta
        sentences = []
        while True:
            end = _END.search(self._text)
            if end is not None:
                cut = end.end()
            elif len(self._text) > LONGEST:
                cut = self._text.rfind(' ', 0, LONGEST) + 1 or LONGEST
            else:
                return sentences
            sentence, self._text = self._text[:cut].strip(), self._text[cut:]
            if sentence:
                sentences.append(sentence)

    def flush(self) -> list[str]:
        """Return what is left when the text has ended."""
        rest, self._text = self._text.strip(), ''
        return [rest] if rest else []


class SentenceStream:
    """Sentences of several texts that stream at the same time."""

    def __init__(self) -> None:
        self._splitters: dict[int, SentenceSplitter] = {}

    def push(self, request_id: int, delta: str, finished: bool) -> list[str]:
        """Take in an increment of a text and return whole sentences; the rest too if the text has finished."""
        splitter = self._splitters.setdefault(request_id, SentenceSplitter())
        sentences = splitter.push(delta)
        if finished:
            sentences += self._splitters.pop(request_id).flush()
        return sentences

    def clear(self) -> None:
        """Forget all texts."""
        self._splitters.clear()
