"""Action expert of the π0.5 family: flow matching on the decoder's KV, adaptive RMSNorm on the flow time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.gemma import GemmaConfig
from oxygen_ros.models.layers import modulated_norm, rotary_table, rotate, time_embedding
from oxygen_ros.models.realtime_chunking import ChunkingMethod, PreviousChunk


class ExpertLayer(nn.Module):
    """Weights of one layer; `modulation1/2` turn the time condition into scale, shift and gate."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.modulation1 = nn.Linear(config.width, 3 * config.width)
        self.qkv = nn.Linear(config.width, config.qkv_width, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)
        self.modulation2 = nn.Linear(config.width, 3 * config.width)
        self.gate_up = nn.Linear(config.width, 2 * config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, config.width, bias=False)


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

    def condition(self, t: float) -> torch.Tensor:
        """Return the time condition [width] of flow time t: two linear layers, each followed by SiLU."""
        embedded = time_embedding(t, self.config.width).to(self.time_in.weight)
        return F.silu(self.time_out(F.silu(self.time_in(embedded))))

    def modulation(self, t: float) -> list[torch.Tensor]:
        """
        Return what every norm needs at flow time t, float32 [width] each: 1 + scale, shift, gate, norm after norm.

        It depends on t alone, so that a step schedule is computed once, not once per chunk: in full-size π0.5 these
        layers are 27 % of the expert's weights.
        """
        condition = self.condition(t)
        dense = [m for layer in self.layers for m in (layer.modulation1, layer.modulation2)] + [self.norm_modulation]
        result = []
        for linear in dense:
            scale, shift, gate = linear(condition).float().chunk(3)
            result += [1 + scale, shift, gate]
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
        x = noise
        for step, modulation in enumerate(self._schedules[steps]):
            velocity = self.velocity(x, modulation, cache, frame)
            if previous is not None:
                velocity = previous.guide(velocity, x, 1.0 - step / steps)
            x = x - velocity / steps
        return x

    def _denoise_behind(self, previous: PreviousChunk, noise: torch.Tensor, cache: UnifiedKVCache, frame: int,
                        steps: int) -> torch.Tensor:
        """Denoise with the first actions fixed: for them the flow is over, their time is 0."""
        fixed = torch.arange(self.horizon, device=noise.device).unsqueeze(-1) < previous.delay
        actions = previous.padded(self.horizon)
        over = self.modulation(0.0)
        x = torch.where(fixed, actions, noise)
        for modulation in self._schedules[steps]:
            mixed = [torch.where(fixed, end, now) for end, now in zip(over, modulation)]
            x = torch.where(fixed, actions, x - self.velocity(x, mixed, cache, frame) / steps)
        return x

    def velocity(self, x: torch.Tensor, modulation: list[torch.Tensor], cache: UnifiedKVCache, frame: int,
                 ) -> torch.Tensor:
        """
        Return the velocity float32 [horizon, action_dim] of the sample x at the flow time of `modulation`.

        :param modulation: see `modulation`; [width] each, or [horizon, width] for a time of its own for each action.
        """
        c = self.config
        state = cache.frames[frame]
        end = state.length + self.horizon
        first = state.next_position
        dtype = self.layers[0].qkv.weight.dtype
        cos, sin = self.cos[first:first + self.horizon].to(dtype), self.sin[first:first + self.horizon].to(dtype)
        h = self.action_in(x.to(self.action_in.weight.dtype)).to(dtype)
        parts = iter(modulation)
        for number, layer in enumerate(self.layers):
            scale, shift, gate = next(parts), next(parts), next(parts).to(dtype)
            qkv = layer.qkv(modulated_norm(h, scale, shift)).view(self.horizon, -1, c.head_dim)
            qk = rotate(qkv[:, :c.heads + c.kv_heads], cos, sin)
            keys, values = cache.frame_k[number, frame, :, :end], cache.frame_v[number, frame, :, :end]
            keys[:, state.length:].copy_(qk[:, c.heads:].transpose(0, 1))
            values[:, state.length:].copy_(qkv[:, c.heads + c.kv_heads:].transpose(0, 1))
            q = qk[:, :c.heads].view(self.horizon, c.kv_heads, c.groups, c.head_dim).permute(1, 2, 0, 3).flatten(1, 2)
            out = F.scaled_dot_product_attention(q.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0))
            out = out.view(c.heads, self.horizon, c.head_dim).transpose(0, 1).flatten(1)
            h = torch.addcmul(h, layer.out(out), gate)
            scale, shift, gate = next(parts), next(parts), next(parts).to(dtype)
            gated, up = layer.gate_up(modulated_norm(h, scale, shift)).chunk(2, dim=-1)
            h = torch.addcmul(h, layer.down(F.gelu(gated, approximate='tanh') * up), gate)
        h = modulated_norm(h, next(parts), next(parts))
        return self.action_out(h.to(self.action_out.weight.dtype)).float()
