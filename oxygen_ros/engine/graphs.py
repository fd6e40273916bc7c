"""Decides, by measuring, which stages of a model replay CUDA graphs on a cache."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

from torch import nn

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.action_expert import ActionExpert
from oxygen_ros.models.gemma import GemmaDecoder
from oxygen_ros.models.starvla_flow import FlowHead, StaticFlow
from oxygen_ros.models.static_shapes import Capture, CudaCapture, StaticDecode, StaticDenoise

logger = logging.getLogger(__name__)


class Graphs(str, enum.Enum):
    """Whether decode steps and denoising are captured as CUDA graphs and replayed."""

    AUTO = 'auto'  # where a measurement at the start finds them faster
    ON = 'on'
    OFF = 'off'


def capture_for(graphs: Graphs, device: str) -> Capture | None:
    """
    Return what captures graphs on a device; None if none are wanted, or there can be none.

    :raises ConfigError: they are wanted, and there can be none.
    """
    if graphs is not Graphs.OFF and device.startswith('cuda'):
        return CudaCapture()
    if graphs is Graphs.ON:
        raise ConfigError(f'graphs is on, and device {device!r} has none: choose auto, or a CUDA device')
    return None


def use_graphs(graphs: Graphs, network: nn.Module, cache: UnifiedKVCache, capture: Capture | None,
               measure: Callable[[], CostModel]) -> set[Stage]:
    """
    Let the stages of a network replay graphs on a cache, and return which do.

    :param measure: warms up and measures every stage as it then is. The last call measures what is chosen.
    """
    parts = _parts(network)
    for part, _ in parts.values():
        part.static.pop(cache, None)
    if capture is None or graphs is Graphs.OFF or not parts:
        measure()
        return set()
    plain = measure() if graphs is Graphs.AUTO else None
    for part, static in parts.values():
        part.static[cache] = static(part, cache, capture)
    costs = measure()
    chosen = set(parts)
    for stage, (part, _) in parts.items():
        size = cache.spec.branches if stage is Stage.DECODE else 1
        before = plain.predict(stage, size, deviations=0) if plain is not None else float('inf')
        after = costs.predict(stage, size, deviations=0)
        failed = part.static[cache].graphs.failed is not None
        logger.info('%s takes %.2f ms with graphs, %.2f ms without', stage.value, 1e3 * after, 1e3 * before)
        if failed or after >= before:
            del part.static[cache]
            chosen.discard(stage)
    if len(chosen) < len(parts):
        measure()
    return chosen


def _parts(network: nn.Module) -> dict[Stage, tuple[nn.Module, type]]:
    """Return the parts of a network that have a static form, by the stage that they do."""
    parts: dict[Stage, tuple[nn.Module, type]] = {}
    for module in network.modules():
        if isinstance(module, GemmaDecoder):
            parts[Stage.DECODE] = module, StaticDecode
        elif isinstance(module, ActionExpert):
            parts[Stage.DENOISE] = module, StaticDenoise
        elif isinstance(module, FlowHead):
            parts[Stage.DENOISE] = module, StaticFlow
    return parts
