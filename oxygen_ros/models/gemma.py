"""Gemma decoder that reads and writes the unified KV cache: prefill of a frame, extension of branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.engine.attention import BranchBatch, attend_branches, make_batch
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.layers import rms_norm, rotary_table, rotate


@dataclass(frozen=True)
class GemmaConfig:
    """Sizes of a Gemma decoder. The action expert of a model has the same depth, heads, kv_heads and head_dim."""

    width: int
    depth: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(f'heads {self.heads} must be a multiple of kv_heads {self.kv_heads}, '
                             f'head_dim {self.head_dim} even')

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads

    @property
    def qkv_width(self) -> int:
        """Rows of the fused projection: all query heads, then keys, then values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


class GemmaLayer(nn.Module):
    """Weights of one layer; query, key and value projections are fused, gate and up too."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.config = config
        self.norm1 = nn.Parameter(torch.ones(config.width), requires_grad=False)
        self.qkv = nn.Linear(config.width, config.qkv_width, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.width, bias=False)
        self.norm2 = nn.Parameter(torch.ones(config.width), requires_grad=False)
        self.gate_up = nn.Linear(config.width, 2 * config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, config.width, bias=False)

    def project(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[..., width] -> q [..., heads, head_dim], k and v [..., kv_heads, head_dim]; q and k are rotated."""
        c = self.config
        qkv = self.qkv(rms_norm(x, self.norm1)).unflatten(-1, (c.heads + 2 * c.kv_heads, c.head_dim))
        qk = rotate(qkv[..., :c.heads + c.kv_heads, :], cos, sin)
        return qk[..., :c.heads, :], qk[..., c.heads:, :], qkv[..., c.heads + c.kv_heads:, :]

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Add attention output [..., heads * head_dim] and the MLP to the residual stream [..., width]."""
        x = x + self.out(attended)
        gate, up = self.gate_up(rms_norm(x, self.norm2)).chunk(2, dim=-1)
        return x + self.down(F.gelu(gate, approximate='tanh') * up)


class GemmaDecoder(nn.Module):
    """
    Embedding (tied with the output head), layers, final norm.

    :param layer: class of the layers, and theta: base of the rotary frequencies; relatives of Gemma have their own.
    """

    def __init__(self, config: GemmaConfig, vocabulary: int, positions: int, layer: type[GemmaLayer] = GemmaLayer,
                 theta: float = 10000.0) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary, config.width)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.depth))
        self.norm = nn.Parameter(torch.ones(config.width), requires_grad=False)
        cos, sin = rotary_table(positions, config.head_dim, theta)
        self.register_buffer('cos', cos.unsqueeze(1), persistent=False)
        self.register_buffer('sin', sin.unsqueeze(1), persistent=False)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return token embeddings times sqrt(width), as Gemma wants them: int64 [...] -> [..., width]."""
        return self.embedding(tokens) * self.config.width ** 0.5

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and tied head: [..., width] before the final norm -> float32 [..., vocabulary]."""
        return F.linear(rms_norm(hidden, self.norm), self.embedding.weight).float()

    def prefill(self, x: torch.Tensor, cache: UnifiedKVCache, frame: int, mask: torch.Tensor | None = None,
                all_hidden: bool = False) -> torch.Tensor:
        """
        Write the prefix x [tokens, width] into a frame slot; positions are 0, 1, 2, ...

        In the last layer only K and V of all tokens and the output of the last token are needed, and only those are
        computed.

        :param mask: additive [1, tokens, tokens] in x's dtype; None lets all tokens see each other.
        :param all_hidden: compute and return the output of all tokens, [tokens, width]. Only verification needs it.
        :returns: [width], the last token's hidden state before the final norm: what the first text token is read from.
        """
        c = self.config
        tokens = x.shape[0]
        cos, sin = self.cos[:tokens].to(x.dtype), self.sin[:tokens].to(x.dtype)
        for number, layer in enumerate(self.layers):
            q, k, v = layer.project(x, cos, sin)
            keys, values = cache.frame_k[number, frame, :, :tokens], cache.frame_v[number, frame, :, :tokens]
            keys.copy_(k.transpose(0, 1))
            values.copy_(v.transpose(0, 1))
            if number == c.depth - 1 and not all_hidden:
                q, x = q[-1:], x[-1:]
                mask = None if mask is None else mask[:, -1:]
            rows = q.shape[0]
            # Query heads of one key head are rows of one query: [kv_heads, groups * rows, head_dim].
            grouped = q.view(rows, c.kv_heads, c.groups, c.head_dim).permute(1, 2, 0, 3).flatten(1, 2)
            row_mask = None if mask is None else mask.repeat(1, c.groups, 1).unsqueeze(0)
            out = F.scaled_dot_product_attention(grouped.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), row_mask)
            x = layer.finish(x, out.view(c.heads, rows, c.head_dim).transpose(0, 1).flatten(1))
        return x if all_hidden else x[0]

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add tokens to branches; see `VLAModel.extend`. Returns logits float32 [branches, vocabulary]."""
        device = self.embedding.weight.device
        counts = [len(row) for row in tokens]
        width = max(counts)
        x = self.embed(torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens], device=device))
        batch = make_batch(cache, slots, counts, self.config.groups, x.dtype)
        # Positions of padding may run past the table: clamp, they are never read.
        starts = torch.tensor([cache.next_position(slot) for slot in slots], device=device)
        positions = (starts[:, None] + torch.arange(width, device=device)).clamp_(max=self.cos.shape[0] - 1)
        cos, sin = self.cos[positions].to(x.dtype), self.sin[positions].to(x.dtype)
        writes = _write_index(cache, slots, counts, device)
        for number, layer in enumerate(self.layers):
            q, k, v = layer.project(x, cos, sin)
            row, column, slot, token = writes
            cache.branch_k[number][slot, :, token] = k[row, column]
            cache.branch_v[number][slot, :, token] = v[row, column]
            if number == self.config.depth - 1 and width > 1:
                # Only the last new token of each branch is read: mask rows of the others go with it.
                last = torch.tensor(counts, device=device) - 1
                rows = torch.arange(len(slots), device=device)
                q, x = q[rows, last].unsqueeze(1), x[rows, last].unsqueeze(1)
                batch = _last_rows(batch, last, width)
            x = layer.finish(x, self._attend(q, cache, number, batch))
        for slot_number, count in zip(slots, counts):
            cache.advance_branch(slot_number, count)
        return self.logits(x[:, 0])

    def _attend(self, q: torch.Tensor, cache: UnifiedKVCache, layer: int, batch: BranchBatch) -> torch.Tensor:
        c = self.config
        branches, width = q.shape[:2]
        grouped = q.view(branches, width, c.kv_heads, c.groups, c.head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = attend_branches(grouped, cache, layer, batch)
        out = out.view(branches, c.kv_heads, c.groups, width, c.head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(branches, width, c.heads * c.head_dim)


def _write_index(cache: UnifiedKVCache, slots: Sequence[int], counts: Sequence[int], device: torch.device,
                 ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (row, column) of every new token in the batch and (slot, token) of its place in the branch pool."""
    places = [(row, column, slot, cache.branches[slot].length + column)
              for row, (slot, count) in enumerate(zip(slots, counts)) for column in range(count)]
    return tuple(torch.tensor(column, device=device) for column in zip(*places))


def _last_rows(batch: BranchBatch, last: torch.Tensor, width: int) -> BranchBatch:
    """Return the batch whose only query per branch and head is the last new token."""
    groups = batch.mask.shape[2] // width
    mask = batch.mask.unflatten(2, (groups, width))
    mask = mask[torch.arange(len(last), device=last.device), :, :, last]
    return BranchBatch(batch.slots, batch.runs, batch.groups, batch.tokens, mask)
