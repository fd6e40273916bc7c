"""
Action head of Xiaomi-Robotics-0: a diffusion transformer that reads the KV of the decoder's last layers.

Its tokens are a learned sink, the state, and the actions. Each sees the whole prefix of the frame, and of these tokens
the ones before it. Flow time runs from 0 (noise) to 1 (actions).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.engine.attention import attend
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.layers import modulated_norm, rms_norm, rotate

TIME_WIDTH = 256  # of the sinusoidal embedding
MODULATIONS = 6   # per layer: shift, scale and gate of attention, then of the MLP


@dataclass(frozen=True)
class DitConfig:
    """
    Sizes of the head.

    :param kv_heads, head_dim: of the decoder's keys. :param first_layer: the decoder's layer that layer 0 reads.
    :param state_length: states per observation.
    """

    width: int
    depth: int
    head_dim: int
    kv_heads: int
    first_layer: int
    state_length: int
    state_dim: int
    action_dim: int
    horizon: int

    def __post_init__(self) -> None:
        if self.width % self.head_dim or self.heads % self.kv_heads or self.first_layer < 0:
            raise ValueError(f'width {self.width} must be a multiple of head_dim {self.head_dim}, heads {self.heads} '
                             f'of kv_heads {self.kv_heads}, and first_layer {self.first_layer} not negative')

    @property
    def heads(self) -> int:
        """Number of heads of queries, keys and values."""
        return self.width // self.head_dim

    @property
    def context(self) -> int:
        """Tokens in front of the actions: sink and state."""
        return 1 + self.state_length

    @property
    def tokens(self) -> int:
        """Tokens in all."""
        return self.context + self.horizon


@dataclass(frozen=True)
class Asynchrony:
    """
    How weights post-trained for asynchronous execution are run; the published ones have neither.

    :param offset: added to the positions of actions that are not given.
    :param window: a token sees this many tokens before it, besides the prefix of the frame; None sees all.
    """

    offset: int = 0
    window: int | None = None


@dataclass(frozen=True)
class Standing:
    """
    What stays the same in all steps of a chunk.

    :param context: [1 + state_length, width], tokens in front of the actions.
    :param cos, sin: of the own tokens' positions. :param hidden: additive [1, 1, tokens, tokens]: who sees whom.
    """

    context: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    hidden: torch.Tensor


class DitLayer(nn.Module):
    """Weights of one layer; its norms stand on the residual stream too."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        c, width = config, config.width
        self.table = nn.Parameter(torch.zeros(MODULATIONS, width), requires_grad=False)
        self.norm_in, self.norm_middle, self.norm_post, self.norm_final = (
            nn.Parameter(torch.ones(width), requires_grad=False) for _ in range(4))
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm = nn.Parameter(torch.ones(c.head_dim), requires_grad=False)
        self.k_norm = nn.Parameter(torch.ones(c.head_dim), requires_grad=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 8 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)


def _projector(size: int, inner: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, inner, bias=False), nn.GELU(approximate='tanh'),
                         nn.Linear(inner, width, bias=False))


class XiaomiDit(nn.Module):
    """
    Denoises a chunk of actions behind a frame.

    It only reads the frame: attention to the prefix and to its own tokens are computed separately and merged. So its
    heads may be more than the cache's, whose keys are never expanded.
    """

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        c = self.config = config
        self.sink = nn.Parameter(torch.zeros(1, c.width), requires_grad=False)
        self.state_in = _projector(c.state_dim, c.width, c.width)
        self.action_in = _projector(c.action_dim, c.width, c.width)
        self.action_out = _projector(c.width, c.action_dim, c.action_dim)
        self.time_in = nn.Linear(TIME_WIDTH, c.width, bias=False)
        self.time_out = nn.Linear(c.width, c.width, bias=False)
        self.modulate = nn.Linear(c.width, MODULATIONS * c.width)
        self.layers = nn.ModuleList(DitLayer(c) for _ in range(c.depth))
        self._schedules: dict[int, list[torch.Tensor]] = {}
        self._hidden: dict[Asynchrony, torch.Tensor] = {}

    def modulation(self, t: float) -> torch.Tensor:
        """Return shift, scale, gate of attention and MLP at flow time t, for all layers: float32 [layers, 6, width]."""
        weight = self.time_in.weight
        frequencies = torch.exp(-torch.arange(TIME_WIDTH // 2, dtype=torch.float32) * (
            math.log(10000.0) / (TIME_WIDTH // 2)))
        angles = 1000 * t * frequencies
        embedded = torch.cat((angles.cos(), angles.sin())).to(weight)
        dense = self.modulate(self.time_out(F.silu(self.time_in(embedded)))).view(MODULATIONS, -1).float()
        return torch.stack([dense + layer.table.float() for layer in self.layers])

    def positions(self, next_position: int, given: int, asynchrony: Asynchrony) -> torch.Tensor:
        """Return the position int64 [tokens] of every token; `given` actions are fixed and keep theirs."""
        positions = next_position + torch.arange(self.config.tokens)
        positions[self.config.context + given:] += asynchrony.offset
        return positions

    def visible(self, asynchrony: Asynchrony) -> torch.Tensor:
        """Return who sees whom of the own tokens, bool [tokens, tokens]."""
        index = torch.arange(self.config.tokens)
        distance = index[:, None] - index
        visible = distance >= 0
        if asynchrony.window is None:
            return visible
        return visible & ((distance <= asynchrony.window) | (index < self.config.context))

    def denoise(self, noise: torch.Tensor, state: torch.Tensor, mask: torch.Tensor, cache: UnifiedKVCache, frame: int,
                steps: int, rotary: tuple[torch.Tensor, torch.Tensor], asynchrony: Asynchrony = Asynchrony(),
                given: torch.Tensor | None = None) -> torch.Tensor:
        """
        Integrate from noise (t = 0) to actions (t = 1) with `steps` Euler steps.

        :param noise: float32 [horizon, action_dim]. :param state: [state_length, state_dim].
        :param mask: float32 like noise; 0 where an action has no meaning.
        :param rotary: the decoder's tables of cos and sin, [positions, 1, head_dim / 2].
        :param given: [fixed, action_dim], actions of the chunk that are fixed already.
        :returns: float32 like noise, the fixed actions included.
        """
        if steps not in self._schedules:
            self._schedules[steps] = [self.modulation(step / steps) for step in range(steps)]
        fixed = 0 if given is None else len(given)
        standing = self.standing(state, cache.frames[frame].next_position, rotary, asynchrony, fixed)
        x = noise if given is None else torch.cat((given.to(noise), noise[fixed:]))
        for modulation in self._schedules[steps]:
            velocity = self.velocity(x, mask, modulation, cache, frame, standing)
            velocity[:fixed] = 0
            x = x + velocity / steps
        return x

    def standing(self, state: torch.Tensor, next_position: int, rotary: tuple[torch.Tensor, torch.Tensor],
                 asynchrony: Asynchrony = Asynchrony(), fixed: int = 0) -> Standing:
        """Compute what the steps share. :param next_position: of the frame. :param fixed: actions that are given."""
        dtype, device = self.sink.dtype, self.sink.device
        rows = self.positions(next_position, fixed, asynchrony).to(device)
        if asynchrony not in self._hidden:
            visible = self.visible(asynchrony)
            self._hidden[asynchrony] = torch.zeros(visible.shape, dtype=dtype).masked_fill_(
                ~visible, float('-inf'))[None, None].to(device)
        return Standing(torch.cat((self.sink, self.state_in(state.to(dtype)))),
                        *(table[rows].to(dtype) for table in rotary), self._hidden[asynchrony])

    def velocity(self, x: torch.Tensor, mask: torch.Tensor, modulation: torch.Tensor, cache: UnifiedKVCache, frame: int,
                 standing: Standing) -> torch.Tensor:
        """Return the velocity float32 [horizon, action_dim] of the sample x; parameters as for `denoise`."""
        c, dtype, length = self.config, self.sink.dtype, cache.frames[frame].length
        h = torch.cat((standing.context, self.action_in((x * mask).to(dtype))))
        for number, (layer, parts) in enumerate(zip(self.layers, modulation)):
            shift1, scale1, gate1, shift2, scale2, gate2 = parts
            y = modulated_norm(h, layer.norm_in.float() * (1 + scale1), shift1)
            q, k, v = layer.qkv(y).view(c.tokens, 3, c.heads, c.head_dim).unbind(1)
            q = rotate(rms_norm(q, layer.q_norm), standing.cos, standing.sin).transpose(0, 1)
            k = rotate(rms_norm(k, layer.k_norm), standing.cos, standing.sin).transpose(0, 1)
            to_own, own_lse = attend(q[None], k[None], v.transpose(0, 1)[None], standing.hidden)
            keys, values = (pool[c.first_layer + number, frame, :, :length]
                            for pool in (cache.frame_k, cache.frame_v))
            # Heads of one key head are rows of one query.
            to_frame, frame_lse = attend(q.reshape(1, c.kv_heads, -1, c.head_dim), keys[None], values[None])
            share = torch.sigmoid(frame_lse.reshape(own_lse.shape) - own_lse).unsqueeze(-1).to(dtype)
            out = torch.lerp(to_own, to_frame.reshape(to_own.shape), share)[0].transpose(0, 1).flatten(1)
            h = rms_norm(torch.addcmul(h, layer.out(out), gate1.to(dtype)), layer.norm_middle)
            gated, up = layer.gate_up(modulated_norm(h, layer.norm_post.float() * (1 + scale2), shift2)
                                      ).chunk(2, dim=-1)
            h = rms_norm(torch.addcmul(h, layer.down(F.silu(gated) * up), gate2.to(dtype)), layer.norm_final)
        return self.action_out(h[c.context:]).float()
