"""Inputs of a measured model: pictures and states at random, and an instruction of the length that is asked for."""

from __future__ import annotations

import time

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import PolicyInput, VLAModel
from oxygen_ros.observation import Observation

PICTURES = 8  # different ones, used in turn
TEXT = 'pick up the red cup and put it on the plate then open the drawer and look for the spoon '


class Inputs:
    """
    Makes observations.

    :param cameras: how many of the model's cameras give pictures. :param size: of a picture, height and width.
    """

    def __init__(self, model: VLAModel, cameras: int, seed: int, size: tuple[int, int] = (224, 224)) -> None:
        names = model.spec.cameras
        if not 0 <= cameras <= len(names):
            raise ConfigError(f'cameras is {cameras}, model {model.spec.name!r} has {len(names)}')
        random = np.random.default_rng(seed)
        self._pictures = [{name: random.integers(0, 256, (*size, 3), dtype=np.uint8) for name in names[:cameras]}
                          for _ in range(PICTURES)]

    def observation(self, number: int) -> PolicyInput:
        """Return the observation of a frame, taken just now. It takes no state, whose prompt has no set length."""
        return PolicyInput(Observation(number, time.time_ns(), self._pictures[number % PICTURES]))


@torch.inference_mode()
def instruction_of(model: VLAModel, inputs: Inputs, tokens: int) -> tuple[str, int]:
    """
    Return an instruction whose prompt has so many tokens, or as near as can be, and the tokens of the whole prefix.

    It is found by trying, for the prompt around it is the adapter's knowledge.
    """
    cache = UnifiedKVCache(model.spec.cache_spec(2, 1, 8))
    frame = cache.acquire_frame(0)
    longest = TEXT * (1 + 8 * tokens // len(TEXT))
    blind = PolicyInput(Observation(1, 0, {}))

    def length(observation: PolicyInput, characters: int) -> int:
        model.prefill(observation, longest[:characters], cache, frame)
        return cache.frames[frame].length

    low, high = 0, 1  # so many characters are not too many, so many are
    while high < len(longest) and length(blind, high) <= tokens:
        low, high = high, min(2 * high, len(longest))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if length(blind, middle) <= tokens else (low, middle)
    return longest[:low], length(inputs.observation(1), low)
