"""The frames of the engine: prefills them, and keeps the newest one."""

from __future__ import annotations

from dataclasses import dataclass

from oxygen_ros.engine.cost_model import Stage
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.meter import Meter
from oxygen_ros.models.interface import PolicyInput, VLAModel


@dataclass(frozen=True)
class PrefilledFrame:
    """A prefilled frame, `instruction` is what it was made with."""

    slot: int
    inputs: PolicyInput
    instruction: str


class Frames:
    """
    Prefills observations. The newest frame stays pinned (one reference), so that a text can start on it at once.

    A frame's key in the cache counts prefills: of two frames the one with the lower key is older.
    """

    def __init__(self, model: VLAModel, cache: UnifiedKVCache, meter: Meter) -> None:
        self._model, self._cache, self._meter = model, cache, meter
        self._count = 0
        self.newest: PrefilledFrame | None = None

    def prefill(self, inputs: PolicyInput, instruction: str, subtask: bool = False) -> int:
        """
        Prefill an observation into a free slot, and return it with a reference that belongs to the caller.

        :param subtask: for a text that says what to do next; the instruction is then what shall be achieved.
        """
        if not self._cache.free_frames:
            self.unpin()  # if no text stands on the newest frame, its slot is the free one
        self._count += 1
        slot = self._cache.acquire_frame(self._count)
        try:
            prefill = self._model.prefill_subtask if subtask else self._model.prefill
            self._meter.timed(Stage.PREFILL, 1, lambda: prefill(inputs, instruction, self._cache, slot),
                              frame=inputs.number)
        except BaseException:
            self._cache.release_frame(slot, wipe=True)
            raise
        return slot

    def pin(self, inputs: PolicyInput, instruction: str) -> PrefilledFrame:
        """Prefill an observation and keep its frame as the newest."""
        slot = self.prefill(inputs, instruction)
        self.unpin()
        self.newest = PrefilledFrame(slot, inputs, instruction)
        return self.newest

    def unpin(self, wipe: bool = False) -> None:
        """
        Let the newest frame go, once no text stands on it any more.

        :param wipe: see `UnifiedKVCache.release_frame`.
        """
        if self.newest is not None:
            self._cache.release_frame(self.newest.slot, wipe)
            self.newest = None

    def holds(self, inputs: PolicyInput, instruction: str) -> bool:
        """Whether the newest frame is what a prefill of this observation would give."""
        newest = self.newest
        return (newest is not None and newest.inputs is inputs
                and (newest.instruction == instruction or not self._model.spec.prefix_has_instruction))

    def free(self) -> int:
        """Return how many slots a prefill can take: that of a newest frame without texts is one of them."""
        spare = self.newest is not None and self._cache.frames[self.newest.slot].references == 1
        return self._cache.free_frames or int(spare)
