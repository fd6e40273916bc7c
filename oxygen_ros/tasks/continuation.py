"""Real-time chunking around a model: hands it what is left of the chunk in execution, in the terms of the new frame."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import PolicyInput, VLAModel
from oxygen_ros.models.realtime_chunking import ChunkingMethod, GuidanceSchedule, PreviousChunk
from oxygen_ros.robot.layout import ActionMode
from oxygen_ros.robot.safety import ChunkRejected
from oxygen_ros.tasks.action import ActionTask

LONGEST_WAIT = 0.5  # part of a chunk's time: an older chunk is no longer in execution, or should not be


@dataclass(frozen=True)
class ContinuationSettings:
    """
    :param method: None switches it off. :param reach: actions from which on a new chunk is free of the old one; 0: as
        far as the old one goes. :param max_weight: bound of the guidance.
    """

    method: ChunkingMethod | None = None
    schedule: GuidanceSchedule = GuidanceSchedule.LINEAR
    reach: int = 0
    max_weight: float = 10.0


class ContinuingModel:
    """
    A model whose chunks continue the ones before; stands between the engine and the model, implements `VLAModel`.

    The delay, how many actions of the old chunk are executed before the new one is ready, is what it was last time.

    Threads: belongs to the thread of the engine.

    :param observation_clock: nanoseconds in the clock of the observations' stamps.
    :raises ConfigError: the model cannot continue chunks in this way.
    """

    def __init__(self, model: VLAModel, task: ActionTask, settings: ContinuationSettings,
                 observation_clock: Callable[[], int] = time.time_ns) -> None:
        longest = getattr(model, 'longest_trained_delay', None)
        if longest is None:
            raise ConfigError(f'model {model.spec.name} cannot continue chunks: switch action.chunking off')
        if task.layout.action_mode is ActionMode.STEP:
            raise ConfigError(f'model {model.spec.name} gives steps, which cannot be continued: switch action.chunking '
                              'off')
        if settings.method is ChunkingMethod.TRAINED and not longest:
            raise ConfigError(f'model {model.spec.name} was not trained for real-time chunking, its checkpoint has no '
                              'rtc_training_max_delay: choose guided for action.chunking')
        self._model, self._task, self._settings, self._clock = model, task, settings, observation_clock
        self._longest = longest
        self._period_ns = model.spec.action_period * 1e9
        self._seen: dict[int, PolicyInput] = {}  # frame slot -> what was prefilled into it
        self._last: tuple[PolicyInput, np.ndarray] | None = None
        self._age_ns = 0.0  # of the last frame when its chunk was ready

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)  # all else is the model's own

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """Prefill, and remember which observation it was; see `VLAModel.prefill`."""
        self._seen[frame] = inputs
        self._model.prefill(inputs, instruction, cache, frame)

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Generate a chunk that continues the last one; see `VLAModel.denoise`."""
        inputs = self._seen[frame]
        actions = self._model.denoise(cache, frame, noise, steps, self.previous(inputs))
        if inputs.number:  # frames count from 1: what has the number 0 warms up
            self._last = inputs, actions.numpy()
            self._age_ns = max(0.0, self._clock() - inputs.stamp_ns)
        return actions

    def previous(self, inputs: PolicyInput) -> PreviousChunk | None:
        """Return what is left of the last chunk for a new observation; None when it is too old, or of no use."""
        if self._last is None:
            return None
        spec, (before, actions) = self._model.spec, self._last
        elapsed = (inputs.stamp_ns - before.stamp_ns) / self._period_ns
        if not 0 <= elapsed <= LONGEST_WAIT * spec.horizon:
            return None
        try:
            actions = self._task.reexpress(actions, before.observation, inputs.observation)
        except ChunkRejected:
            return None
        # Row i of the new chunk is for the time of row i + elapsed of the old one, perhaps between two rows.
        times = np.arange(elapsed, spec.horizon - 1 + 1e-9)
        low = np.minimum(times.astype(int), spec.horizon - 2)
        part = (times - low)[:, None]
        left = torch.from_numpy((actions[low] * (1 - part) + actions[low + 1] * part).astype(np.float32))
        delay = max(0, math.ceil(self._age_ns / self._period_ns) - spec.first_action_offset)
        if self._settings.method is ChunkingMethod.TRAINED:
            delay = min(delay, self._longest)
        return PreviousChunk(left, min(delay, len(left)), self._settings.reach or len(left), self._settings.method,
                             self._settings.schedule, self._settings.max_weight)
