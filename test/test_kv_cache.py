"""The unified KV cache: budget, references, slots, and a check that finds every kind of damage."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.engine.kv_cache import (
    MIB,
    CacheFullError,
    CacheIntegrityError,
    CacheSpec,
    ExtraSpec,
    UnifiedKVCache,
)
from oxygen_ros.errors import ConfigError


def spec(frames=3, branches=2, **sizes):
    return CacheSpec(**{'layers': 2, 'kv_heads': 2, 'head_dim': 4, 'frame_tokens': 6, 'scratch_tokens': 3,
                        'branch_tokens': 5, **sizes}, frames=frames, branches=branches)


def test_sizes_are_those_of_the_tensors():
    given_spec = spec(extras={'hidden': ExtraSpec((7,), torch.float16)})
    cache = UnifiedKVCache(given_spec)
    tensors = [cache.frame_k, cache.frame_v, cache.branch_k, cache.branch_v, *cache.extras.values()]
    assert sum(t.numel() * t.element_size() for t in tensors) == given_spec.total_bytes() == cache.budget_bytes


@pytest.mark.parametrize('name', ['layers', 'kv_heads', 'head_dim', 'frame_tokens', 'branch_tokens', 'branches'])
def test_sizes_below_one_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=name):
        spec(**{name: 0})


def test_a_single_frame_is_refused():
    with pytest.raises(ConfigError, match='frames is 1'):
        spec(frames=1)


@pytest.mark.parametrize('budget_slots', [0.5, 2.0, 2.6, 3.2, 5.0, 11.3, 40.0])
def test_budget_is_refused_with_a_remedy_that_really_fits_and_no_larger_one_does(budget_slots):
    sizes = {'frame_tokens': 1000, 'branch_tokens': 500, 'head_dim': 64}
    small = spec(**sizes)
    budget = budget_slots * small.frame_slot_bytes() / MIB
    with pytest.raises(ConfigError) as refused:
        UnifiedKVCache(spec(frames=300, branches=300, **sizes), budget)
    text = str(refused.value)
    assert '\n' not in text
    remedy = re.search(r'max_branches to at most (\d+) with max_frames (\d+)', text)
    if remedy is None:
        assert 'even two frames and one branch do not fit' in text
        with pytest.raises(ConfigError):
            UnifiedKVCache(spec(frames=2, branches=1, **sizes), budget)
    else:
        branches, frames = map(int, remedy.groups())
        assert branches >= 1
        UnifiedKVCache(spec(frames=frames, branches=branches, **sizes), budget)
        with pytest.raises(ConfigError):
            UnifiedKVCache(spec(frames=frames + (frames > 2), branches=branches + 1, **sizes), budget)
    raised = int(re.search(r'raise kv_budget_mib to (\d+)', text).group(1))
    assert spec(frames=300, branches=300, **sizes).total_bytes() <= raised * MIB


def test_budget_is_refused_before_any_memory_is_taken(monkeypatch):
    monkeypatch.setattr(torch, 'zeros', lambda *a, **k: pytest.fail('allocated'))
    with pytest.raises(ConfigError, match='budget is 1.0 MiB'):
        UnifiedKVCache(spec(frames=10**6), 1.0)


def test_memory_that_the_machine_has_not_is_a_clear_error():
    with pytest.raises(ConfigError, match='does not fit into the memory of device cpu'):
        UnifiedKVCache(spec(frames=10**9, frame_tokens=10**6, head_dim=1024))


def test_frame_lives_as_long_as_its_last_reference():
    cache = UnifiedKVCache(spec())
    frame = cache.acquire_frame('a')
    cache.set_frame(frame, 4, 4)
    first, second = cache.open_branch(frame), cache.open_branch(frame)
    assert first != second
    cache.release_frame(frame)  # the pin
    cache.close_branch(first)
    assert cache.free_frames == 2
    cache.check_integrity({})
    cache.close_branch(second)
    assert (cache.free_frames, cache.free_branches, cache.used_bytes()) == (3, 2, 0)
    cache.check_integrity({})


def test_full_pools_raise_and_stay_whole():
    cache = UnifiedKVCache(spec(frames=2, branches=1))
    first, second = cache.acquire_frame(1), cache.acquire_frame(2)
    with pytest.raises(CacheFullError, match='frame'):
        cache.acquire_frame(3)
    cache.open_branch(first)
    with pytest.raises(CacheFullError, match='branch'):
        cache.open_branch(second)
    cache.check_integrity({first: 1, second: 1})


def test_free_slots_cannot_be_used():
    cache = UnifiedKVCache(spec())
    for use in (lambda: cache.release_frame(0), lambda: cache.retain_frame(0), lambda: cache.set_frame(0, 1, 1),
                lambda: cache.open_branch(0), lambda: cache.close_branch(0), lambda: cache.advance_branch(0, 1),
                lambda: cache.branch_room(0), lambda: cache.next_position(0)):
        with pytest.raises(CacheIntegrityError, match='is free'):
            use()
    cache.check_integrity({})
    assert cache.free_branches == 2


def test_lengths_beyond_a_slot_are_refused():
    cache = UnifiedKVCache(spec())
    frame = cache.acquire_frame(1)
    for length in (0, 7):
        with pytest.raises(ValueError, match='does not fit'):
            cache.set_frame(frame, length, length)
    branch = cache.open_branch(frame)
    cache.advance_branch(branch, 5)
    assert cache.branch_room(branch) == 0
    with pytest.raises(ValueError, match='does not fit'):
        cache.advance_branch(branch, 1)
    assert cache.branches[branch].length == 5


def test_positions_count_on_from_the_prefix():
    cache = UnifiedKVCache(spec())
    frame = cache.acquire_frame(1)
    cache.set_frame(frame, 4, 11)
    branch = cache.open_branch(frame)
    assert cache.next_position(branch) == 11
    cache.advance_branch(branch, 3)
    assert cache.next_position(branch) == 14


def test_lowest_slots_are_taken_first_so_that_batches_stay_together():
    cache = UnifiedKVCache(spec(branches=4))
    frame = cache.acquire_frame(1)
    slots = [cache.open_branch(frame) for _ in range(4)]
    cache.close_branch(slots[2])
    cache.close_branch(slots[0])
    assert [cache.open_branch(frame), cache.open_branch(frame)] == [0, 2]


def test_peak_is_the_most_that_was_in_use():
    cache = UnifiedKVCache(spec())
    frame = cache.acquire_frame(1)
    cache.close_branch(cache.open_branch(frame))
    most = cache.spec.frame_slot_bytes() + cache.spec.branch_slot_bytes()
    assert (cache.peak_bytes, cache.used_bytes()) == (most, cache.spec.frame_slot_bytes())


def test_wiped_branch_holds_no_nan():
    cache = UnifiedKVCache(spec())
    frame = cache.acquire_frame(1)
    slots = [cache.open_branch(frame), cache.open_branch(frame)]
    cache.branch_k.fill_(math.nan)
    cache.branch_v.fill_(math.nan)
    cache.close_branch(slots[0], wipe=True)
    for pool in (cache.branch_k, cache.branch_v):
        assert pool[:, slots[0]].isfinite().all()
        assert pool[:, slots[1]].isnan().all()


DAMAGES = {
    'a reference too many': lambda c: setattr(c.frames[0], 'references', 4),
    'a reference too few': lambda c: setattr(c.frames[0], 'references', 2),
    'a lost frame slot': lambda c: c._free_frames.pop(),
    'a used frame slot in the free list': lambda c: c._free_frames.append(0),
    'a free frame slot twice': lambda c: c._free_frames.append(c._free_frames[0]),
    'a frame slot that is none': lambda c: c._free_frames.append(99),
    'a lost branch slot': lambda c: c._free_branches.pop(),
    'a used branch slot in the free list': lambda c: c._free_branches.append(1),
    'a free branch slot twice': lambda c: c._free_branches.append(c._free_branches[0]),
    'a branch that lost its frame': lambda c: setattr(c.branches[0], 'frame', None),
    'a branch on another frame': lambda c: setattr(c.branches[0], 'frame', 1),
    'a branch on no frame at all': lambda c: setattr(c.branches[0], 'frame', 7),
    'a branch longer than its slot': lambda c: setattr(c.branches[0], 'length', 6),
    'a free branch with tokens': lambda c: setattr(c.branches[3], 'length', 1),
    'a frame longer than its slot': lambda c: setattr(c.frames[0], 'length', 7),
    'a free frame with tokens': lambda c: setattr(c.frames[2], 'length', 1),
}


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES.keys())
def test_integrity_check_finds(damage):
    cache = UnifiedKVCache(spec(frames=4, branches=4))
    frame = cache.acquire_frame(1)
    cache.set_frame(frame, 4, 4)
    cache.open_branch(frame), cache.open_branch(frame)
    cache.check_integrity({frame: 1})
    damage(cache)
    with pytest.raises(CacheIntegrityError):
        cache.check_integrity({frame: 1})


def test_integrity_check_finds_a_pin_that_the_caller_does_not_know():
    cache = UnifiedKVCache(spec())
    frame = cache.acquire_frame(1)
    cache.check_integrity({frame: 1})
    for pinned in ({}, {frame: 2}, {1: 1, frame: 1}):
        with pytest.raises(CacheIntegrityError):
            cache.check_integrity(pinned)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(['acquire', 'release', 'open', 'close', 'advance']), st.integers(0, 99)),
                max_size=60))
def test_no_sequence_of_operations_loses_a_slot(operations):
    cache = UnifiedKVCache(spec(frames=3, branches=3))
    pins: dict[int, int] = {}
    branches: dict[int, int] = {}  # slot -> tokens
    for name, pick in operations:
        pinned = [slot for slot, count in pins.items() for _ in range(count)]
        if name == 'acquire' and cache.free_frames:
            slot = cache.acquire_frame(pick)
            assert slot not in pins and all(cache.branches[b].frame != slot for b in branches)
            pins[slot] = 1
        elif name == 'release' and pinned:
            slot = pinned[pick % len(pinned)]
            cache.release_frame(slot)
            pins[slot] -= 1
            pins = {slot: count for slot, count in pins.items() if count}
        elif name == 'open' and pinned and cache.free_branches:
            slot = cache.open_branch(pinned[pick % len(pinned)])
            assert slot not in branches and cache.branches[slot].length == 0
            branches[slot] = 0
        elif name == 'close' and branches:
            slot = sorted(branches)[pick % len(branches)]
            cache.close_branch(slot)
            del branches[slot]
        elif name == 'advance' and branches:
            slot = sorted(branches)[pick % len(branches)]
            tokens = min(pick % 3, cache.branch_room(slot))
            cache.advance_branch(slot, tokens)
            branches[slot] += tokens
        cache.check_integrity(pins)
        assert {slot: cache.branches[slot].length for slot in branches} == branches
        assert cache.free_branches == 3 - len(branches)
