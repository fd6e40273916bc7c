"""Probes: parts of a model's calls, measured alone, that the engine cannot see: the vision tower and the head."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from oxygen_ros.bench.measured_model import synchronise
from oxygen_ros.models.interface import VLAModel


class Probes:
    """
    Measures the vision tower (a part of prefill) and the head (a part of each decode step) once in every round.

    Only where a model has them as parts of their own: the family of π0.5.

    :param cameras: that give pictures. :param batches: of texts for which the head is measured.
    """

    def __init__(self, model: VLAModel, cameras: int, batches: set[int]) -> None:
        self._device = model.spec.device
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}
        self._work: dict[str, Callable[[], object]] = {}
        network = getattr(model, 'network', None)
        vision, decoder = getattr(network, 'vision', None), getattr(network, 'decoder', None)
        kind = {'device': self._device, 'dtype': model.spec.dtype}
        side = getattr(getattr(vision, 'config', None), 'image', None)
        if side is not None and cameras:
            pixels = torch.zeros((cameras, 3, side, side), **kind)
            self._work['vision'] = lambda: vision(pixels)
        generator = torch.Generator().manual_seed(0)
        if hasattr(decoder, 'logits'):
            for batch in sorted(batches):
                hidden = torch.randn((batch, decoder.config.width), generator=generator).to(**kind)
                self._work[head(batch)] = lambda hidden=hidden: decoder.logits(hidden)

    @torch.inference_mode()
    def run(self) -> None:
        """Measure each once."""
        for name, work in self._work.items():
            synchronise(self._device)
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            synchronise(self._device)
            self.wall.setdefault(name, []).append(time.perf_counter() - wall)
            self.cpu.setdefault(name, []).append(time.process_time() - cpu)


def head(batch: int) -> str:
    """Return the name of the probe of the head for a batch."""
    return f'head_{batch}'
