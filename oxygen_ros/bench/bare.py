"""BareLane: the model calls of a mode alone, one after the other, without an engine. What is more is the engine's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from oxygen_ros.bench.lane import FrameRecord
from oxygen_ros.bench.measured_model import MeasuredModel, synchronise
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.models.interface import PolicyInput, VLAModel


class BareLane:
    """
    Calls a model as the engine has to, on a cache of the same size.

    No token is chosen: what is fed back does not change the work.

    Threads: the model runs in a thread of its own, as the engine's does, for memory is had at other costs there.
    """

    def __init__(self, model: VLAModel, config: EngineConfig, instruction: str) -> None:
        self._model, self._config, self._instruction = MeasuredModel(model), config, instruction
        frames = config.max_frames or config.max_branches + 2
        self.cache = UnifiedKVCache(model.spec.cache_spec(frames, config.max_branches, config.branch_tokens))
        self._noise = torch.randn((model.spec.horizon, model.spec.action_dim),
                                  generator=torch.Generator().manual_seed(config.seed))
        self._prompt = model.branch_prompt('speech', '')
        self._running: dict[int, int] = {}  # branch slot -> tokens that are still to come
        self._newest: int | None = None
        self._tokens = 0
        self._thread = ThreadPoolExecutor(1, 'bare')

    def run_frame(self, inputs: PolicyInput, lengths: Sequence[int]) -> FrameRecord:
        """Do what `Lane.run_frame` has the engine do."""
        return self._thread.submit(self._run_frame, inputs, lengths).result()

    def stop(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    @torch.inference_mode()
    def _run_frame(self, inputs: PolicyInput, lengths: Sequence[int]) -> FrameRecord:
        synchronise(self._model.spec.device)
        self._model.take()
        self._tokens, wall, cpu = 0, time.perf_counter(), time.process_time()
        mode = self._config.scheduler.mode
        frame = self._prefill(inputs)
        if self._newest is not None:
            self.cache.release_frame(self._newest)
        self._newest = frame
        self._model.denoise(self.cache, frame, self._noise, self._config.denoise_steps)
        if mode is Mode.CONTINUOUS_BATCHING:
            self._start(frame, lengths)
            for _ in range(self._config.scheduler.tokens_per_cycle):
                self._step()
        else:
            for length in lengths:
                own = self._prefill(inputs) if mode is Mode.ISOLATED else frame
                self._start(own, [length])
                if mode is Mode.ISOLATED:
                    self.cache.release_frame(own)
                while self._running:
                    self._step()
        synchronise(self._model.spec.device)
        return FrameRecord(inputs.number, time.perf_counter() - wall, time.process_time() - cpu, self._tokens,
                           calls=self._model.take(), began=wall)

    def _prefill(self, inputs: PolicyInput) -> int:
        frame = self.cache.acquire_frame(inputs.number)
        self._model.prefill(inputs, self._instruction, self.cache, frame)
        synchronise(self._model.spec.device)
        return frame

    def _start(self, frame: int, lengths: Sequence[int]) -> None:
        slots = [self.cache.open_branch(frame) for _ in lengths]
        self._running.update(zip(slots, lengths))
        if slots and self._prompt:
            self._model.extend(self.cache, slots, [self._prompt] * len(slots))
        elif slots:
            self._model.prefix_logits(self.cache, frame)
        self._came(slots)

    def _step(self) -> None:
        slots = sorted(self._running)
        if slots:
            self._model.extend(self.cache, slots, [[0]] * len(slots))
            synchronise(self._model.spec.device)
            self._came(slots)

    def _came(self, slots: Sequence[int]) -> None:
        """Count a token of each of these texts; close those that are complete."""
        for slot in slots:
            self._tokens += 1
            self._running[slot] -= 1
            if not self._running[slot]:
                del self._running[slot]
                self.cache.close_branch(slot)
