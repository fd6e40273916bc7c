"""
Qwen3-VL on the unified KV cache: its text decoder, and positions on three axes (M-RoPE).

Differs from Gemma by norms on queries and keys, SiLU, a causal prefix, positions (time, height, width) of image tokens,
and deepstack: features of inner layers of the vision tower, added to the image tokens behind the first decoder layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.gemma import GemmaConfig, GemmaDecoder, GemmaLayer
from oxygen_ros.models.layers import Activation, full_turn, rms_norm, rotate_


@dataclass(frozen=True)
class QwenConfig(GemmaConfig):
    """
    :param theta: base of the rotary frequencies.
    :param sections: frequencies of time, height and width; they interleave (t h w t h w ... t t).
    """

    theta: float = 5e6
    sections: tuple[int, int, int] = (24, 20, 20)

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.sections) != self.head_dim // 2:
            raise ValueError(f'sections {list(self.sections)} must add up to half of head_dim {self.head_dim}')

    def axes(self) -> list[int]:
        """Return the axis (0 time, 1 height, 2 width) whose position turns each of the head_dim / 2 frequencies."""
        return [j % 3 if j < 3 * self.sections[j % 3] else 0 for j in range(self.head_dim // 2)]


class QwenLayer(GemmaLayer):
    """Weights of one layer: those of Gemma's, and norms of queries and keys."""

    activation = Activation.SILU

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__(config)
        self.q_norm = nn.Parameter(torch.ones(config.head_dim), requires_grad=False)
        self.k_norm = nn.Parameter(torch.ones(config.head_dim), requires_grad=False)

    def project(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As Gemma's, with q and k normalised per head before they are rotated."""
        c = self.config
        qkv = self.qkv(self.norm(x, self.norm1)).view(len(x), -1, c.head_dim)
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
        q, k = rotate_(rms_norm(q, self.q_norm), cos, sin), rotate_(rms_norm(k, self.k_norm), cos, sin)
        return q, torch.stack((k, v), dim=1)


class QwenDecoder(GemmaDecoder):
    """Decoder whose branches go on as Gemma's do; the three positions of a text token are equal."""

    def __init__(self, config: QwenConfig, vocabulary: int, positions: int) -> None:
        super().__init__(config, vocabulary, positions, QwenLayer, config.theta)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return token embeddings: int64 [...] -> [..., width]."""
        return self.embedding(tokens)

    def prefill(self, x: torch.Tensor, cache: UnifiedKVCache, frame: int, positions: torch.Tensor,
                image_rows: torch.Tensor, deepstack: Sequence[torch.Tensor],
                captured: list[torch.Tensor] | None = None) -> torch.Tensor:
        """
        Write the causal prefix x [tokens, width] into a frame slot; its last token is a text token.

        In the last layer only K and V of all tokens and the output of the last token are needed, and only those are
        computed.

        :param positions: int64 [3, tokens]: time, height, width.
        :param image_rows: int64 [image tokens], the rows of x that are images.
        :param deepstack: [image tokens, width] each; number i is added behind layer i.
        :param captured: takes, for heads that read hidden states, the input of every layer and of the final norm,
            [tokens, width] each, after deepstack. All of the last layer is then computed.
        :returns: [width], the last token's hidden state before the final norm.
        """
        tokens = len(x)
        cos, sin = full_turn(*(table.to(x.dtype) for table in self.rotary(positions)))
        for number, layer in enumerate(self.layers):
            if captured is not None:
                captured.append(x)
            q, kv = layer.project(x, cos, sin)
            written = cache.frame_kv[number, :, frame, :, :tokens]
            written.copy_(kv.permute(1, 2, 0, 3))
            keys, values = written
            last = number == self.config.depth - 1 and captured is None
            if last:
                q, x = q[-1:], x[-1:]
            out = F.scaled_dot_product_attention(q.transpose(0, 1).unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0),
                                                 is_causal=not last, enable_gqa=self.config.groups > 1)
            x = layer.finish(x, out[0].transpose(0, 1).flatten(1))
            if number < len(deepstack) and not last:
                x = x.index_add(0, image_rows, deepstack[number].to(x.dtype))
        if captured is not None:
            captured.append(x)
        return x[-1]

    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin, float32 [tokens, 1, head_dim / 2], of positions int64 [3, tokens]."""
        axes = torch.tensor(self.config.axes(), device=positions.device)
        rows = positions[axes].T
        columns = torch.arange(len(axes), device=positions.device)
        return self.cos[rows, 0, columns].unsqueeze(1), self.sin[rows, 0, columns].unsqueeze(1)


def prompt_positions(tokens: Sequence[int], image_token: int, grids: Sequence[tuple[int, int]]) -> torch.Tensor:
    """
    Return the positions int64 [3, tokens] of a prompt with images.

    A text token is one further than the largest before it on all axes. The tokens of an image stand on a grid that
    begins there; behind it, text goes on after the grid's longer side.

    :param image_token: the id that stands for an image token. :param grids: (rows, columns) of tokens of each image.
    """
    result, start, at = [], 0, 0
    remaining = iter(grids)
    while at < len(tokens):
        if tokens[at] != image_token:
            result.append(torch.full((3, 1), start))
            start, at = start + 1, at + 1
            continue
        rows, columns = next(remaining)
        grid = torch.stack(torch.meshgrid(torch.zeros(1, dtype=torch.int64), torch.arange(rows), torch.arange(columns),
                                          indexing='ij')).flatten(1)
        result.append(grid + start)
        start, at = start + max(rows, columns), at + rows * columns
    return torch.cat(result, dim=1)
