"""Action head of StarVLA's OFT: an MLP on the hidden states of placeholder tokens, one per action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.engine.kv_cache import ExtraSpec, UnifiedKVCache

BLOCKS = 2
QUERIES = 'action_queries'


class OftHead(nn.Module):
    """
    Gives a chunk of actions at once.

    :param hidden: width of the decoder's hidden states. :param query_token: the placeholder.
    """

    denoise_steps = 1  # there is no flow

    def __init__(self, hidden: int, action_dim: int, horizon: int, query_token: int) -> None:
        super().__init__()
        self.hidden, self.horizon, self.query_token = hidden, horizon, query_token
        inner = 2 * hidden
        self.norm_in, self.linear_in = nn.LayerNorm(hidden), nn.Linear(hidden, inner)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(inner), nn.Linear(inner, inner)) for _ in range(BLOCKS))
        self.norm_out, self.linear_out = nn.LayerNorm(inner), nn.Linear(inner, action_dim)

    def extras(self, prefix_tokens: int, dtype: torch.dtype) -> dict[str, ExtraSpec]:
        """Return what is kept with a frame. :param dtype: of this head's weights."""
        return {QUERIES: ExtraSpec((self.horizon, self.hidden), dtype)}

    def keep(self, cache: UnifiedKVCache, frame: int, captured: Sequence[torch.Tensor], tokens: Sequence[int],
             state: torch.Tensor | None) -> None:
        """Keep the last hidden states of the last `horizon` placeholders; see `FlowHead.keep`."""
        rows = [row for row, token in enumerate(tokens) if token == self.query_token][-self.horizon:]
        if len(rows) != self.horizon:
            raise ValueError(f'the prompt has {len(rows)} placeholder tokens for {self.horizon} actions: the tokenizer '
                             'is not that of the checkpoint')
        cache.extras[QUERIES][frame].copy_(captured[-1][rows])

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Return the actions float32 [horizon, action_dim]; noise and steps mean nothing here."""
        x = F.relu(self.linear_in(self.norm_in(cache.extras[QUERIES][frame])))
        for block in self.blocks:
            x = x + F.relu(block(x))
        return self.linear_out(self.norm_out(x)).float()
