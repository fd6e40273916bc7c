"""
Decode steps and denoising with static shapes, so that a GPU can replay them as a CUDA graph.

A graph runs the same kernels on the same addresses: whatever changes from call to call (tokens, slots, lengths) is read
from buffers that are filled before. A decode step is captured for a few batch sizes (buckets); a smaller batch repeats
its last row, which writes the same keys to the same place twice. Denoising is captured per frame slot, all steps in one
graph.

How a graph is made is passed in (`Capture`), so that all but that runs on a CPU too, and is tested there. What it gains
has not been measured: no GPU was at hand.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from oxygen_ros.engine.kv_cache import UnifiedKVCache

if TYPE_CHECKING:
    from oxygen_ros.models.action_expert import ActionExpert
    from oxygen_ros.models.gemma import GemmaDecoder

logger = logging.getLogger(__name__)

Work = Callable[[], torch.Tensor]
# Work -> the tensor that it fills, and a function that fills it again.
Capture = Callable[[Work], tuple[torch.Tensor, Callable[[], None]]]

MOST_GRAPHS = 64
WARM_UPS = 3  # runs before a capture: libraries choose their kernels and take their memory


class CudaCapture:
    """Captures work as CUDA graphs, which share one memory pool. They must therefore not run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> tuple[torch.Tensor, Callable[[], None]]:
        """See `Capture`."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = work()
        return output, graph.replay


class GraphCache:
    """
    Graphs by key, each captured when it is first needed; of too many, the one that was not used for longest goes.

    Work that cannot be captured is done as it is, from then on.

    :param most: graphs that are kept.
    """

    def __init__(self, capture: Capture, most: int = MOST_GRAPHS) -> None:
        self._capture, self._most = capture, most
        self._graphs: OrderedDict[Hashable, tuple[torch.Tensor, Callable[[], None]]] = OrderedDict()
        self.failed: Exception | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, work: Work) -> torch.Tensor:
        """Do work; its result is overwritten by the next call with this key, or of any graph with the same pool."""
        if self.failed is not None:
            return work()
        if key not in self._graphs:
            try:
                self._graphs[key] = self._capture(work)
            except Exception as error:  # noqa: B902 - whatever a driver raises, the work can be done without
                logger.warning('no graph can be captured, work goes on without: %s: %s', type(error).__name__, error)
                self.clear()
                self.failed = error
                return work()
            if len(self._graphs) > self._most:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        output, replay = self._graphs[key]
        replay()
        return output

    def clear(self) -> None:
        """Forget all graphs, as when weights or buffers have moved."""
        self._graphs.clear()


def buckets(most: int) -> tuple[int, ...]:
    """Return the batch sizes that are captured: 1, 2, multiples of 4, from 16 on of 8; the last one is `most`."""
    sizes = [1, 2, *range(4, 16, 4), *range(16, most, 8)]
    return (*[size for size in sizes if size < most], most)


class StaticDecode:
    """
    Decode steps of a decoder on a cache.

    Keys and values of a batch are gathered from the pools at every layer, which costs what reading them twice costs.
    """

    def __init__(self, decoder: GemmaDecoder, cache: UnifiedKVCache, capture: Capture) -> None:
        self._decoder, self._cache = decoder, cache
        self.graphs = GraphCache(capture)
        self._buckets = buckets(cache.spec.branches)
        # Per row: token, position, branch slot, place in it, frame slot, length of its prefix.
        self._rows = {size: torch.zeros((6, size), dtype=torch.int64, device=cache.spec.device)
                      for size in self._buckets}

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Add a token to each branch; returns logits float32 [branches, vocabulary]."""
        cache, count = self._cache, len(slots)
        size = next(bucket for bucket in self._buckets if bucket >= count)
        rows = []
        for slot, token in zip(slots, tokens):
            branch = cache.branches[slot]
            if branch.length >= cache.spec.branch_tokens:  # beyond the slot there would be other memory
                raise ValueError(f'branch slot {slot} is full: {branch.length} tokens')
            rows.append((token, cache.next_position(slot), slot, branch.length, branch.frame,
                         cache.frames[branch.frame].length))
        rows += rows[-1:] * (size - count)
        self._rows[size].copy_(torch.tensor(rows).T)
        logits = self.graphs.run(size, lambda: self._forward(self._rows[size]))[:count].clone()
        for slot in slots:
            cache.advance_branch(slot, 1)
        return logits

    def _forward(self, rows: torch.Tensor) -> torch.Tensor:
        decoder, cache, c = self._decoder, self._cache, self._decoder.config
        token, position, slot, place, frame, length = rows
        x = decoder.embed(token)
        cos, sin = decoder.turn(position, x.dtype)
        prefix, suffix = (torch.arange(pool.shape[-2], device=rows.device)
                          for pool in (cache.frame_kv, cache.branch_kv))
        seen = torch.cat((prefix < length[:, None], suffix <= place[:, None]), dim=1)[:, None, None]
        for number, layer in enumerate(decoder.layers):
            q, kv = layer.project(x, cos, sin)
            torch.ops.aten.index_put_(cache.branch_kv[number], (None, slot, None, place), kv)
            gathered = torch.cat((cache.frame_kv[number].index_select(1, frame),
                                  cache.branch_kv[number].index_select(1, slot)), dim=3)
            # What lies unused may be NaN, and NaN times a weight of zero would still be NaN.
            keys, values = gathered.masked_fill_(~seen.transpose(2, 3), 0)
            q = q.reshape(len(x), c.kv_heads, c.groups, c.head_dim)
            out = F.scaled_dot_product_attention(q, keys, values, seen)
            x = layer.finish(x, out.reshape(len(x), -1))
        return decoder.logits(x)


class StaticDenoise:
    """
    Denoising of an action expert behind the frames of a cache.

    The keys of the chunk stand at the end of the slot, not right behind the prefix; what lies between is not seen.
    """

    def __init__(self, expert: ActionExpert, cache: UnifiedKVCache, capture: Capture) -> None:
        self._expert, self._cache = expert, cache
        self.graphs = GraphCache(capture)
        device, horizon = cache.spec.device, expert.horizon
        self._noise = torch.zeros((horizon, expert.action_in.in_features), device=device)
        self._positions = torch.zeros(horizon, dtype=torch.int64, device=device)
        self._length = torch.zeros((), dtype=torch.int64, device=device)

    def denoise(self, noise: torch.Tensor, frame: int, steps: int) -> torch.Tensor:
        """See `ActionExpert.denoise`."""
        state, horizon = self._cache.frames[frame], self._expert.horizon
        self._noise.copy_(noise)
        self._positions.copy_(torch.arange(state.next_position, state.next_position + horizon))
        self._length.fill_(state.length)
        return self.graphs.run((frame, steps), lambda: self._forward(frame, steps)).clone()

    def _forward(self, frame: int, steps: int) -> torch.Tensor:
        expert, slot = self._expert, self._cache.frame_kv[:, :, frame]
        place = torch.arange(slot.shape[-2], device=slot.device)
        own = len(place) - expert.horizon
        seen = (place < self._length) | (place >= own)
        slot.masked_fill_(~seen[:, None], 0)  # as in StaticDecode
        return expert.integrate(self._noise, expert.place_at(slot, own, self._positions, seen), steps)
