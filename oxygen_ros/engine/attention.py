"""
Attention over [frame prefix ; branch suffix] without joining the two.

Both parts are attended to separately and merged by their log-sum-exp, as in FlashAttention's split-K: with
`lse_i = log(sum(exp(scores_i)))`, `out = sum_i out_i * exp(lse_i - logaddexp_i(lse))`. Branches that share a frame are
queries of one call on its keys, so that the prefix is read once however many branches stand on it. Query heads that
share a key head (grouped-query attention) are rows of the query: keys and values are never expanded.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache

_cpu_flash = getattr(getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu', None), 'default', None)
WASTE = 2  # places of a stretch of frames per branch on it, up to which one call is quicker than one per frame


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
class Stretch:
    """
    Neighbouring frame slots with prefixes of one length, whose branches are queries of one call.

    Each slot has the same number of places for branches; what stands on a place that no branch needs is not read.

    :param first: slot. :param frames: slots. :param places: per slot. :param length: prefix tokens.
    :param take: int64 [frames * places], the row of the batch on each place; None: all rows in their order.
    :param rows: int64, the rows of the batch on this stretch, :param put: int64, and their places.
    """

    first: int
    frames: int
    places: int
    length: int
    take: torch.Tensor | None
    rows: torch.Tensor
    put: torch.Tensor


@dataclass(frozen=True)
class BranchBatch:
    """
    Which slots the rows of a batch are, resolved once per step and used by every layer.

    :param runs: (first row, first slot, rows): stretches of consecutive branch slots, so that the keys of each are a
        view.
    :param stretches: frames of the rows.
    :param tokens: cached tokens per row to look at, the new ones included.
    :param mask: additive [branches, 1, rows, tokens]; hides what comes after each query, and unused tokens. Rows are
        new tokens times query heads per key head.
    """

    runs: tuple[tuple[int, int, int], ...]
    stretches: tuple[Stretch, ...]
    tokens: int
    mask: torch.Tensor


def make_batch(cache: UnifiedKVCache, slots: Sequence[int], counts: Sequence[int], groups_per_key: int,
               dtype: torch.dtype) -> BranchBatch:
    """
    Resolve a batch in which row i adds `counts[i]` tokens to branch `slots[i]`.

    :param groups_per_key: query heads per key head; they are rows of the query, token by token.
    """
    device, branches, frames = cache.branch_kv.device, cache.branches, cache.frames
    stand_on = tuple((branches[slot].frame, frames[branches[slot].frame].length) for slot in slots)
    # Query i of a row stands at token length + i. Queries past the row's count are padding, and never read.
    lengths = torch.tensor([branches[slot].length for slot in slots])
    width = max(counts)
    tokens = max(branches[slot].length + count for slot, count in zip(slots, counts))
    last = lengths[:, None] + torch.arange(width) if width > 1 else lengths[:, None]
    mask = torch.zeros((len(slots), width, tokens), dtype=dtype)
    mask.masked_fill_(torch.arange(tokens) > last.unsqueeze(-1), float('-inf'))
    mask = mask.repeat_interleave(groups_per_key, dim=1).unsqueeze(1).to(device)
    return BranchBatch(_runs(tuple(slots)), _stretches(stand_on, device), tokens, mask)


@functools.lru_cache(maxsize=64)
def _runs(slots: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    if list(slots) != sorted(set(slots)):
        raise ValueError(f'branch slots must ascend without repetition, not {list(slots)}')
    runs: list[list[int]] = []
    for row, slot in enumerate(slots):
        if runs and slot == runs[-1][1] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([row, slot, 1])
    return tuple(map(tuple, runs))


@functools.lru_cache(maxsize=64)  # from step to step, most batches stay as they are
def _stretches(stand_on: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Stretch, ...]:
    """Return the stretches of a batch; `stand_on` is (frame slot, prefix length) of each row."""
    by_length: dict[int, dict[int, list[int]]] = {}
    result = []
    for row, (frame, length) in enumerate(stand_on):
        by_length.setdefault(length, {}).setdefault(frame, []).append(row)
    for length, rows_of in sorted(by_length.items()):
        first, last = min(rows_of), max(rows_of)
        branches, places = sum(map(len, rows_of.values())), max(map(len, rows_of.values()))
        if (last - first + 1) * places <= WASTE * branches:
            result.append(_stretch(first, last, places, length, rows_of, len(stand_on), device))
        else:
            result += [_stretch(frame, frame, len(rows), length, {frame: rows}, len(stand_on), device)
                       for frame, rows in sorted(rows_of.items())]
    return tuple(result)


def _stretch(first: int, last: int, places: int, length: int, rows_of: dict[int, list[int]], branches: int,
             device: torch.device) -> Stretch:
    take = [0] * ((last - first + 1) * places)
    put = []
    for frame, rows in rows_of.items():
        for place, row in enumerate(rows, (frame - first) * places):
            take[place] = row
            put.append((row, place))
    straight = take == list(range(branches))
    with torch.inference_mode(False):  # they may be used outside too
        rows, places_of = (torch.tensor(column, device=device) for column in zip(*sorted(put)))
        return Stretch(first, last - first + 1, places, length,
                       None if straight else torch.tensor(take, device=device), rows, places_of)


def attend_branches(q: torch.Tensor, cache: UnifiedKVCache, layer: int, batch: BranchBatch) -> torch.Tensor:
    """
    Attend from the new tokens of several branches to their frames and to their own tokens.

    :param q: [branches, kv_heads, rows, head_dim]; rows = new tokens times query heads per key head.
    :param layer: layer of the cache; the keys and values of the new tokens are in it already.
    :returns: like q.
    """
    suffix, suffix_lse = _attend_suffixes(q, cache.branch_k[layer], cache.branch_v[layer], batch)
    prefix, prefix_lse = _attend_frames(q, cache.frame_k[layer], cache.frame_v[layer], batch.stretches)
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


def _attend_frames(q: torch.Tensor, frame_k: torch.Tensor, frame_v: torch.Tensor, stretches: Sequence[Stretch],
                   ) -> tuple[torch.Tensor, torch.Tensor]:
    if len(stretches) == 1:
        out, lse = _attend_stretch(q, frame_k, frame_v, stretches[0])
        if stretches[0].take is None:
            return out, lse
        return out.index_select(0, stretches[0].put), lse.index_select(0, stretches[0].put)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    for stretch in stretches:
        part, part_lse = _attend_stretch(q, frame_k, frame_v, stretch)
        out.index_copy_(0, stretch.rows, part.index_select(0, stretch.put))
        lse.index_copy_(0, stretch.rows, part_lse.index_select(0, stretch.put))
    return out, lse


def _attend_stretch(q: torch.Tensor, frame_k: torch.Tensor, frame_v: torch.Tensor, stretch: Stretch,
                    ) -> tuple[torch.Tensor, torch.Tensor]:
    """Let all places of a frame be rows of one query on its keys; return what each place sees."""
    _, kv_heads, rows, head_dim = q.shape
    if stretch.take is not None:
        q = q.index_select(0, stretch.take)
    frames, places = stretch.frames, stretch.places
    first, end, length = stretch.first, stretch.first + frames, stretch.length
    keys, values = frame_k[first:end, :, :length], frame_v[first:end, :, :length]
    if places == 1:
        return attend(q, keys, values)
    stacked = q.reshape(frames, places, kv_heads, rows, head_dim).transpose(1, 2).reshape(
        frames, kv_heads, places * rows, head_dim)
    out, lse = attend(stacked, keys, values)
    return (out.unflatten(2, (places, rows)).transpose(1, 2).flatten(0, 1),
            lse.unflatten(2, (places, rows)).transpose(1, 2).flatten(0, 1))
