"""Attention over [prefix ; suffix] in two parts equals dense attention over the joined keys, computed in float64."""

import pytest
import torch

from oxygen_ros.engine import attention
from oxygen_ros.engine.attention import attend, attend_branches, make_batch
from oxygen_ros.engine.kv_cache import CacheSpec, UnifiedKVCache

KV_HEADS, GROUPS, HEAD_DIM = 2, 3, 8


@pytest.fixture(params=['flash', 'fallback'])
def either_path(request, monkeypatch):
    if request.param == 'fallback':
        monkeypatch.setattr(attention, '_cpu_flash', None)
    elif attention._cpu_flash is None:
        pytest.skip('this torch has no flash attention for the CPU')


def filled_cache(frame_lengths, branches, seed=0, dtype=torch.float32):
    """Return a cache full of random numbers; `branches` are (frame index, length)."""
    generator = torch.Generator().manual_seed(seed)
    spec = CacheSpec(2, KV_HEADS, HEAD_DIM, 20, 4, 16, len(frame_lengths) + 1, len(branches) + 2, dtype)
    cache = UnifiedKVCache(spec)
    for pool in (cache.frame_k, cache.frame_v, cache.branch_k, cache.branch_v):
        pool.copy_(torch.randn(pool.shape, generator=generator))
    frames = [cache.acquire_frame(i) for i in range(len(frame_lengths))]
    for frame, length in zip(frames, frame_lengths):
        cache.set_frame(frame, length, length)
    slots = [cache.open_branch(frames[frame]) for frame, _ in branches]
    for slot, (_, length) in zip(slots, branches):
        cache.advance_branch(slot, length)
    return cache, slots


def dense(cache, layer, slot, q, position):
    """Softmax attention of one query [kv_heads, head_dim] at a token of a branch, over prefix and own tokens."""
    frame = cache.branches[slot].frame
    length = cache.frames[frame].length
    k = torch.cat((cache.frame_k[layer, frame, :, :length], cache.branch_k[layer, slot, :, :position + 1]), 1).double()
    v = torch.cat((cache.frame_v[layer, frame, :, :length], cache.branch_v[layer, slot, :, :position + 1]), 1).double()
    weights = torch.softmax((k @ q.double().unsqueeze(-1)).squeeze(-1) * HEAD_DIM ** -0.5, -1)
    return (weights.unsqueeze(1) @ v).squeeze(1)


BATCHES = {
    'one branch': ([7], [(0, 3)], [0], [1]),
    'several on one frame': ([9], [(0, 0), (0, 5), (0, 2)], [0, 1, 2], [1, 1, 1]),
    'frames of one length': ([9, 9, 9], [(2, 1), (1, 5), (2, 2), (0, 9), (2, 0)], [0, 1, 2, 3, 4], [1] * 5),
    'a hole between frames': ([9, 9, 9], [(2, 1), (0, 5), (1, 2), (0, 9)], [0, 1, 3], [1] * 3),
    'prompts on frames of one length': ([9, 9], [(1, 1), (0, 0)], [0, 1], [4, 2]),
    'several frames': ([9, 4, 20], [(0, 1), (1, 5), (2, 2), (0, 9), (1, 0)], [0, 1, 2, 3, 4], [1] * 5),
    'holes between slots': ([9, 4], [(0, 1), (1, 5), (0, 2), (1, 9), (0, 3), (1, 1)], [0, 2, 3, 5], [1] * 4),
    'ragged prompts': ([6, 3], [(0, 0), (1, 0), (0, 4)], [0, 1, 2], [5, 1, 3]),
    'prompts and decode steps together': ([6, 3], [(0, 7), (1, 0), (0, 4), (1, 11)], [0, 1, 3], [1, 4, 5]),
    'a full branch': ([20], [(0, 15), (0, 0)], [0, 1], [1, 1]),
}


@pytest.mark.parametrize('name', BATCHES)
def test_two_parts_equal_dense_attention(either_path, name):
    frame_lengths, branches, rows, counts = BATCHES[name]
    cache, slots = filled_cache(frame_lengths, branches)
    slots = [slots[row] for row in rows]
    width = max(counts)
    q = torch.randn((len(slots), KV_HEADS, width, GROUPS, HEAD_DIM), generator=torch.Generator().manual_seed(1)) * 2
    batch = make_batch(cache, slots, counts, GROUPS, torch.float32)
    for layer in range(2):
        out = attend_branches(q.flatten(2, 3), cache, layer, batch).view_as(q)
        for row, (slot, count) in enumerate(zip(slots, counts)):
            for group in range(GROUPS):
                for i in range(count):
                    expected = dense(cache, layer, slot, q[row, :, i, group], cache.branches[slot].length + i)
                    torch.testing.assert_close(out[row, :, i, group].double(), expected, rtol=1e-5, atol=1e-5)


def test_merge_holds_when_one_part_outweighs_the_other_by_far(either_path):
    cache, slots = filled_cache([5, 5], [(0, 3), (1, 3)])
    q = torch.full((2, KV_HEADS, GROUPS, HEAD_DIM), 1.0)
    cache.frame_k[:, 0] = 40.0    # all the weight on the prefix of the first branch
    cache.branch_k[:, 1] = 40.0   # and on the own tokens of the second
    out = attend_branches(q, cache, 0, make_batch(cache, slots, [1, 1], GROUPS, torch.float32))
    torch.testing.assert_close(out[0], cache.frame_v[0, 0, :, :5].mean(1, keepdim=True).expand(-1, GROUPS, -1))
    torch.testing.assert_close(out[1], cache.branch_v[0, 1, :, :4].mean(1, keepdim=True).expand(-1, GROUPS, -1))


def test_nothing_beyond_the_lengths_is_looked_at(either_path):
    cache, slots = filled_cache([5, 9], [(0, 3), (1, 1)])
    batch = make_batch(cache, slots, [1, 1], GROUPS, torch.float32)
    q = torch.randn((2, KV_HEADS, GROUPS, HEAD_DIM), generator=torch.Generator().manual_seed(2))
    before = attend_branches(q, cache, 1, batch)
    for slot in slots:
        cache.branch_k[:, slot, :, cache.branches[slot].length + 1:] = 1e4
        cache.branch_v[:, slot, :, cache.branches[slot].length + 1:] = 1e4
        frame = cache.branches[slot].frame
        cache.frame_k[:, frame, :, cache.frames[frame].length:] = 1e4
        cache.frame_v[:, frame, :, cache.frames[frame].length:] = torch.nan
    torch.testing.assert_close(attend_branches(q, cache, 1, batch), before, rtol=0, atol=0)


def test_log_sum_exp_is_that_of_the_scores(either_path):
    q, k, v = (torch.randn((2, 3, n, 4), generator=torch.Generator().manual_seed(n)) for n in (5, 7, 7))
    mask = torch.zeros((2, 1, 5, 7))
    mask[1, :, :, 4:] = float('-inf')
    out, lse = attend(q, k, v, mask)
    scores = (q.double() @ k.double().transpose(-1, -2)) / 2 + mask.double()
    torch.testing.assert_close(lse.double(), torch.logsumexp(scores, -1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), torch.softmax(scores, -1) @ v.double(), rtol=1e-5, atol=1e-5)
    assert lse.dtype == torch.float32


def test_both_paths_agree_in_bfloat16(monkeypatch):
    if attention._cpu_flash is None:
        pytest.skip('this torch has no flash attention for the CPU')
    cache, slots = filled_cache([9, 5], [(0, 3), (1, 1), (0, 6)], dtype=torch.bfloat16)
    q = torch.randn((3, KV_HEADS, GROUPS, HEAD_DIM), generator=torch.Generator().manual_seed(3)).bfloat16()
    batch = make_batch(cache, slots, [1, 1, 1], GROUPS, torch.bfloat16)
    flash = attend_branches(q, cache, 0, batch)
    monkeypatch.setattr(attention, '_cpu_flash', None)
    torch.testing.assert_close(attend_branches(q, cache, 0, batch), flash, rtol=0.03, atol=0.03)


@pytest.mark.parametrize('slots', [[1, 0], [0, 0], [2, 1, 3]])
def test_slots_that_do_not_ascend_are_refused(slots):
    cache, _ = filled_cache([3], [(0, 1)] * 4)
    with pytest.raises(ValueError, match='ascend'):
        make_batch(cache, slots, [1] * len(slots), GROUPS, torch.float32)


def test_batch_of_neighbours_is_one_view():
    cache, slots = filled_cache([3, 3], [(0, 1), (0, 1), (0, 1), (1, 1), (1, 1)])
    assert make_batch(cache, slots[:3], [1] * 3, GROUPS, torch.float32).runs == ((0, 0, 3),)
    assert make_batch(cache, [0, 1, 3, 4], [1] * 4, GROUPS, torch.float32).runs == ((0, 0, 2), (2, 3, 2))


def stretches(frame_lengths, on_frames):
    cache, slots = filled_cache(frame_lengths, [(frame, 1) for frame in on_frames])
    batch = make_batch(cache, slots, [1] * len(slots), GROUPS, torch.float32)
    return [(s.first, s.frames, s.places, None if s.take is None else s.take.tolist(), s.rows.tolist(), s.put.tolist())
            for s in batch.stretches]


def test_branches_of_one_frame_read_its_prefix_once():
    assert stretches([3], [0, 0, 0]) == [(0, 1, 3, None, [0, 1, 2], [0, 1, 2])]


def test_frames_of_one_length_are_read_in_one_call():
    assert stretches([3, 3, 3], [0, 1, 2]) == [(0, 3, 1, None, [0, 1, 2], [0, 1, 2])]
    assert stretches([3, 3, 3], [2, 0, 2]) == [(0, 3, 2, [1, 0, 0, 0, 0, 2], [0, 1, 2], [4, 0, 5])]


def test_frames_of_other_lengths_or_far_apart_are_read_alone():
    assert stretches([3, 5], [1, 0]) == [(0, 1, 1, [1], [1], [0]), (1, 1, 1, [0], [0], [0])]
    assert [stretch[0] for stretch in stretches([3] * 6, [0, 5])] == [0, 5]
