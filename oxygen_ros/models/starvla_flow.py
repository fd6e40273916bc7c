"""
Flow-matching head of StarVLA's PI, PI_v3 and GR00T: a diffusion transformer on hidden states of the decoder.

Its tokens are the state (if it takes one), learned tokens, and the actions; they see each other in blocks that do not
attend to the context. Keys and values of the context do not depend on the flow time: they are computed once per frame,
behind the prefill, and kept with the frame. Flow time runs from 0 (noise) to 1 (actions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.engine.kv_cache import ExtraSpec, UnifiedKVCache
from oxygen_ros.models.starvla_config import FlowConfig
from oxygen_ros.models.static_shapes import Capture, GraphCache

TIME_WIDTH = 256  # of the sinusoidal embedding of the blocks' condition
BLOCK_EPSILON, OUTPUT_EPSILON = 1e-5, 1e-6
CONTEXT, HIDDEN, STATE = 'context', 'context_hidden', 'state'


@dataclass(frozen=True)
class Schedule:
    """
    What depends on the flow time alone, step by step, so that it is computed once.

    :param buckets: flow times as integers. :param time: [steps, width], its part of the action encoder.
    :param blocks: float32 [steps, blocks, 2, width]: 1 + scale, and shift. :param output: float32 [steps, 2, width].
    """

    buckets: tuple[int, ...]
    time: torch.Tensor
    blocks: torch.Tensor
    output: torch.Tensor | None


class FlowBlock(nn.Module):
    """Weights of one block. :param context: width of what it attends to."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.modulate = nn.Linear(width, 2 * width)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(context, 2 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)


class FlowHead(nn.Module):
    """Denoises a chunk of actions behind a frame."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        c = self.config = config
        self.projections = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(c.hidden, BLOCK_EPSILON), nn.Linear(c.hidden, c.width))
            for _ in range(c.depth if c.projected else 0))
        self.blocks = nn.ModuleList(FlowBlock(c.width, c.context_width if c.attends_context(i) else c.width)
                                    for i in range(c.depth))
        self.time_in, self.time_out = nn.Linear(TIME_WIDTH, c.width), nn.Linear(c.width, c.width)
        self.action_in = nn.ModuleList((nn.Linear(c.action_dim, c.width), nn.Linear(2 * c.width, c.width),
                                        nn.Linear(c.width, c.width)))
        self.action_out = nn.ModuleList((nn.Linear(c.output or c.width, c.inner), nn.Linear(c.inner, c.action_dim)))
        self.future = nn.Parameter(torch.zeros(c.future, c.width), requires_grad=False)
        self.positions = (None if c.positions is None else
                          nn.Parameter(torch.zeros(c.positions, c.width), requires_grad=False))
        self.state_in = (None if c.state_dim is None else
                         nn.ModuleList((nn.Linear(c.state_dim, c.inner), nn.Linear(c.inner, c.width))))
        self.output_modulate = None if c.output is None else nn.Linear(c.width, 2 * c.width)
        self.output = None if c.output is None else nn.Linear(c.width, c.output)
        # Caches on which denoising is replayed as graphs; nothing is captured until somebody asks for it.
        self.static: WeakKeyDictionary[UnifiedKVCache, StaticFlow] = WeakKeyDictionary()
        self._schedules: dict[int, Schedule] = {}
        self._table: torch.Tensor | None = None

    @property
    def denoise_steps(self) -> int:
        """Steps of the flow if the model file says nothing else."""
        return self.config.steps

    def extras(self, prefix_tokens: int, dtype: torch.dtype) -> dict[str, ExtraSpec]:
        """Return what is kept with a frame. :param dtype: of this head's weights."""
        c = self.config
        extras = {CONTEXT: ExtraSpec((2, c.context_blocks, c.heads, prefix_tokens, c.head_dim), dtype),
                  HIDDEN: ExtraSpec((prefix_tokens,), dtype)}
        if c.state_dim is not None:
            extras[STATE] = ExtraSpec((c.state_dim,), torch.float32)
        return extras

    def keep(self, cache: UnifiedKVCache, frame: int, captured: Sequence[torch.Tensor], tokens: Sequence[int],
             state: torch.Tensor | None) -> None:
        """
        Compute what is kept with a frame.

        :param captured: the input of each decoder layer and of the final norm, [tokens, hidden] each.
        :param state: float32 [state_dim]. :param tokens: of the prefix.
        """
        c, length, number = self.config, len(tokens), 0
        keys_values = cache.extras[CONTEXT][frame]
        for i, block in enumerate(self.blocks):
            if not c.attends_context(i):
                continue
            hidden = captured[i + 1 if c.layerwise else -1].to(block.kv.weight.dtype)
            if c.projected:
                hidden = self.projections[i](hidden)
            split = block.kv(hidden).view(length, 2, c.heads, c.head_dim).permute(1, 2, 0, 3)
            keys_values[:, number, :, :length].copy_(split)
            number += 1
        # What an earlier frame left there must not be NaN: times a weight of zero it would still be.
        keys_values[:, :, :, length:].zero_()
        cache.extras[HIDDEN][frame].zero_()[length:] = float('-inf')
        if state is not None:
            cache.extras[STATE][frame].copy_(state)

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """
        Integrate from noise (t = 0) to actions (t = 1) with `steps` Euler steps.

        :param noise: float32 [horizon, action_dim]. :returns: float32 like noise, as the network gives them.
        """
        static = self.static.get(cache)
        return self.integrate(cache, frame, noise, steps) if static is None else static.denoise(noise, frame, steps)

    def integrate(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """As `denoise`, step by step."""
        schedule, context = self.schedule(steps), self.context(cache, frame)
        x = noise
        for step in range(steps):
            x = x + self.velocity(x, schedule, step, cache, frame, context) / steps
        return x

    def schedule(self, steps: int) -> Schedule:
        """Return what depends on the flow time alone."""
        if steps not in self._schedules:
            weight = self.time_in.weight
            buckets = [int(step / steps * self.config.buckets) for step in range(steps)]
            angles = _angles(buckets, TIME_WIDTH // 2, TIME_WIDTH // 2 - 1)  # this divisor is one less
            embedded = torch.cat((angles.cos(), angles.sin()), dim=1).to(weight)
            condition = F.silu(self.time_out(F.silu(self.time_in(embedded))))
            blocks = torch.stack([_plus_one(block.modulate(condition).float().unflatten(1, (2, -1)))
                                  for block in self.blocks], dim=1)
            angles = _angles(buckets, self.config.width // 2, self.config.width // 2)
            time = torch.cat((angles.sin(), angles.cos()), dim=1).to(weight)
            mix, output = self.action_in[1], None
            if self.output_modulate is not None:  # here the shift comes first
                output = _plus_one(self.output_modulate(condition).float().unflatten(1, (2, -1)).flip(1))
            self._schedules[steps] = Schedule(tuple(buckets), F.linear(time, mix.weight[:, self.config.width:],
                                                                       mix.bias), blocks, output)
        return self._schedules[steps]

    def context(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return the tokens in front of the actions, [state and learned tokens, width]."""
        if self.state_in is None:
            return self.future
        first, second = self.state_in
        state = cache.extras[STATE][frame].to(self.future.dtype)
        return torch.cat((second(F.relu(first(state))).unsqueeze(0), self.future))

    def velocity(self, x: torch.Tensor, schedule: Schedule, step: int, cache: UnifiedKVCache, frame: int,
                 context: torch.Tensor) -> torch.Tensor:
        """
        Return the velocity float32 [horizon, action_dim] of the sample x at a step.

        All of a frame's context is attended to, and what lies behind the prefix is hidden: shapes never change.

        :param context: see there.
        """
        c, dtype = self.config, self.future.dtype
        keys, values = cache.extras[CONTEXT][frame]
        hidden = cache.extras[HIDDEN][frame].view(1, 1, 1, -1)
        first, mix, last = self.action_in
        actions = F.linear(first(x.to(dtype)), mix.weight[:, :c.width]) + schedule.time[step]
        actions = last(F.silu(actions))
        if self.positions is not None:
            actions = actions + self.positions[:c.horizon]
        h, number = torch.cat((context, actions)), 0
        for i, block in enumerate(self.blocks):
            y = _norm(h, schedule.blocks[step, i], BLOCK_EPSILON)
            if c.sinusoidal:
                y = y + self._sines(len(y), y)
            q = self._split(block.q(y), 1)
            if c.attends_context(i):
                out = F.scaled_dot_product_attention(q, keys[number:number + 1], values[number:number + 1],
                                                     hidden.expand(1, 1, len(h), -1))
                number += 1
            else:
                out = F.scaled_dot_product_attention(q, *self._split(block.kv(y), 2).split(1))
            h = h + block.out(out[0].transpose(0, 1).flatten(1))
            h = h + block.down(F.gelu(block.up(F.layer_norm(h, (c.width,), eps=BLOCK_EPSILON)), approximate='tanh'))
        if self.output is not None:
            h = self.output(_norm(h, schedule.output[step], OUTPUT_EPSILON))
        first, second = self.action_out
        return second(F.relu(first(h[-c.horizon:]))).float()

    def _split(self, x: torch.Tensor, parts: int) -> torch.Tensor:
        """[tokens, parts * width] -> [parts, heads, tokens, head_dim]."""
        return x.view(len(x), parts, self.config.heads, self.config.head_dim).permute(1, 2, 0, 3)

    def _sines(self, tokens: int, like: torch.Tensor) -> torch.Tensor:
        """Return the fixed table of positions [tokens, width]: sines and cosines in turn."""
        if self._table is None:
            columns = torch.arange(0, self.config.width, 2) * (-math.log(10000.0) / self.config.width)
            angles = torch.arange(tokens).unsqueeze(1) * columns.exp()
            self._table = torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1).to(like)
        return self._table


class StaticFlow:
    """Denoising of a head behind the frames of a cache, captured per frame slot, all steps in one graph."""

    def __init__(self, head: FlowHead, cache: UnifiedKVCache, capture: Capture) -> None:
        self._head, self._cache = head, cache
        self.graphs = GraphCache(capture)
        self._noise = torch.zeros((head.config.horizon, head.config.action_dim), device=cache.spec.device)

    def denoise(self, noise: torch.Tensor, frame: int, steps: int) -> torch.Tensor:
        """See `FlowHead.denoise`; all else that it reads is in the frame, at the same addresses each time."""
        self._noise.copy_(noise)
        self._head.schedule(steps)  # not part of the graph
        return self.graphs.run((frame, steps),
                               lambda: self._head.integrate(self._cache, frame, self._noise, steps)).clone()


def _angles(buckets: Sequence[int], count: int, divisor: int) -> torch.Tensor:
    """Return bucket * 10000^(-j / divisor), float32 [buckets, count]."""
    # In this order of operations: buckets go up to a thousand, and so does the rounding of a frequency.
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(count, dtype=torch.float32) / divisor)
    return torch.tensor(buckets, dtype=torch.float32).unsqueeze(1) * frequencies


def _plus_one(modulation: torch.Tensor) -> torch.Tensor:
    """Add 1 to the first, the scale, of [steps, 2, width]."""
    return torch.stack((1 + modulation[:, 0], modulation[:, 1]), dim=1)


def _norm(x: torch.Tensor, modulation: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return `normed * (1 + scale) + shift`, computed in float32, in the dtype of x."""
    normed = F.layer_norm(x.float(), x.shape[-1:], eps=epsilon)
    return torch.addcmul(modulation[1], normed, modulation[0]).to(x.dtype)
