"""Workload: which texts arrive with which frame, and how many of them run at the same time."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxygen_ros.errors import ConfigError


class Arrivals(str, enum.Enum):
    """How texts arrive; the mean is one text of the set length per frame, whatever the kind."""

    UNIFORM = 'uniform'    # one with every frame
    POISSON = 'poisson'    # independent of each other: a Poisson number with every frame
    BURSTY = 'bursty'      # nothing for some frames, then as many at once
    MIXED = 'mixed'        # one with every frame, of half to one and a half times the length


@dataclass(frozen=True)
class Workload:
    """
    What is done with each frame: one action, and on average one text.

    :param text_length: tokens of a text. :param tokens_per_frame: decode steps per frame with continuous batching.
    :param denoise_steps: flow-matching steps of an action. :param burst: texts of a burst.
    :param prompt_tokens: tokens of the instruction's prompt.
    """

    text_length: int = 30
    tokens_per_frame: int = 5
    denoise_steps: int = 10
    arrivals: Arrivals = Arrivals.UNIFORM
    burst: int = 4
    prompt_tokens: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ('text_length', 'tokens_per_frame', 'denoise_steps', 'burst', 'prompt_tokens'):
            if getattr(self, name) < 1:
                raise ConfigError(f'workload: {name} is {getattr(self, name)}, must be at least 1')

    def schedule(self, frames: int) -> list[list[int]]:
        """Return the lengths in tokens of the texts that arrive with each frame, the same for the same seed."""
        random, length = np.random.default_rng(self.seed), self.text_length
        if self.arrivals is Arrivals.POISSON:
            return [[length] * count for count in random.poisson(1.0, frames)]
        if self.arrivals is Arrivals.BURSTY:
            return [[length] * self.burst if frame % self.burst == 0 else [] for frame in range(frames)]
        if self.arrivals is Arrivals.MIXED:
            low = max(1, length // 2)
            return [[int(n)] for n in random.integers(low, 2 * length - low, frames, endpoint=True)]
        return [[length] for _ in range(frames)]

    def settling_frames(self) -> int:
        """Return the frames after which as many texts end as begin."""
        longest = self.text_length * (1.5 if self.arrivals is Arrivals.MIXED else 1)
        return int(longest // self.tokens_per_frame) + 1


def most_running(schedule: Sequence[Sequence[int]], tokens_per_frame: int) -> int:
    """Return how many texts run at the same time at most, when each starts with its frame."""
    running: list[int] = []  # tokens left
    most = 1
    for lengths in schedule:
        # The first token comes with the start, the others with decode steps.
        running += [length - 1 for length in lengths if length > 1]
        most = max(most, len(running), len(lengths))
        running = [left - tokens_per_frame for left in running if left > tokens_per_frame]
    return most
