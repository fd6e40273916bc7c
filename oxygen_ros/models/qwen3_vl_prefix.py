"""What the families on Qwen3-VL share of the prefix: pictures and text as tokens with positions, into a frame slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.qwen3_vl import QwenDecoder, prompt_positions
from oxygen_ros.models.qwen3_vl_vision import see

LAST_HIDDEN = 'last_hidden'  # extra of a frame: [width], the last token's hidden state before the final norm


@dataclass(frozen=True)
class Prefix:
    """
    :param positions: int64 [3, tokens]: time, height, width.
    :param pixels, grids: of the pictures, see `qwen3_vl_vision.see`; None without pictures.
    """

    tokens: list[int]
    positions: torch.Tensor
    pixels: torch.Tensor | None
    grids: torch.Tensor | None

    @classmethod
    def of(cls, tokens: Sequence[int], image_token: int, sizes: Sequence[tuple[int, int]],
           pixels: torch.Tensor | None, grids: torch.Tensor | None) -> Prefix:
        """
        Return the prefix of a prompt in which each image token stands for a whole picture.

        :param sizes: rows and columns of image tokens of each picture.
        """
        counts = iter([rows * columns for rows, columns in sizes])
        tokens = [part for token in tokens for part in [token] * (next(counts) if token == image_token else 1)]
        return cls(tokens, prompt_positions(tokens, image_token, sizes), pixels, grids)


def write_prefix(vision: nn.Module, decoder: QwenDecoder, prefix: Prefix, image_token: int, cache: UnifiedKVCache,
                 frame: int, captured: list[torch.Tensor] | None = None) -> None:
    """Write a prefix into a frame slot, its `LAST_HIDDEN` too. :param captured: see `QwenDecoder.prefill`."""
    device = decoder.embedding.weight.device
    ids = torch.tensor(prefix.tokens, device=device)
    rows = (ids == image_token).nonzero().flatten()
    x, deepstack = decoder.embed(ids), []
    if prefix.pixels is not None:
        seen, deepstack = see(vision, prefix.pixels.to(device), prefix.grids.to(device))
        x = x.index_copy(0, rows, seen.to(x.dtype))
    last = decoder.prefill(x, cache, frame, prefix.positions.to(device), rows, deepstack, captured)
    cache.extras[LAST_HIDDEN][frame].copy_(last)
    cache.set_frame(frame, len(prefix.tokens), int(prefix.positions.max()) + 1)
