"""
Attention over [frame prefix ; branch suffix] without joining the two.

Both parts are attended to separately and merged by their log-sum-exp, as in FlashAttention's split-K: with
`lse_i = log(sum(exp(scores_i)))`, `out = sum_i out_i * exp(lse_i - logaddexp_i(lse))`. Branches that share a frame are
queries of one call on its keys, so that the prefix is read once however many branches stand on it. Query heads that
share a key head (grouped-query attention) are rows of the query: keys and values are never expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache

_cpu_flash = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu', None)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None,
           ) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Attend, and return the log-sum-exp of the scores too.

    :param q: [batch, kv_heads, rows, head_dim].
    :param k: [batch, kv_heads, tokens, head_dim].
    :param v: like k.
    :param mask: additive, [batch or 1, 1, rows, tokens], in the dtype of q; None sees everything.
    :returns: output like q, and log-sum-exp [batch, kv_heads, rows] in float32.
    """
    scale = q.shape[-1] ** -0.5
    if q.device.type == 'cpu' and _cpu_flash is not None:
        return _cpu_flash(q, k, v, attn_mask=mask, scale=scale)
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, dim=-1)
    return torch.matmul(torch.exp(scores - lse.unsqueeze(-1)).to(v.dtype), v), lse


@dataclass(frozen=True)
class BranchBatch:
    """
    Which slots the rows of a batch are, resolved once per step and used by every layer.

    :param slots: branch slots, ascending; row i of the batch is slot `slots[i]`.
    :param runs: (first row, first slot, rows): stretches of consecutive slots, so that the keys of each are a view.
    :param groups: (frame slot, prefix length, rows on that frame as int64 tensor).
    :param tokens: cached tokens per row to look at, the new ones included.
    :param mask: additive [branches, 1, rows, tokens]; hides what comes after each query, and unused tokens.
    """

    slots: tuple[int, ...]
    runs: tuple[tuple[int, int, int], ...]
    groups: tuple[tuple[int, int, torch.Tensor], ...]
    tokens: int
    mask: torch.Tensor


def make_batch(cache: UnifiedKVCache, slots: Sequence[int], counts: Sequence[int], groups_per_key: int,
               dtype: torch.dtype) -> BranchBatch:
    """
    Resolve a batch in which row i adds `counts[i]` tokens to branch `slots[i]`.

    :param groups_per_key: query heads per key head; they are rows of the query, head by head.
    """
    if list(slots) != sorted(set(slots)):
        raise ValueError(f'branch slots must ascend without repetition, not {list(slots)}')
    device = cache.branch_k.device
    runs: list[list[int]] = []
    for row, slot in enumerate(slots):
        if runs and slot == runs[-1][1] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([row, slot, 1])
    by_frame: dict[int, list[int]] = {}
    for row, slot in enumerate(slots):
        by_frame.setdefault(cache.branches[slot].frame, []).append(row)
    groups = tuple((frame, cache.frames[frame].length, torch.tensor(rows, device=device))
                   for frame, rows in by_frame.items())
    lengths = torch.tensor([cache.branches[slot].length for slot in slots])
    width = max(counts)
    tokens = int((lengths + torch.tensor(counts)).max())
    # Query i of a row stands at token length + i. Queries past the row's count are padding, and never read.
    last = lengths[:, None] + torch.arange(width)[None, :]
    hidden = torch.arange(tokens)[None, None, :] > last[:, :, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float('-inf'))
    mask = mask.repeat(1, groups_per_key, 1).unsqueeze(1).to(device)
    return BranchBatch(tuple(slots), tuple(map(tuple, runs)), groups, tokens, mask)


def attend_branches(q: torch.Tensor, cache: UnifiedKVCache, layer: int, batch: BranchBatch) -> torch.Tensor:
    """
    Attend from the new tokens of several branches to their frames and to their own tokens.

    :param q: [branches, kv_heads, rows, head_dim]; rows = query heads per key head times new tokens.
    :param layer: layer of the cache; the keys and values of the new tokens are in it already.
    :returns: like q.
    """
    suffix, suffix_lse = _attend_suffixes(q, cache.branch_k[layer], cache.branch_v[layer], batch)
    prefix, prefix_lse = _attend_frames(q, cache.frame_k[layer], cache.frame_v[layer], batch.groups)
    # sigmoid(a - b) = exp(a) / (exp(a) + exp(b)): the share of the prefix in the softmax over both parts.
    share = torch.sigmoid(prefix_lse - suffix_lse).unsqueeze(-1).to(q.dtype)
    return torch.lerp(suffix, prefix, share)


def _attend_suffixes(q: torch.Tensor, branch_k: torch.Tensor, branch_v: torch.Tensor, batch: BranchBatch,
                     ) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [attend(q[row:row + rows], branch_k[slot:slot + rows, :, :batch.tokens],
                    branch_v[slot:slot + rows, :, :batch.tokens], batch.mask[row:row + rows])
             for row, slot, rows in batch.runs]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _attend_frames(q: torch.Tensor, frame_k: torch.Tensor, frame_v: torch.Tensor,
                   groups: Sequence[tuple[int, int, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    branches, kv_heads, rows, head_dim = q.shape
    if len(groups) == 1:
        slot, length, _ = groups[0]
        return _attend_frame(q, frame_k[slot, :, :length], frame_v[slot, :, :length])
    out = torch.empty_like(q)
    lse = torch.empty((branches, kv_heads, rows), dtype=torch.float32, device=q.device)
    for slot, length, index in groups:
        part, part_lse = _attend_frame(q.index_select(0, index), frame_k[slot, :, :length], frame_v[slot, :, :length])
        out.index_copy_(0, index, part)
        lse.index_copy_(0, index, part_lse)
    return out, lse


def _attend_frame(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Let all branches of one frame be rows of a single query on its keys [kv_heads, length, head_dim]."""
    branches, kv_heads, rows, head_dim = q.shape
    stacked = q.transpose(0, 1).reshape(1, kv_heads, branches * rows, head_dim)
    out, lse = attend(stacked, k.unsqueeze(0), v.unsqueeze(0))
    return (out.view(kv_heads, branches, rows, head_dim).transpose(0, 1),
            lse.view(kv_heads, branches, rows).transpose(0, 1))
