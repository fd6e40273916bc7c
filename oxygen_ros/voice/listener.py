"""Finds utterances in a stream of sound and has them recognised."""

from __future__ import annotations

from collections import Counter

import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.voice.recogniser import MISSING, RATE, Heard, Outcome, Recogniser

SHORTEST = 0.25  # seconds of speech: a knock is shorter
LONGEST = 12.0  # seconds, after which an utterance is cut: somebody else is talking, or a radio
PADDING = RATE // 4  # samples of silence on both sides, as the acoustic model expects it


class Listener:
    """
    Takes blocks of sound and gives what was heard. One thread.

    :param recogniser: recognises single utterances.
    :param seed: of the faint noise that stands for silence.
    :raises ConfigError: PocketSphinx is missing.
    """

    def __init__(self, recogniser: Recogniser, seed: int = 0) -> None:
        self.counts: Counter[Outcome] = Counter()
        self._recogniser = recogniser
        self._random = np.random.default_rng(seed)
        self._begin()

    @property
    def in_speech(self) -> bool:
        """Whether somebody is speaking, as far as can be told."""
        return bool(self._endpointer.in_speech)

    def reset(self) -> None:
        """Forget the utterance that is being spoken, as what comes next does not belong to it."""
        if self._parts:
            self.counts[Outcome.TALKED_OVER] += 1
        self._begin()

    def _begin(self) -> None:
        try:
            from pocketsphinx import Endpointer
        except ModuleNotFoundError as error:
            raise ConfigError(f'speech recognition {MISSING}') from error
        self._endpointer = Endpointer(sample_rate=RATE)
        self._parts: list[bytes] = []

    def push(self, block: np.ndarray) -> Heard | None:
        """
        Take a block, int16 [BLOCK]; return what was heard when an utterance ends with it.

        Silence ends an utterance after 0.3 s. What is too short is no utterance.
        """
        speech = self._endpointer.process(block.tobytes())
        if speech is not None:
            self._parts.append(speech)
        seconds = sum(map(len, self._parts)) / 2 / RATE
        if not self._parts or (self._endpointer.in_speech and seconds < LONGEST):
            return None
        sound = np.frombuffer(b''.join(self._parts), np.int16)
        self._parts = []
        if seconds >= LONGEST:
            self._begin()
        if seconds < SHORTEST:
            return None
        heard = self._recogniser.recognise(self._padded(sound))
        self.counts[heard.outcome] += 1
        return heard

    def _padded(self, sound: np.ndarray) -> np.ndarray:
        level = max(2.0, float(np.percentile(np.abs(sound.astype(np.float64)), 5)))
        before, after = self._random.normal(0, level, (2, PADDING)).astype(np.int16)
        return np.concatenate([before, sound, after])
