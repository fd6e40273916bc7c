"""Gemma decoder that reads and writes the unified KV cache: prefill of a frame, extension of branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.engine.attention import BranchBatch, attend_branches, make_batch
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.layers import Activation, GatedLinear, Linear, full_turn, rms_norm, rotary_table, rotate_
from oxygen_ros.models.static_shapes import StaticDecode

HEAD_ROWS = 8192  # of a head in bfloat16 that are widened at a time


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

    activation = Activation.GELU

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.config = config
        self.norm1 = nn.Parameter(torch.ones(config.width), requires_grad=False)
        self.qkv = Linear(config.width, config.qkv_width, bias=False)
        self.out = Linear(config.heads * config.head_dim, config.width, bias=False)
        self.norm2 = nn.Parameter(torch.ones(config.width), requires_grad=False)
        self.gate_up = GatedLinear(config.width, config.mlp, self.activation)
        self.down = Linear(config.mlp, config.width, bias=False)

    def project(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Return queries, and keys and values; queries and keys are rotated.

        :param x: [rows, width]. :param cos, sin: tables of `full_turn`, [rows, 1, head_dim].
        :returns: q [rows, heads, head_dim]; [rows, 2, kv_heads, head_dim], keys, then values.
        """
        return self.turn(self.qkv(self.norm(x, self.norm1)), cos, sin)

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Add attention output [rows, heads * head_dim] and the MLP to the residual stream [rows, width]."""
        x = self.out.add_to(x, attended)
        return self.down.add_to(x, self.gate_up(self.norm(x, self.norm2)))

    # -- pieces: what stands between the products; compiled ones may be put in place, see pieces.py -------------------

    def norm(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """See `rms_norm`."""
        return rms_norm(x, scale)

    def turn(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Split [rows, qkv_width] into what `project` returns; may write into it."""
        c = self.config
        qkv = qkv.unflatten(1, (-1, c.head_dim))
        rotate_(qkv[:, :c.heads + c.kv_heads], cos, sin)
        return qkv[:, :c.heads], qkv[:, c.heads:].unflatten(1, (2, c.kv_heads))


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
        self.head = Head(self.embedding)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.depth))
        self.norm = nn.Parameter(torch.ones(config.width), requires_grad=False)
        cos, sin = rotary_table(positions, config.head_dim, theta)
        self.register_buffer('cos', cos.unsqueeze(1), persistent=False)
        self.register_buffer('sin', sin.unsqueeze(1), persistent=False)
        self.pieces: list = []  # those that are compiled, in place or not; see pieces.py
        # Of caches on which decode steps replay graphs.
        self.static: WeakKeyDictionary[UnifiedKVCache, StaticDecode] = WeakKeyDictionary()

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return token embeddings times sqrt(width), as Gemma wants them: int64 [...] -> [..., width]."""
        return self.embedding(tokens) * self.config.width ** 0.5

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and tied head: [..., width] before the final norm -> float32 [..., vocabulary]."""
        return self.head(rms_norm(hidden.float(), self.norm))

    def turn(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin of positions int64 [rows], as `full_turn` gives them, [rows, 1, head_dim]."""
        return full_turn(self.cos[positions].to(dtype), self.sin[positions].to(dtype))

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
        cos, sin = full_turn(self.cos[:tokens].to(x.dtype), self.sin[:tokens].to(x.dtype))
        row_mask = _per_head(mask, c.groups)
        for number, layer in enumerate(self.layers):
            q, kv = layer.project(x, cos, sin)
            written = cache.frame_kv[number, :, frame, :, :tokens]
            written.copy_(kv.permute(1, 2, 0, 3))
            if number == c.depth - 1 and not all_hidden:
                q, x, row_mask = q[-1:], x[-1:], _per_head(None if mask is None else mask[:, -1:], c.groups)
            rows = q.shape[0]
            # Query heads of one key head are rows of one query: [kv_heads, rows * groups, head_dim].
            grouped = q.reshape(rows, c.kv_heads, c.groups, c.head_dim).transpose(0, 1).reshape(
                1, c.kv_heads, rows * c.groups, c.head_dim)
            keys, values = written.unsqueeze(1)
            out = F.scaled_dot_product_attention(grouped, keys, values, row_mask)
            x = layer.finish(x, out.view(c.kv_heads, rows, c.groups * c.head_dim).transpose(0, 1).reshape(rows, -1))
        return x if all_hidden else x[0]

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add tokens to branches; see `VLAModel.extend`. Returns logits float32 [branches, vocabulary]."""
        c, device = self.config, self.embedding.weight.device
        counts = [len(row) for row in tokens]
        branches, width = len(slots), max(counts)
        static = self.static.get(cache)
        if static is not None and width == 1:
            return static.step(slots, [row[0] for row in tokens])
        batch = make_batch(cache, slots, counts, c.groups, cache.spec.dtype)
        # Only attention wants rows of one length: everything else is computed of the given tokens alone.
        ids, positions, slot, place, padded = _rows(cache, slots, tokens, width).to(device)
        ragged = len(ids) < branches * width
        x = self.embed(ids)
        cos, sin = self.turn(positions, x.dtype)
        put = torch.ops.aten.index_put_.default  # as pool[:, slot, :, place] = ..., at half the cost
        for number, layer in enumerate(self.layers):
            q, kv = layer.project(x, cos, sin)
            put(cache.branch_kv[number], (None, slot, None, place), kv)
            if ragged:
                q = q.new_zeros((branches * width, *q.shape[1:])).index_copy_(0, padded, q)
            q = q.view(branches, width, c.kv_heads, c.groups, c.head_dim)
            last = number == c.depth - 1 and width > 1
            if last:
                # Only the last new token of each branch is read: mask rows of the others go with it.
                rows, column = torch.arange(branches, device=device), torch.tensor(counts, device=device) - 1
                q, x = q[rows, column].unsqueeze(1), x[(column + 1).cumsum(0) - 1]
                batch = _last_rows(batch, column, width)
            q = q.transpose(1, 2).flatten(2, 3)
            out = attend_branches(q, cache, number, batch).unflatten(2, (-1, c.groups)).transpose(1, 2)
            out = out.reshape(-1, c.heads * c.head_dim)
            x = layer.finish(x, out[padded] if ragged and not last else out)
        for slot_number, count in zip(slots, counts):
            cache.advance_branch(slot_number, count)
        return self.logits(x)


class Head(nn.Module):
    """
    Output head tied with the embedding. Its logits are float32 whatever the weights are: rounded to bfloat16, the two
    best of many would often be equal.
    """

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._tied = (embedding,)  # in a tuple: its parameter is the embedding's, not one more

    @property
    def weight(self) -> torch.Tensor:
        """The weight of the embedding, [vocabulary, width]."""
        return self._tied[0].weight

    def forward(self, normed: torch.Tensor) -> torch.Tensor:
        """float32 [..., width] -> float32 [..., vocabulary]."""
        weight = self.weight
        if weight.dtype is torch.float32:
            return F.linear(normed, weight)
        if weight.device.type == 'cuda':
            rows = normed.reshape(-1, weight.shape[1]).to(weight.dtype)
            return torch.mm(rows, weight.t(), out_dtype=torch.float32).view(*normed.shape[:-1], -1)
        # Part by part: all of it in float32 would take twice the memory of the embedding.
        return torch.cat([F.linear(normed, part.float()) for part in weight.split(HEAD_ROWS)], dim=-1)


def _rows(cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """Return per new token, int64 [5, tokens]: itself, position, branch slot, place in it, place in a padded batch."""
    rows = []
    for row, (slot, new) in enumerate(zip(slots, tokens)):
        length, position = cache.branches[slot].length, cache.next_position(slot)
        rows += [(token, position + i, slot, length + i, row * width + i) for i, token in enumerate(new)]
    return torch.tensor(rows).T


def _per_head(mask: torch.Tensor | None, groups: int) -> torch.Tensor | None:
    """[1, rows, tokens] -> [1, 1, rows * groups, tokens]."""
    return None if mask is None else mask.repeat_interleave(groups, dim=1).unsqueeze(0)


def _last_rows(batch: BranchBatch, last: torch.Tensor, width: int) -> BranchBatch:
    """Return the batch whose only query per branch and head is the last new token."""
    mask = batch.mask.unflatten(2, (width, -1))
    return replace(batch, mask=mask[torch.arange(len(last), device=last.device), :, last])
