"""Voice and recogniser tested on each other: phrases that the voice says, and other talk, with noise."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np

from oxygen_ros.voice.audio import blocks, resample
from oxygen_ros.voice.listener import Listener
from oxygen_ros.voice.phrases import Kind, Phrases, task_phrases
from oxygen_ros.voice.recogniser import MIN_CONFIDENCE, RATE, Heard, Outcome, Recogniser
from oxygen_ros.voice.synthesiser import Synthesiser

# Other voices and other talk than those that the limits in recogniser.py were chosen with.
VOICES = ('en-us+m7', 'en-us+f2', 'en+f4', 'en-gb-x-rp+m1')
OTHER_TALK = (
    'good morning everybody', 'can you hear me', 'i left my keys at home', 'where did you put the cups',
    'point it at somebody else', 'reach for the stars', 'go to bed', 'the blue ball is mine',
    'i like the red cube best', 'there are two cubes on the table', 'yes', 'maybe later', 'what colour is your car',
    'is there any tea left', 'how many people are coming', 'what shape are you in', 'where is the bathroom',
    'let us have a break', 'the train leaves at half past seven', 'turn the light off please', 'who wrote this book',
    'she sells sea shells', 'i rest my case', 'the green cylinder is behind the door', 'stopping here would be silly')
LEVEL = 0.5  # of full scale, as a person near the microphone is
SILENCE = 0.6  # seconds around


@dataclass(frozen=True)
class Figures:
    """
    What was understood.

    :param right: phrases understood word for word. :param wrong: understood as another phrase.
    :param accepted: talk that is no phrase, taken for one. :param talk: how much of it there was.
    :param cpu_ms: of the recogniser, per utterance.
    """

    voice: str
    snr_db: float | None
    phrases: int
    right: int
    wrong: int
    talk: int
    accepted: int
    cpu_ms: float


def draw_phrases(random: np.random.Generator, phrases: Phrases, count: int) -> list[str]:
    """Draw phrases: every template in turn, with words drawn for its slots."""
    templates = [template for kind in Kind for template in phrases.templates.get(kind, ())]
    return [re.sub(r'\{(\w+)\}', lambda slot: str(random.choice(phrases.slots[slot[1]])), templates[i % len(templates)])
            for i in range(count)]


def noisy(random: np.random.Generator, samples: np.ndarray, snr_db: float | None) -> np.ndarray:
    """
    Return speech with silence around it and pink noise over all of it.

    :param samples: int16, RATE per second.
    :param snr_db: mean power of the speech relative to the noise; None: faint noise of a microphone only.
    """
    gap = np.zeros(round(SILENCE * RATE))
    sound = np.concatenate([gap, samples * LEVEL, gap])
    if snr_db is None:
        return np.rint(sound + random.normal(0, 5, len(sound))).astype(np.int16)
    spectrum = np.fft.rfft(random.normal(size=len(sound)))
    noise = np.fft.irfft(spectrum / np.sqrt(np.arange(len(spectrum)) + 1.0), len(sound))
    power = float(np.mean((samples * LEVEL) ** 2))
    noise *= np.sqrt(power / np.mean(noise**2) / 10 ** (snr_db / 10))
    return np.clip(np.rint(sound + noise), -2**15, 2**15 - 1).astype(np.int16)


def hear(recogniser: Recogniser, sound: np.ndarray) -> list[Heard]:
    """Return what is heard in a sound, by way of the voice activity detection."""
    listener = Listener(recogniser)
    return [heard for block in blocks(sound, SILENCE) if (heard := listener.push(block)) is not None]


def measure(recogniser: Recogniser, synthesiser: Synthesiser, voice: str, texts: list[str], talk: list[str],
            snr_db: float | None, seed: int = 0) -> Figures:
    """Have texts and other talk said and heard."""
    random = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    utterances, cpu = 0, 0.0
    for text, known in [*((text, True) for text in texts), *((text, False) for text in talk)]:
        sound = noisy(random, resample(synthesiser.samples(text), synthesiser.rate, RATE), snr_db)
        heard = hear(recogniser, sound)
        utterances += len(heard)
        cpu += sum(item.cpu_seconds for item in heard)
        understood = [item.text for item in heard if item.outcome is Outcome.UNDERSTOOD]
        if known:
            counts['right'] += understood == [text]
            counts['wrong'] += bool(understood) and understood != [text]
        else:
            counts['accepted'] += bool(understood)
    return Figures(voice, snr_db, len(texts), counts['right'], counts['wrong'], len(talk), counts['accepted'],
                   1000 * cpu / max(1, utterances))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the test."""
    parser.add_argument('--self-test', type=int, default=0, metavar='N', help='no node: let voices of espeak-ng say N '
                        'phrases, and other talk, and tell what is understood')
    parser.add_argument('--snr', type=float, nargs='*', metavar='DB', help='with --self-test: also with pink noise, so '
                        'many decibels below the speech')
    parser.add_argument('--json', action='store_true', help='with --self-test: print the result as JSON')


def main(arguments: argparse.Namespace) -> int:
    """Run the test and print a table; exit code 1 if less than half of the phrases were understood."""
    phrases = task_phrases()
    recogniser = Recogniser(phrases, MIN_CONFIDENCE)
    texts = draw_phrases(np.random.default_rng(0), phrases, arguments.self_test)
    rows = []
    for snr_db in (None, *(arguments.snr or ())):
        for voice in VOICES:
            rows.append(measure(recogniser, Synthesiser(voice), voice, texts, list(OTHER_TALK), snr_db))
            if not arguments.json:
                print(_line(rows[-1]), flush=True)
    if arguments.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
    return int(2 * sum(row.right for row in rows) < sum(row.phrases for row in rows))


def _line(row: Figures) -> str:
    noise = 'quiet' if row.snr_db is None else f'{row.snr_db:g} dB'
    return (f'{row.voice:18} {noise:6}  {row.right} of {row.phrases} understood, {row.wrong} wrongly; other talk: '
            f'{row.accepted} of {row.talk} accepted; {row.cpu_ms:.0f} ms of CPU time per utterance')
