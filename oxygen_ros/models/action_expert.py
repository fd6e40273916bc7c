"""Action expert of the π0.5 family: flow matching on the decoder's KV, adaptive RMSNorm on the flow time."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.gemma import GemmaConfig
from oxygen_ros.models.layers import (
    Activation,
    GatedLinear,
    Linear,
    full_turn,
    modulated_norm,
    rotary_table,
    rotate_,
    time_embedding,
)
from oxygen_ros.models.realtime_chunking import ChunkingMethod, PreviousChunk
from oxygen_ros.models.static_shapes import StaticDenoise


class ExpertLayer(nn.Module):
    """Weights of one layer; `modulation1/2` turn the time condition into scale, shift and gate."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.modulation1 = nn.Linear(config.width, 3 * config.width)
        self.qkv = Linear(config.width, config.qkv_width, bias=False)
        self.out = Linear(config.heads * config.head_dim, config.width, bias=False)
        self.modulation2 = nn.Linear(config.width, 3 * config.width)
        self.gate_up = GatedLinear(config.width, config.mlp, Activation.GELU)
        self.down = Linear(config.mlp, config.width, bias=False)


@dataclass(frozen=True)
class Place:
    """
    Where a chunk stands: what the steps share.

    :param cos, sin: tables of `full_turn` for its positions, [horizon, 1, head_dim].
    :param layers: per layer, views of the frame's slot: where its own keys and values go, [2, kv_heads, horizon,
        head_dim], and the keys and values that it sees, prefix and own, [1, kv_heads, tokens, head_dim].
    :param seen: bool [1, 1, 1, tokens], which of these; None: all.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    layers: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]
    seen: torch.Tensor | None = None


class ActionExpert(nn.Module):
    """
    Denoises a chunk of actions behind a frame.

    The chunk's tokens see the whole prefix of the frame and each other. Their keys and values go into the scratch
    tokens right behind the prefix in the frame's slot, so that attention reads one stretch of memory without a copy.
    """

    def __init__(self, config: GemmaConfig, horizon: int, action_dim: int, positions: int) -> None:
        super().__init__()
        self.config, self.horizon = config, horizon
        self.action_in = nn.Linear(action_dim, config.width)
        self.action_out = nn.Linear(config.width, action_dim)
        self.time_in = nn.Linear(config.width, config.width)
        self.time_out = nn.Linear(config.width, config.width)
        self.layers = nn.ModuleList(ExpertLayer(config) for _ in range(config.depth))
        self.norm_modulation = nn.Linear(config.width, 3 * config.width)
        cos, sin = rotary_table(positions, config.head_dim)
        self.register_buffer('cos', cos.unsqueeze(1), persistent=False)
        self.register_buffer('sin', sin.unsqueeze(1), persistent=False)
        self._schedules: dict[int, list[list[torch.Tensor]]] = {}
        self.pieces: list = []  # those that are compiled, in place or not; see pieces.py
        # Of caches behind whose frames denoising replays graphs.
        self.static: WeakKeyDictionary[UnifiedKVCache, StaticDenoise] = WeakKeyDictionary()

    def condition(self, t: float) -> torch.Tensor:
        """Return the time condition [width] of flow time t: two linear layers, each followed by SiLU."""
        embedded = time_embedding(t, self.config.width).to(self.time_in.weight)
        return F.silu(self.time_out(F.silu(self.time_in(embedded))))

    def modulation(self, t: float) -> list[torch.Tensor]:
        """
        Return what every norm needs at flow time t, [width] each: 1 + scale, shift, gate, norm after norm; float32, but
        for the gates, which are in the dtype of the layers.

        It depends on t alone, so that a step schedule is computed once, not once per chunk: in full-size π0.5 these
        layers are 27 % of the expert's weights.
        """
        condition = self.condition(t)
        dense = [m for layer in self.layers for m in (layer.modulation1, layer.modulation2)] + [self.norm_modulation]
        result = []
        for linear in dense:
            scale, shift, gate = linear(condition).float().chunk(3)
            result += [1 + scale, shift, gate.to(self.layers[0].qkv.weight.dtype)]
        return result

    def denoise(self, noise: torch.Tensor, cache: UnifiedKVCache, frame: int, steps: int,
                previous: PreviousChunk | None = None) -> torch.Tensor:
        """
        Integrate from noise (t = 1) to actions (t = 0) with `steps` Euler steps.

        Flow matching convention of π0: x_t = t * noise + (1 - t) * actions, velocity = noise - actions.

        :param noise: float32 [horizon, action_dim].
        :param previous: the chunk to continue, on the device of `noise`.
        :returns: float32 [horizon, action_dim].
        """
        if steps not in self._schedules:
            self._schedules[steps] = [self.modulation(1.0 - step / steps) for step in range(steps)]
        if previous is not None and previous.method is ChunkingMethod.TRAINED:
            return self._denoise_behind(previous, noise, cache, frame, steps)
        static = self.static.get(cache)
        if static is not None and previous is None:
            return static.denoise(noise, frame, steps)
        return self.integrate(noise, self.place(cache, frame), steps, previous)

    def integrate(self, noise: torch.Tensor, place: Place, steps: int, previous: PreviousChunk | None = None,
                  ) -> torch.Tensor:
        """Do the Euler steps of `denoise`, whose schedule is there already."""
        x = noise
        for step, modulation in enumerate(self._schedules[steps]):
            velocity = self._velocity(x, modulation, place)
            if previous is not None:
                velocity = previous.guide(velocity, x, 1.0 - step / steps)
            x = torch.sub(x, velocity, alpha=1 / steps)
        return x

    def _denoise_behind(self, previous: PreviousChunk, noise: torch.Tensor, cache: UnifiedKVCache, frame: int,
                        steps: int) -> torch.Tensor:
        """Denoise with the first actions fixed: for them the flow is over, their time is 0."""
        fixed = torch.arange(self.horizon, device=noise.device).unsqueeze(-1) < previous.delay
        actions = previous.padded(self.horizon)
        over = self.modulation(0.0)
        x, place = torch.where(fixed, actions, noise), self.place(cache, frame)
        for modulation in self._schedules[steps]:
            mixed = [torch.where(fixed, end, now) for end, now in zip(over, modulation)]
            x = torch.where(fixed, actions, x - self._velocity(x, mixed, place) / steps)
        return x

    def place(self, cache: UnifiedKVCache, frame: int) -> Place:
        """Return where the chunk stands in a frame's slot."""
        state = cache.frames[frame]
        positions = slice(state.next_position, state.next_position + self.horizon)
        return self.place_at(cache.frame_kv[:, :, frame, :, :state.length + self.horizon], state.length, positions)

    def place_at(self, slot: torch.Tensor, own: int, positions: torch.Tensor | slice, seen: torch.Tensor | None = None,
                 ) -> Place:
        """
        Return a place in a slot [layers, 2, kv_heads, tokens, head_dim].

        :param own: token where the keys of the chunk go. :param positions: of the actions.
        :param seen: bool [tokens]; None sees all.
        """
        cos, sin = (table[positions].to(slot.dtype) for table in (self.cos, self.sin))
        return Place(*full_turn(cos, sin), tuple((kv[:, 0, :, own:], *kv) for kv in slot.unsqueeze(2)),
                     None if seen is None else seen[None, None, None])

    def velocity(self, x: torch.Tensor, modulation: list[torch.Tensor], cache: UnifiedKVCache, frame: int,
                 ) -> torch.Tensor:
        """
        Return the velocity float32 [horizon, action_dim] of the sample x at the flow time of `modulation`.

        :param modulation: see `modulation`; [width] each, or [horizon, width] for a time of its own for each action.
        """
        return self._velocity(x, modulation, self.place(cache, frame))

    def _velocity(self, x: torch.Tensor, modulation: list[torch.Tensor], place: Place) -> torch.Tensor:
        c, horizon = self.config, self.horizon
        h = self.action_in(x.to(self.action_in.weight.dtype)).to(place.cos.dtype)
        # Each product is followed by the next norm, whose scale and shift come behind the gate.
        scale, shift, *rest = modulation
        following = iter([rest[i:i + 3] for i in range(0, len(rest) - 1, 3)])
        normed = self.norm(h, scale, shift)
        for layer, (scratch, keys, values) in zip(self.layers, place.layers):
            q, kv = self.turn(layer.qkv(normed), place.cos, place.sin)
            scratch.copy_(kv)
            out = F.scaled_dot_product_attention(q, keys, values, place.seen)
            out = out.view(c.kv_heads, horizon, c.groups * c.head_dim).transpose(0, 1).reshape(horizon, -1)
            h, normed = self.add_norm(h, layer.out(out), *next(following))
            h, normed = self.add_norm(h, layer.down(layer.gate_up(normed)), *next(following))
        return self.action_out(normed.to(self.action_out.weight.dtype)).float()

    # -- pieces: what stands between the products; compiled ones may be put in place, see pieces.py -------------------

    def norm(self, h: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """See `modulated_norm`."""
        return modulated_norm(h, scale, shift)

    def turn(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Rotate queries and keys, and split [horizon, qkv_width]; may write into it.

        :returns: [1, kv_heads, horizon * groups, head_dim]: query heads of one key head are rows of one query;
            [2, kv_heads, horizon, head_dim], keys and values.
        """
        c, horizon = self.config, self.horizon
        qkv = qkv.view(horizon, -1, c.head_dim)
        rotate_(qkv[:, :c.heads + c.kv_heads], cos, sin)
        q = qkv[:, :c.heads].reshape(horizon, c.kv_heads, c.groups, c.head_dim).transpose(0, 1).reshape(
            1, c.kv_heads, horizon * c.groups, c.head_dim)
        return q, qkv[:, c.heads:].unflatten(1, (2, c.kv_heads)).permute(1, 2, 0, 3)

    def add_norm(self, h: torch.Tensor, output: torch.Tensor, gate: torch.Tensor, scale: torch.Tensor,
                 shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual stream with a gated output added, and its norm."""
        h = torch.addcmul(h, output, gate)
        return h, modulated_norm(h, scale, shift)
