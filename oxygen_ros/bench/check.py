"""Compares what an engine computes on a device with the float64 reference, call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from oxygen_ros.bench.energy import EnergyMeter
from oxygen_ros.bench.inputs import Inputs
from oxygen_ros.bench.lane import Lane, check_frame
from oxygen_ros.bench.measured_model import MeasuredModel
from oxygen_ros.bench.reference import Prefix, Reference
from oxygen_ros.engine.compiling import Compile, use_compiled
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.graphs import Graphs, use_graphs
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig
from oxygen_ros.models.interface import VLAModel
from oxygen_ros.models.static_shapes import Work

# Largest difference that rounding explains: of logits by their standard deviation, of actions by their largest number.
TOLERANCES = {torch.float32: 5e-4, torch.bfloat16: 0.15}
INSTRUCTION = 'pick up the red cup'


@dataclass
class Seen:
    """
    What the engine had the model compute.

    :param prefixes: (pixels, tokens) of each prefill. :param logits: (prefill, tokens of the branch, logits).
    :param actions: (prefill, noise, actions).
    """

    prefixes: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    logits: list[tuple[int, tuple[int, ...], torch.Tensor]] = field(default_factory=list)
    actions: list[tuple[int, torch.Tensor, torch.Tensor]] = field(default_factory=list)


class RecordingModel(MeasuredModel):
    """Hands everything on to a model of the π0.5 family and notes inputs and outputs, as tensors on the CPU."""

    def __init__(self, model: VLAModel) -> None:
        super().__init__(model)
        self.seen = Seen()
        self._frames: dict[int, int] = {}                # frame slot -> prefill
        self._branches: dict[int, tuple[int, ...]] = {}  # branch slot -> its tokens
        network = model.network
        prefill = network.prefill

        def recording(pixels: torch.Tensor, tokens: torch.Tensor, cache: UnifiedKVCache, frame: int, *rest) -> None:
            self._frames[frame] = len(self.seen.prefixes)
            self.seen.prefixes.append((pixels.cpu(), tokens.cpu()))
            prefill(pixels, tokens, cache, frame, *rest)

        network.prefill = recording
        self._restore = lambda: setattr(network, 'prefill', prefill)

    def restore(self) -> None:
        """Leave the model as it was."""
        self._restore()

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """See `VLAModel.denoise`."""
        actions = super().denoise(cache, frame, noise, steps)
        self.seen.actions.append((self._frames[frame], noise.cpu(), actions.cpu()))
        return actions

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """See `VLAModel.prefix_logits`."""
        logits = super().prefix_logits(cache, frame)
        self.seen.logits.append((self._frames[frame], (), logits.cpu()))
        return logits

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """See `VLAModel.extend`."""
        for slot, row in zip(slots, tokens):
            before = self._branches.get(slot, ()) if cache.branches[slot].length else ()
            self._branches[slot] = (*before, *row)
        prefills = [self._frames[cache.branches[slot].frame] for slot in slots]
        logits = super().extend(cache, slots, tokens)
        # The engine changes logits in place, so they are copied.
        self.seen.logits += [(prefill, self._branches[slot], row.to('cpu', copy=True))
                             for prefill, slot, row in zip(prefills, slots, logits)]
        return logits


def recompute(work: Work) -> tuple[torch.Tensor, Callable[[], None]]:
    """Stands in for the capture of a graph where there can be none: the work is done again."""
    output = work()
    return output, lambda: output.copy_(work())


def run_engine(model: VLAModel, frames: int, length: int, steps: int, warm_up: int = 1, graphs: Graphs = Graphs.AUTO,
               compile: Compile = Compile.OFF) -> Seen:
    """
    Have an engine with continuous batching act on some frames and say something about each, and return what it did.

    Texts of several frames run in one batch; every second frame brings two, so that some share a frame.

    :param graphs: on a CPU, ON runs what would be captured, without capturing it. :param compile: of the engine.
    """
    cuda = model.spec.device.startswith('cuda')
    recording = RecordingModel(model)
    try:
        config = EngineConfig(SchedulerConfig(Mode.CONTINUOUS_BATCHING, max(1, length // 2)), 2 * frames, length + 16,
                              denoise_steps=steps, max_frame_age=1e9, compile=compile,
                              graphs=graphs if cuda else Graphs.OFF)
        inputs = Inputs(model, len(model.spec.cameras), seed=0)
        lane = Lane('check', recording, config, INSTRUCTION, inputs.observation(1), warm_up, EnergyMeter())
        cache, network = lane.engine.cache, model.network
        if graphs is Graphs.ON and not cuda:
            use_graphs(Graphs.ON, network, cache, recompute, lambda: lane.engine.costs)
        recording.seen = Seen()
        try:
            for number in range(1, frames + 1):
                record, events = lane.run_frame(inputs.observation(number), [length] * (1 + number % 2))
                check_frame('check', record, events)
            lane.drain()
            lane.engine.check_integrity()
        finally:
            lane.stop()
            # Nothing of it stays.
            use_graphs(Graphs.OFF, network, cache, None, lambda: lane.engine.costs)
            use_compiled(Compile.OFF, network, cache.spec.branches, lambda: lane.engine.costs)
    finally:
        recording.restore()
    return recording.seen


def compare(seen: Seen, reference: Reference, dtype: torch.dtype, steps: int, device: str = 'cpu') -> dict:
    """
    Return how far what was computed is from the reference.

    :param device: on which the reference computes.
    """
    tolerance = TOLERANCES[dtype]
    with torch.inference_mode():
        used = {prefill for prefill, *_ in (*seen.logits, *seen.actions)}
        prefixes: dict[int, Prefix] = {
            number: reference.prefix(*(part.to(device) for part in seen.prefixes[number])) for number in used}
        logit_errors, same = [], 0
        for prefill, tokens, logits in seen.logits:
            expected = reference.logits(prefixes[prefill], tokens).cpu()
            logit_errors.append(float((logits.double() - expected).abs().max() / expected.std()))
            same += int(logits.argmax() == expected.argmax())
        action_errors = []
        for prefill, noise, actions in seen.actions:
            expected = reference.actions(prefixes[prefill], noise.to(device), steps).cpu()
            action_errors.append(float((actions.double() - expected).abs().max() / expected.abs().max()))
    result = {'calls': len(seen.logits), 'logit_error': max(logit_errors), 'same_choice': same / len(seen.logits),
              'actions': len(seen.actions), 'action_error': max(action_errors), 'tolerance': tolerance}
    # Every single one: the largest of some numbers with a NaN among them may be a number.
    return {**result, 'passed': all(error <= tolerance for error in (*logit_errors, *action_errors))}


def same_results(one: Seen, other: Seen, tolerance: float) -> dict:
    """
    Compare two runs of the same work, such as with graphs and without, as far as both chose the same tokens.

    :param tolerance: as in `compare`.
    """
    errors, compared = [], 0
    others = {(prefill, tokens): logits for prefill, tokens, logits in other.logits}
    for prefill, tokens, logits in one.logits:
        expected = others.get((prefill, tokens))
        if expected is not None:
            compared += 1
            errors.append(float((logits.double() - expected.double()).abs().max() / expected.double().std()))
    actions = [float((a.double() - b.double()).abs().max() / b.double().abs().max())
               for (_, _, a), (_, _, b) in zip(one.actions, other.actions, strict=True)]
    result = {'calls': len(one.logits), 'compared': compared, 'logit_error': max(errors, default=float('nan')),
              'action_error': max(actions, default=float('nan')), 'tolerance': tolerance}
    # Every single one: the largest of some numbers with a NaN among them may be a number.
    fits = all(error <= tolerance for error in (*errors, *actions))
    return {**result, 'passed': fits and bool(actions) and 2 * compared >= len(one.logits)}


def reference_of(model: VLAModel, weights: Mapping[str, torch.Tensor], device: str = 'cpu') -> Reference:
    """Return the reference for a model of the π0.5 family. :param weights: as loaded, before anything packs them."""
    return Reference(model.network.config, {name: tensor.to(device) for name, tensor in weights.items()})
