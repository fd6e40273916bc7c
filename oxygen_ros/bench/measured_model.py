"""MeasuredModel: a model that notes what each of its calls takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.interface import PolicyInput, VLAModel


@dataclass(frozen=True, slots=True)
class Call:
    """
    A call of a model.

    :param stage: 'prefill', 'denoise', 'extend' (prompts of several tokens, or the first token behind a prefix) or
        'decode' (one token for each text).
    :param branches: texts in the batch. :param start: of `time.perf_counter`.
    :param wall, cpu: seconds, of the clock and of all threads of this process.
    """

    stage: str
    branches: int
    start: float
    wall: float
    cpu: float


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given, so that a clock can be read."""
    if device.startswith('cuda'):
        torch.cuda.synchronize()


class MeasuredModel:
    """
    Hands everything on to a model; implements `VLAModel`.

    Its texts never stop early: the tokens that end a text are tokens like others, so that the work is the same always.
    """

    def __init__(self, model: VLAModel) -> None:
        self._model = model
        self.spec = replace(model.spec, stop_tokens=frozenset(), text_head_trained=True)
        self.tokenizer = model.tokenizer
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> object:
        """Return whatever else a model has."""
        return getattr(self._model, name)

    def take(self) -> list[Call]:
        """Return the calls since the last time."""
        calls, self.calls = self.calls, []
        return calls

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """See `VLAModel.prefill`."""
        self._timed('prefill', 1, lambda: self._model.prefill(inputs, instruction, cache, frame))

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """See `VLAModel.denoise`."""
        return self._timed('denoise', 1, lambda: self._model.denoise(cache, frame, noise, steps))

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """See `VLAModel.prefix_logits`."""
        return self._timed('extend', 1, lambda: self._model.prefix_logits(cache, frame))

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """See `VLAModel.extend`."""
        stage = 'extend' if any(len(row) > 1 for row in tokens) else 'decode'
        return self._timed(stage, len(slots), lambda: self._model.extend(cache, slots, tokens))

    def _timed(self, stage: str, branches: int, work: Callable[[], object]) -> object:
        start, cpu = time.perf_counter(), time.process_time()
        result = work()
        synchronise(self.spec.device)
        self.calls.append(Call(stage, branches, start, time.perf_counter() - start, time.process_time() - cpu))
        return result
