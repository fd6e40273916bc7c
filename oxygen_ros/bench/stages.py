"""What the stages of a model take alone, with graphs or without, compiled or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from oxygen_ros.bench.check import recompute
from oxygen_ros.bench.figures import median
from oxygen_ros.bench.inputs import Inputs
from oxygen_ros.bench.measured_model import synchronise
from oxygen_ros.engine.compiling import Compile, use_compiled
from oxygen_ros.engine.cost_model import CostModel
from oxygen_ros.engine.graphs import Graphs, capture_for, use_graphs
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.interface import VLAModel

ROUNDS, WARM_UPS = 20, 3
BATCHES = (1, 2, 4, 6, 8, 16)
BRANCH_TOKENS = 64
INSTRUCTION = 'pick up the red cup'

Work = Callable[[], object]


@torch.inference_mode()
def graph_times(model: VLAModel, way: Graphs, denoise_steps: int) -> dict[str, float]:
    """Return the median seconds of each stage. On a CPU, ON does what would be captured."""
    device = model.spec.device
    cache = _cache(model)
    capture = capture_for(way, device) if device.startswith('cuda') else recompute
    use_graphs(way, model.network, cache, capture, CostModel)
    result = {}
    for name, work in _stages(model, cache, denoise_steps):
        for _ in range(WARM_UPS):
            work()
        result[name] = median([_seconds(work, device) for _ in range(ROUNDS)])
    use_graphs(Graphs.OFF, model.network, cache, None, CostModel)
    return result


@torch.inference_mode()
def compile_times(model: VLAModel, denoise_steps: int) -> dict[str, dict[str, float]]:
    """
    Return the median seconds of each stage for 'off' and 'on', which take turns.

    :param model: one that was compiled before, by an engine.
    """
    cache = _cache(model)
    result: dict[str, dict[str, float]] = {way.value: {} for way in (Compile.OFF, Compile.ON)}
    for name, work in _stages(model, cache, denoise_steps):
        seconds: dict[str, list[float]] = {way: [] for way in result}
        for number in range(WARM_UPS + ROUNDS):
            for way in result:
                use_compiled(Compile(way), model.network, max(BATCHES), CostModel)
                taken = _seconds(work, model.spec.device)
                if number >= WARM_UPS:
                    seconds[way].append(taken)
        for way, values in seconds.items():
            result[way][name] = median(values)
    use_compiled(Compile.OFF, model.network, max(BATCHES), CostModel)
    return result


def _cache(model: VLAModel) -> UnifiedKVCache:
    return UnifiedKVCache(model.spec.cache_spec(max(BATCHES) // 2 + 2, max(BATCHES), BRANCH_TOKENS))


def _stages(model: VLAModel, cache: UnifiedKVCache, denoise_steps: int) -> Iterator[tuple[str, Work]]:
    """Give the work of each stage: prefill, denoising, and decode steps of some texts, two on each frame."""
    inputs = Inputs(model, len(model.spec.cameras), seed=0)
    frames = [cache.acquire_frame(number) for number in range(max(BATCHES) // 2)]
    observations = [inputs.observation(number + 1) for number in range(len(frames))]
    for observation, frame in zip(observations, frames):
        model.prefill(observation, INSTRUCTION, cache, frame)
    yield 'prefill', lambda: model.prefill(observations[0], INSTRUCTION, cache, frames[0])
    noise = torch.zeros((model.spec.horizon, model.spec.action_dim))
    yield 'denoise', lambda: model.denoise(cache, frames[0], noise, denoise_steps)
    for batch in BATCHES:
        slots = [cache.open_branch(frames[number // 2]) for number in range(batch)]
        model.extend(cache, slots, [[3, 4, 5]] * batch)

        def step(slots: list[int] = slots) -> None:
            model.extend(cache, slots, [[7]] * len(slots))

        yield f'decode step of {batch}', step
        for slot in slots:
            cache.close_branch(slot)


def _seconds(work: Work, device: str) -> float:
    """CPU time where that is the device: others may work on it too."""
    clock = time.process_time if device == 'cpu' else time.perf_counter
    synchronise(device)
    start = clock()
    work()
    synchronise(device)
    return clock() - start
