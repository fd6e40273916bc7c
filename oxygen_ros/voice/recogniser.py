"""Understands spoken phrases with PocketSphinx, and says when it does not."""

from __future__ import annotations

import enum
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.voice.phrases import Kind, Phrases

RATE = 16000  # samples per second: what the acoustic model was trained on
MISSING = "needs the Python package pocketsphinx: install it with pip install 'oxygen_ros[speech]'"
# Wider than usual, and no rescoring: the grammar is small, and short or accented words get lost otherwise.
SEARCH = {'beam': 1e-64, 'wbeam': 1e-48, 'pbeam': 1e-64, 'bestpath': False}
# PocketSphinx gives acoustic scores as 1.0001 ** (log likelihood to the base 1.0001 / 1024).
NATS = 1024.0
MIN_CONFIDENCE = -1.6  # nats per frame, see doc/voice.md
MOST_LEFT_OUT = 0.6  # seconds of speech beside the phrase: it was part of other talk
FRAMES_PER_SECOND = 100


class Outcome(enum.Enum):
    """What became of an utterance."""

    UNDERSTOOD = 'understood'
    NOT_UNDERSTOOD = 'not understood'  # no whole phrase of the grammar
    UNLIKELY = 'unlikely'              # a phrase, but other sounds fit clearly better, or there was more talk
    NOT_ADDRESSED = 'not addressed'    # a phrase, without the wake word
    TALKED_OVER = 'talked over'        # the robot began to speak amid it


@dataclass(frozen=True)
class Heard:
    """
    What the recogniser made of an utterance.

    :param text: the phrase without the wake word; of what was not understood the nearest guess, for logs only.
    :param kind: None where it is not understood.
    :param confidence: log likelihood of the words relative to that of any sounds, nats per frame: 0 is the best.
    :param seconds: length of the sound.
    :param cpu_seconds: what recognising took.
    """

    outcome: Outcome
    text: str = ''
    kind: Kind | None = None
    confidence: float = -math.inf
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class _Segment:
    word: str
    first: int  # frame
    last: int
    score: float  # log likelihood, nats

    @property
    def filler(self) -> bool:
        return self.word.startswith(('<', '[', '+')) or self.word == 'SIL'


class Recogniser:
    """
    Recognises one utterance after the other. One thread at a time.

    A grammar finds a phrase in anything. Therefore the same sound is also decoded as a free sequence of phones: where
    that fits much better, or hears speech around the phrase, it was something else.

    :param phrases: what can be understood.
    :param min_confidence: nats per frame; with less an utterance counts as unlikely.
    :raises ConfigError: PocketSphinx is missing, or a word has no pronunciation.
    """

    def __init__(self, phrases: Phrases, min_confidence: float = MIN_CONFIDENCE) -> None:
        try:
            from pocketsphinx import Decoder
        except ModuleNotFoundError as error:
            raise ConfigError(f'speech recognition {MISSING}') from error
        self.phrases = phrases
        self._min_confidence = min_confidence
        self._decoder = Decoder(lm=None, samprate=float(RATE), loglevel='FATAL', **SEARCH)
        unknown = sorted(word for word in phrases.words()
                         if word not in phrases.pronunciations and self._decoder.lookup_word(word) is None)
        if unknown:
            raise ConfigError(f'no pronunciation is known of {", ".join(map(repr, unknown))}: add it to pronunciations '
                              'of the phrases file, in phones of CMUdict, or use other words')
        for word, phones in phrases.pronunciations.items():
            try:
                self._decoder.add_word(word, phones)
            except RuntimeError as error:
                raise ConfigError(f'pronunciation {phones!r} of {word!r} is refused: {error}') from error
        self._decoder.add_jsgf_string('phrases', phrases.grammar())
        self._decoder.add_allphone_file('phones', None)

    def recognise(self, samples: np.ndarray) -> Heard:
        """
        Recognise an utterance.

        :param samples: int16 [samples], RATE per second, of a single speaker, silence around it.
        """
        began = time.thread_time()
        sound = np.ascontiguousarray(samples, dtype=np.int16).tobytes()
        text, words = self._decode('phrases', sound)
        addressed, text = self.phrases.split_wake_word(text)
        kind, confidence = self.phrases.kind(text), -math.inf
        if kind is None:  # nothing, or only the beginning of a phrase
            outcome = Outcome.NOT_UNDERSTOOD
        else:
            _, phones = self._decode('phones', sound)
            confidence = confidence_of(words, phones)
            if not confidence >= self._min_confidence or left_out(words, phones) > MOST_LEFT_OUT:
                outcome = Outcome.UNLIKELY
            elif not addressed and kind is not Kind.STOP:
                outcome = Outcome.NOT_ADDRESSED
            else:
                outcome = Outcome.UNDERSTOOD
        return Heard(outcome, text, kind if outcome is Outcome.UNDERSTOOD else None, confidence,
                     len(samples) / RATE, time.thread_time() - began)

    def _decode(self, search: str, sound: bytes) -> tuple[str, list[_Segment]]:
        decoder = self._decoder
        decoder.activate_search(search)
        decoder.start_utt()
        decoder.process_raw(sound, full_utt=True)
        decoder.end_utt()
        best = decoder.hyp()
        segments = [_segment(segment) for segment in decoder.seg() or ()] if best is not None else []
        return best.hypstr if best is not None else '', [item for item in segments if item.last >= item.first >= 0]


def confidence_of(words: list[_Segment], phones: list[_Segment]) -> float:
    """Return the log likelihood of words and silence relative to that of free phones, nats per frame of the sound."""
    if not phones or all(item.filler for item in words):
        return -math.inf
    return (sum(item.score for item in words) - sum(item.score for item in phones)) / (phones[-1].last + 1)


def left_out(words: list[_Segment], phones: list[_Segment]) -> float:
    """Return the seconds in which free phones hear speech and the words say there is silence."""
    silent = {frame for item in words if item.filler for frame in range(item.first, item.last + 1)}
    spoken = {frame for item in phones if not item.filler for frame in range(item.first, item.last + 1)}
    return len(silent & spoken) / FRAMES_PER_SECOND


def _segment(segment: Any) -> _Segment:
    score = math.log(segment.ascore) * NATS if segment.ascore > 0 else -math.inf
    # Joints of the grammar are segments without sound.
    first = segment.start_frame if segment.word != '(NULL)' else -1
    return _Segment(segment.word, first, segment.end_frame, score)
