"""
The unified KV cache: one frame pool and one branch pool, allocated once.

A *frame* is the KV of one prefilled observation, shared by all tasks. A *branch* is what one text request adds behind a
frame. A batch is a list of slot numbers: no cache is ever concatenated, cloned or re-stacked, and slots keep their
addresses for life.

Threads: everything here belongs to the thread that owns the engine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch

from oxygen_ros.errors import ConfigError

MIB = 1 << 20


class CacheFullError(RuntimeError):
    """No free slot. The scheduler plans so that this is never raised; seeing it means a fault in the plan."""


class CacheIntegrityError(RuntimeError):
    """A slot is lost, or shared by mistake."""


@dataclass(frozen=True)
class ExtraSpec:
    """A tensor that a model keeps with each frame besides K and V, for example the hidden state of the last token."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class CacheSpec:
    """
    Sizes of the cache.

    :param layers: decoder layers that have K and V.
    :param kv_heads: key/value heads per layer.
    :param head_dim: numbers per key.
    :param frame_tokens: most prefix tokens of one frame.
    :param scratch_tokens: tokens behind the prefix of a frame slot in which the action head may write its own keys and
        values while it denoises (its horizon). They are not part of the frame.
    :param branch_tokens: most tokens of one branch (task prompt and generated text).
    :param frames: slots of the frame pool. `branches + 2` never has to end a text early: one frame per branch, the
        newest, and the one being prefilled.
    :param branches: slots of the branch pool, the largest decode batch.
    :param extras: tensors kept with each frame, by name.
    """

    layers: int
    kv_heads: int
    head_dim: int
    frame_tokens: int
    scratch_tokens: int
    branch_tokens: int
    frames: int
    branches: int
    dtype: torch.dtype = torch.float32
    device: str = 'cpu'
    extras: Mapping[str, ExtraSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ('layers', 'kv_heads', 'head_dim', 'frame_tokens', 'branch_tokens', 'branches'):
            if getattr(self, name) < 1:
                raise ConfigError(f'KV cache: {name} is {getattr(self, name)}, must be at least 1')
        if self.frames < 2:
            raise ConfigError(f'KV cache: frames is {self.frames}, must be at least 2 (the newest frame stays while '
                              'the next is prefilled)')

    def frame_slot_bytes(self) -> int:
        """Return the bytes of one frame slot with its extras."""
        tokens = self.frame_tokens + self.scratch_tokens
        extras = sum(math.prod(e.shape) * e.dtype.itemsize for e in self.extras.values())
        return 2 * self.layers * self.kv_heads * tokens * self.head_dim * self.dtype.itemsize + extras

    def branch_slot_bytes(self) -> int:
        """Return the bytes of one branch slot."""
        return 2 * self.layers * self.kv_heads * self.branch_tokens * self.head_dim * self.dtype.itemsize

    def total_bytes(self) -> int:
        """Return the bytes of both pools."""
        return self.frames * self.frame_slot_bytes() + self.branches * self.branch_slot_bytes()


@dataclass
class FrameState:
    """
    Bookkeeping of one frame slot. `references` counts the pin of the newest frame and every branch on it; `wipe` has
    it zeroed when the last one goes.
    """

    key: Hashable = None
    length: int = 0
    next_position: int = 0
    references: int = 0
    wipe: bool = False


@dataclass
class BranchState:
    """Bookkeeping of one branch slot; `frame` is the slot of its frame, or None when the slot is free."""

    frame: int | None = None
    length: int = 0


class UnifiedKVCache:
    """
    K and V of all frames and branches.

    `frame_kv`: [layers, 2, frames, kv_heads, frame_tokens + scratch_tokens, head_dim], keys, then values.
    `branch_kv`: [layers, 2, branches, kv_heads, branch_tokens, head_dim].
    `frame_k`, `frame_v`, `branch_k`, `branch_v`: views of these without the second axis.
    `extras[name]`: [frames, ...].

    :param budget_mib: refuse, before allocating, when both pools need more than this many MiB; None is no limit.
    :raises ConfigError: over the budget; the text says what would fit. Or the device has not so much memory.
    """

    def __init__(self, spec: CacheSpec, budget_mib: float | None = None) -> None:
        self.spec = spec
        require_budget(spec, budget_mib)
        self.budget_bytes = spec.total_bytes() if budget_mib is None else int(budget_mib * MIB)
        kind = {'dtype': spec.dtype, 'device': spec.device}
        frame_shape = (spec.layers, 2, spec.frames, spec.kv_heads, spec.frame_tokens + spec.scratch_tokens,
                       spec.head_dim)
        branch_shape = (spec.layers, 2, spec.branches, spec.kv_heads, spec.branch_tokens, spec.head_dim)
        try:
            # Zeros, not empty: an unwritten NaN times a masked weight of zero would still be NaN.
            self.frame_kv, self.branch_kv = torch.zeros(frame_shape, **kind), torch.zeros(branch_shape, **kind)
            self.extras = {name: torch.zeros((spec.frames, *extra.shape), dtype=extra.dtype, device=spec.device)
                           for name, extra in spec.extras.items()}
        except RuntimeError as error:
            raise ConfigError(f'KV cache of {spec.total_bytes() / MIB:.1f} MiB does not fit into the memory of device '
                              f'{spec.device}: lower kv_budget_mib, max_branches or branch_tokens') from error
        self.frame_k, self.frame_v = self.frame_kv.unbind(1)
        self.branch_k, self.branch_v = self.branch_kv.unbind(1)
        self.frames = [FrameState() for _ in range(spec.frames)]
        self.branches = [BranchState() for _ in range(spec.branches)]
        # Lowest slot first: running branches gather at the front, where a batch is a view of the pool.
        self._free_frames = list(range(spec.frames))
        self._free_branches = list(range(spec.branches))
        self.peak_bytes = 0

    # -- frames ------------------------------------------------------------------------------------------------------

    def acquire_frame(self, key: Hashable) -> int:
        """Take a free frame slot, with one reference that belongs to the caller, and return its number."""
        if not self._free_frames:
            raise CacheFullError(f'all {self.spec.frames} frame slots are in use')
        slot = heapq.heappop(self._free_frames)
        self.frames[slot] = FrameState(key=key, references=1)
        self._note_peak()
        return slot

    def set_frame(self, slot: int, length: int, next_position: int) -> None:
        """
        Say what prefill has written into a slot.

        :param length: prefix tokens in the slot.
        :param next_position: position (for rotary embedding) of the first token behind the prefix.
        """
        state = self._used_frame(slot)
        if not 0 < length <= self.spec.frame_tokens:
            raise ValueError(f'prefix of {length} tokens does not fit frame slots of {self.spec.frame_tokens} tokens')
        state.length, state.next_position = length, next_position

    def retain_frame(self, slot: int) -> None:
        """Add a reference to a frame in use."""
        self._used_frame(slot).references += 1

    def release_frame(self, slot: int, wipe: bool = False) -> None:
        """
        Drop a reference; the slot is free again with the last one.

        :param wipe: zero its memory then, because it may hold NaN: behind a mask a later frame would still see it.
        """
        state = self._used_frame(slot)
        state.references -= 1
        state.wipe |= wipe
        if state.references == 0:
            if state.wipe:
                self.frame_kv[:, :, slot] = 0
                for extra in self.extras.values():
                    extra[slot] = 0
            self.frames[slot] = FrameState()
            heapq.heappush(self._free_frames, slot)

    # -- branches ----------------------------------------------------------------------------------------------------

    def open_branch(self, frame: int) -> int:
        """Take a free branch slot behind a frame and return its number. The branch holds a reference to the frame."""
        if not self._free_branches:
            raise CacheFullError(f'all {self.spec.branches} branch slots are in use')
        self.retain_frame(frame)
        slot = heapq.heappop(self._free_branches)
        self.branches[slot] = BranchState(frame=frame)
        self._note_peak()
        return slot

    def advance_branch(self, slot: int, tokens: int) -> None:
        """Say that `tokens` more tokens of a branch have been written."""
        state = self._used_branch(slot)
        if state.length + tokens > self.spec.branch_tokens:
            raise ValueError(f'branch of {state.length} + {tokens} tokens does not fit slots of '
                             f'{self.spec.branch_tokens} tokens')
        state.length += tokens

    def close_branch(self, slot: int, wipe: bool = False) -> None:
        """
        Free a branch slot at once and drop its reference to the frame.

        :param wipe: zero its memory, because it may hold NaN: behind a mask a later branch would still see it.
        """
        frame = self._used_branch(slot).frame
        if wipe:
            self.branch_kv[:, :, slot] = 0
        self.branches[slot] = BranchState()
        heapq.heappush(self._free_branches, slot)
        self.release_frame(frame)

    def branch_room(self, slot: int) -> int:
        """Return how many tokens still fit into a branch."""
        return self.spec.branch_tokens - self._used_branch(slot).length

    def next_position(self, branch: int) -> int:
        """Return the position (for rotary embedding) of the next token of a branch."""
        state = self._used_branch(branch)
        return self.frames[state.frame].next_position + state.length

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def free_frames(self) -> int:
        """Number of free frame slots."""
        return len(self._free_frames)

    @property
    def free_branches(self) -> int:
        """Number of free branch slots."""
        return len(self._free_branches)

    def used_bytes(self) -> int:
        """Return the bytes of all slots in use."""
        frames = self.spec.frames - self.free_frames
        branches = self.spec.branches - self.free_branches
        return frames * self.spec.frame_slot_bytes() + branches * self.spec.branch_slot_bytes()

    def check_integrity(self, pinned: Mapping[int, int]) -> None:
        """
        Prove that no slot is lost or shared by mistake.

        :param pinned: frame slot -> references that the caller itself holds (not through branches).
        :raises CacheIntegrityError: names the slot and the difference.
        """
        for name, free, slots in (('frame', self._free_frames, self.frames),
                                  ('branch', self._free_branches, self.branches)):
            if len(free) != len(set(free)) or not set(free) <= set(range(len(slots))):
                raise CacheIntegrityError(f'the free list of {name} slots repeats one or names an unknown one: '
                                          f'{sorted(free)}')
        expected = dict(pinned)
        for number, branch in enumerate(self.branches):
            if (branch.frame is None) != (number in self._free_branches):
                raise CacheIntegrityError(f'branch slot {number}: state {branch} disagrees with the free list')
            if not 0 <= branch.length <= (0 if branch.frame is None else self.spec.branch_tokens):
                raise CacheIntegrityError(f'branch slot {number}: length {branch.length} is out of range')
            if branch.frame is None:
                continue
            if branch.frame not in range(len(self.frames)):
                raise CacheIntegrityError(f'branch slot {number}: there is no frame slot {branch.frame}')
            expected[branch.frame] = expected.get(branch.frame, 0) + 1
        for number, frame in enumerate(self.frames):
            if frame.references != expected.get(number, 0):
                raise CacheIntegrityError(f'frame slot {number}: {frame.references} references counted, '
                                          f'{expected.get(number, 0)} expected')
            if (frame.references == 0) != (number in self._free_frames):
                raise CacheIntegrityError(f'frame slot {number}: {frame.references} references disagree with the '
                                          'free list')
            if not 0 <= frame.length <= (self.spec.frame_tokens if frame.references else 0):
                raise CacheIntegrityError(f'frame slot {number}: length {frame.length} is out of range')

    def _used_frame(self, slot: int) -> FrameState:
        if self.frames[slot].references < 1:
            raise CacheIntegrityError(f'frame slot {slot} is free and must not be used')
        return self.frames[slot]

    def _used_branch(self, slot: int) -> BranchState:
        if self.branches[slot].frame is None:
            raise CacheIntegrityError(f'branch slot {slot} is free and must not be used')
        return self.branches[slot]

    def _note_peak(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.used_bytes())


def require_budget(spec: CacheSpec, budget_mib: float | None) -> None:
    """
    Refuse a cache that needs more than so many MiB; None is no limit.

    :raises ConfigError: says what would fit.
    """
    if budget_mib is not None and spec.total_bytes() > int(budget_mib * MIB):
        raise ConfigError(_over_budget(spec, int(budget_mib * MIB)))


def _over_budget(spec: CacheSpec, budget_bytes: int) -> str:
    frame, branch = spec.frame_slot_bytes(), spec.branch_slot_bytes()
    room = budget_bytes - 2 * frame
    if room >= frame + branch:
        branches = room // (frame + branch)
        remedy = f'set max_branches to at most {branches} with max_frames {branches + 2}, or '
    elif room >= branch:
        remedy = f'set max_branches to at most {room // branch} with max_frames 2, or '
    else:
        remedy = 'even two frames and one branch do not fit, '
    return (f'KV cache of {spec.frames} frames and {spec.branches} branches needs {spec.total_bytes() / MIB:.1f} MiB, '
            f'budget is {budget_bytes / MIB:.1f} MiB: {remedy}raise kv_budget_mib to '
            f'{math.ceil(spec.total_bytes() / MIB)}')
