"""
The network of the π0.5 family once more, in float64 and in the plainest form: no cache, no fused call, no batch.

It shares nothing with the product's network but the weights, and is what that is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from oxygen_ros.models.gemma import GemmaConfig
from oxygen_ros.models.pi0_network import Pi0Config

EPSILON = 1e-6


@dataclass(frozen=True)
class Prefix:
    """
    A prefilled observation.

    :param keys, values: per layer, float64 [tokens, kv_heads, head_dim], keys rotated. :param last: hidden state of the
        last token before the final norm, float64 [width].
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    last: torch.Tensor

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.keys[0])


class Reference:
    """
    Computes what the network should.

    :param weights: of a `Pi0Network`, by the names of its parameters.
    """

    def __init__(self, config: Pi0Config, weights: Mapping[str, torch.Tensor]) -> None:
        self._config = config
        self._weights = {name: tensor.double() for name, tensor in weights.items()}

    def prefix(self, pixels: torch.Tensor, tokens: torch.Tensor) -> Prefix:
        """Prefill. :param pixels: [cameras, 3, image, image] in [-1, 1]; :param tokens: int64 [tokens]."""
        images = [self._vision(picture) for picture in pixels.double()]
        x = torch.cat([*images, self._embed(tokens)])
        return self._decode(x, None, causal=False)

    def logits(self, prefix: Prefix, tokens: Sequence[int]) -> torch.Tensor:
        """Return the logits [vocabulary] behind a prefix and the tokens of a branch; none: behind the prefix alone."""
        last = prefix.last
        if tokens:
            last = self._decode(self._embed(torch.tensor(tokens, device=last.device)), prefix, causal=True).last
        return self._weight('decoder.embedding.weight') @ _norm(last, self._weight('decoder.norm'))

    def actions(self, prefix: Prefix, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Return a chunk of actions [horizon, action_dim] from noise, in Euler steps."""
        x = noise.double()
        for step in range(steps):
            x = x - self._velocity(prefix, x, 1.0 - step / steps) / steps
        return x

    # -- parts -------------------------------------------------------------------------------------------------------

    def _weight(self, name: str) -> torch.Tensor:
        return self._weights[name]

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weights[f'{name}.weight'], self._weights.get(f'{name}.bias'))

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._weight('decoder.embedding.weight')[tokens] * math.sqrt(self._config.decoder.width)

    def _vision(self, picture: torch.Tensor) -> torch.Tensor:
        c = self._config.vision
        patches = picture.unfold(1, c.patch, c.patch).unfold(2, c.patch, c.patch)  # [3, rows, columns, patch, patch]
        flat = patches.permute(1, 2, 0, 3, 4).reshape(c.tokens, -1)
        kernel = self._weight('vision.patch_embedding.weight').reshape(c.width, -1)
        x = flat @ kernel.T + self._weight('vision.patch_embedding.bias') + self._weight('vision.position_embedding')
        for i in range(c.layers):
            name = f'vision.layers.{i}'
            q, k, v = self._linear(f'{name}.qkv', self._layer_norm(f'{name}.norm1', x)).chunk(3, dim=-1)
            parts = zip(*(part.chunk(c.heads, dim=-1) for part in (q, k, v)))
            x = x + self._linear(f'{name}.out', torch.cat([_attend(*head, None) for head in parts], dim=-1))
            inner = self._linear(f'{name}.fc1', self._layer_norm(f'{name}.norm2', x))
            x = x + self._linear(f'{name}.fc2', F.gelu(inner, approximate='tanh'))
        return self._linear('vision.projector', self._layer_norm('vision.post_norm', x))

    def _layer_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self._weight(f'{name}.weight'), self._weight(f'{name}.bias'), EPSILON)

    def _decode(self, x: torch.Tensor, prefix: Prefix | None, causal: bool) -> Prefix:
        c, first = self._config.decoder, prefix.length if prefix else 0
        mask = None
        if causal:
            seen = torch.ones(len(x), first + len(x), dtype=torch.bool, device=x.device).tril(first)
            mask = torch.zeros(seen.shape, dtype=torch.float64, device=x.device).masked_fill(~seen, -math.inf)
        keys, values = [], []
        for i in range(c.depth):
            name = f'decoder.layers.{i}'
            q, k, v = self._project(c, name, _norm(x, self._weight(f'{name}.norm1')), first)
            keys.append(torch.cat((prefix.keys[i], k)) if prefix else k)
            values.append(torch.cat((prefix.values[i], v)) if prefix else v)
            x = x + self._linear(f'{name}.out', _grouped(c, q, keys[-1], values[-1], mask))
            x = x + self._mlp(name, _norm(x, self._weight(f'{name}.norm2')))
        return Prefix(tuple(keys), tuple(values), x[-1])

    def _velocity(self, prefix: Prefix, x: torch.Tensor, t: float) -> torch.Tensor:
        c = self._config.expert
        half = torch.arange(c.width // 2, dtype=torch.float64, device=x.device) / max(c.width // 2 - 1, 1)
        angles = 2 * math.pi * t / (4e-3 * 1000 ** half)  # periods from 4e-3 to 4
        condition = F.silu(self._linear('expert.time_in', torch.cat((angles.sin(), angles.cos()))))
        condition = F.silu(self._linear('expert.time_out', condition))

        def modulation(name: str) -> tuple[torch.Tensor, ...]:
            return self._linear(name, condition).chunk(3)

        h = self._linear('expert.action_in', x)
        for i in range(c.depth):
            name = f'expert.layers.{i}'
            scale, shift, gate = modulation(f'{name}.modulation1')
            q, k, v = self._project(c, name, _norm(h, 1 + scale) + shift, prefix.length)
            attended = _grouped(c, q, torch.cat((prefix.keys[i], k)), torch.cat((prefix.values[i], v)), None)
            h = h + gate * self._linear(f'{name}.out', attended)
            scale, shift, gate = modulation(f'{name}.modulation2')
            h = h + gate * self._mlp(name, _norm(h, 1 + scale) + shift)
        scale, shift, _ = modulation('expert.norm_modulation')
        return self._linear('expert.action_out', _norm(h, 1 + scale) + shift)

    def _project(self, c: GemmaConfig, name: str, x: torch.Tensor, first: int) -> tuple[torch.Tensor, ...]:
        heads = self._linear(f'{name}.qkv', x).view(len(x), -1, c.head_dim)
        q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
        return _rotate(q, first), _rotate(k, first), v

    def _mlp(self, name: str, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._linear(f'{name}.gate_up', x).chunk(2, dim=-1)
        return self._linear(f'{name}.down', F.gelu(gate, approximate='tanh') * up)


def _norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * scale


def _rotate(x: torch.Tensor, first: int) -> torch.Tensor:
    """Rotate [tokens, heads, head_dim] by their positions, from `first` on: pairs of the first and second half."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = torch.arange(first, first + len(x), dtype=torch.float64, device=x.device)[:, None, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    scores = q @ k.T / math.sqrt(q.shape[-1])
    return torch.softmax(scores if mask is None else scores + mask, dim=-1) @ v


def _grouped(c: GemmaConfig, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
             ) -> torch.Tensor:
    """Query head h reads key head h // groups."""
    return torch.cat([_attend(q[:, head], k[:, head // c.groups], v[:, head // c.groups], mask)
                      for head in range(c.heads)], dim=-1)
