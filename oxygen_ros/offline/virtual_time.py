"""The virtual clock of an offline run, and a model whose work takes virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import PolicyInput, VLAModel

SECOND = 1_000_000_000


@dataclass
class VirtualClock:
    """
    The one clock of an offline run: that of the nodes, and counted from `origin_ns` that of the engine.

    :param now_ns: nanoseconds on the clock of the recording.
    """

    now_ns: int
    origin_ns: int

    def seconds(self) -> float:
        """Return the present moment for the engine, in seconds from the origin."""
        return (self.now_ns - self.origin_ns) / SECOND

    def at(self, seconds: float) -> int:
        """Return the first nanosecond that is not before a moment of the engine; seconds may be infinite."""
        return 2**63 - 1 if math.isinf(seconds) else self.origin_ns + math.ceil(seconds * SECOND)


@dataclass(frozen=True)
class StageCosts:
    """
    Virtual milliseconds that each stage of the model takes, whatever it takes in truth. All zero: no work takes time.

    :param extend: running the prompts of texts that start. :param decode: one step of all running texts, or a prompt of
        a single token, which is the same work.
    """

    prefill: float = 0.0
    denoise: float = 0.0
    extend: float = 0.0
    decode: float = 0.0

    @classmethod
    def parse(cls, text: str) -> StageCosts:
        """
        Read 'prefill=40,denoise=30,extend=10,decode=8', or 'zero'.

        :raises ConfigError: a stage is unknown, or a number is none or negative.
        """
        costs = {}
        for part in text.split(',') if text.strip() != 'zero' else ():
            name, _, value = part.partition('=')
            try:
                costs[name.strip()] = float(value)
            except ValueError:
                raise ConfigError(f'cost {part!r} is not of the form stage=milliseconds') from None
        names = [field.name for field in fields(cls)]
        for name, value in costs.items():
            if name not in names:
                raise ConfigError(f'cost of unknown stage {name!r}: choose from {", ".join(names)}')
            if not 0 <= value < math.inf:
                raise ConfigError(f'cost {name}={value:g} must be a number of milliseconds, not negative')
        return cls(**costs)

    @property
    def zero(self) -> bool:
        """Whether no stage takes time."""
        return not (self.prefill or self.denoise or self.extend or self.decode)


class CostedModel:
    """
    A model whose stages take virtual time; stands between the engine and the model, implements `VLAModel`.

    :param spend: called after the work of a stage with its nanoseconds; moves the virtual clock on.
    """

    def __init__(self, model: VLAModel, costs: StageCosts, spend: Callable[[int], None]) -> None:
        self._model, self._costs, self._spend = model, costs, spend

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)  # all else is the model's own

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """Prefill; see `VLAModel.prefill`."""
        self._model.prefill(inputs, instruction, cache, frame)
        self._take(self._costs.prefill)

    def prefill_subtask(self, inputs: PolicyInput, task: str, cache: UnifiedKVCache, frame: int) -> None:
        """Prefill for a subtask; see `VLAModel.prefill_subtask`."""
        self._model.prefill_subtask(inputs, task, cache, frame)
        self._take(self._costs.prefill)

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int,
                *more: object) -> torch.Tensor:
        """Denoise; see `VLAModel.denoise`."""
        actions = self._model.denoise(cache, frame, noise, steps, *more)
        self._take(self._costs.denoise)
        return actions

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Extend or decode; see `VLAModel.extend`."""
        logits = self._model.extend(cache, slots, tokens)
        self._take(self._costs.extend if any(len(row) > 1 for row in tokens) else self._costs.decode)
        return logits

    def _take(self, milliseconds: float) -> None:
        if milliseconds:
            self._spend(round(milliseconds * 1e6))
