"""Measures the stages of the work: for predictions, and for the trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.trace import Tracer
from oxygen_ros.models.interface import PolicyInput, VLAModel


class Meter:
    """
    Times work of a model, and hands the time on to the cost model and the tracer.

    :param clock: seconds, monotonic.
    """

    def __init__(self, device: str, clock: Callable[[], float], tracer: Tracer) -> None:
        self.costs = CostModel()
        self.clock, self.tracer = clock, tracer
        self._cuda = device.startswith('cuda')

    def timed(self, stage: Stage, size: int, work: Callable[[], object], **arguments: object) -> object:
        """Do work and return its result; it counts when it does not raise."""
        start = self.clock()
        result = work()
        if self._cuda:
            torch.cuda.synchronize()
        self.measured(stage, size, start, **arguments)
        return result

    def measured(self, stage: Stage, size: int, start: float, **arguments: object) -> None:
        """Say that a stage, begun at `start`, has ended just now."""
        end = self.clock()
        self.costs.observe(stage, size, end - start)
        self.tracer.span(stage.value, start, end, **arguments)


def warm_up(model: VLAModel, cache: UnifiedKVCache, meter: Meter, inputs: PolicyInput, instruction: str, steps: int,
            rounds: int) -> None:
    """
    Measure every stage, so that the first deadlines are predicted, not guessed. The cache must be empty, and is after.

    One more round comes before, and is not counted: it pays for memory and code that later ones find ready.

    :param inputs: an observation like those to come. :param steps: flow-matching steps.
    """
    noise = torch.zeros((model.spec.horizon, model.spec.action_dim))
    most = cache.spec.branches
    sizes = sorted({size for size in (1, 2, 4, 8, 16, 32) if size < most} | {most})
    prompt = [0] * min(8, cache.spec.branch_tokens - 2)
    frame = cache.acquire_frame(0)

    def extend(stage: Stage, slots: Sequence[int], tokens: list[int]) -> None:
        meter.timed(stage, len(slots) * len(tokens), lambda: model.extend(cache, slots, [tokens] * len(slots)))

    for number in range(rounds + 1):
        start = meter.clock()
        meter.timed(Stage.PREFILL, 1, lambda: model.prefill(inputs, instruction, cache, frame))
        meter.timed(Stage.DENOISE, 1, lambda: model.denoise(cache, frame, noise, steps))
        meter.costs.observe(Stage.ACTION, 1, meter.clock() - start)
        for size in sizes:
            slots = [cache.open_branch(frame) for _ in range(size)]
            extend(Stage.EXTEND, slots, prompt)
            for _ in range(2):
                extend(Stage.DECODE, slots, [0])
            for slot in slots:
                cache.close_branch(slot)
        if number == 0:
            meter.costs = CostModel()
    cache.release_frame(frame)
    cache.peak_bytes = 0
