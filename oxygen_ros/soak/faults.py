"""A model that fails when it is told to."""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from typing import Any

import torch

from oxygen_ros.models.interface import VLAModel


class ModelFault(enum.Enum):
    """What goes wrong in a stage of a model."""

    RAISES = 'raises'
    OUT_OF_MEMORY = 'out_of_memory'
    NAN = 'nan'      # its result is not a number
    SLOW = 'slow'    # it takes half a second more
    HANGS = 'hangs'  # it does not return until `release`
    DIES = 'dies'    # the thread that runs it ends


SLOW_SECONDS = 0.5
STAGES = ('prefill', 'denoise', 'extend')


class FaultyModel:
    """
    Hands everything on to a model, but for the faults that it is told to have.

    Threads: `inject` and `release` from any thread, the rest in the engine's.
    """

    def __init__(self, model: VLAModel) -> None:
        self._model = model
        self._faults: dict[str, deque[ModelFault]] = {stage: deque() for stage in STAGES}
        self._released = threading.Event()
        self.happened = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def inject(self, stage: str, fault: ModelFault, times: int = 1) -> None:
        """Have the next calls of a stage go wrong."""
        self._released.clear()
        self._faults[stage].extend([fault] * times)

    def release(self) -> None:
        """Have all go well from now on; let a stage that hangs go on."""
        for faults in self._faults.values():
            faults.clear()
        self._released.set()

    @property
    def waiting(self) -> int:
        """Faults that have not happened yet."""
        return sum(map(len, self._faults.values()))

    def prefill(self, *arguments: Any) -> None:
        """See VLAModel."""
        cache, frame = arguments[2:4]
        fault = self._next('prefill')
        self._model.prefill(*arguments)
        if fault is ModelFault.NAN:
            cache.frame_kv[:, :, frame] = torch.nan

    def denoise(self, *arguments: Any) -> torch.Tensor:
        """See VLAModel."""
        fault = self._next('denoise')
        actions = self._model.denoise(*arguments)
        return actions * torch.nan if fault is ModelFault.NAN else actions

    def extend(self, *arguments: Any) -> torch.Tensor:
        """See VLAModel."""
        fault = self._next('extend')
        logits = self._model.extend(*arguments)
        return logits * torch.nan if fault is ModelFault.NAN else logits

    def _next(self, stage: str) -> ModelFault | None:
        if not self._faults[stage]:
            return None
        fault = self._faults[stage].popleft()
        self.happened += 1
        if fault is ModelFault.RAISES:
            raise RuntimeError(f'{stage} fails on purpose')
        if fault is ModelFault.OUT_OF_MEMORY:
            raise torch.cuda.OutOfMemoryError(f'{stage} finds no memory, on purpose')
        if fault is ModelFault.DIES:
            raise SystemExit(f'{stage} ends the thread, on purpose')
        if fault is ModelFault.SLOW:
            time.sleep(SLOW_SECONDS)
        if fault is ModelFault.HANGS:
            self._released.wait()
        return fault
