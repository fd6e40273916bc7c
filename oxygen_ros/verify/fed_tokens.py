"""Which tokens every branch of a run was fed, so that its logits can be compared with those of an expected text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.interface import VLAModel


class FedTokens:
    """Extends branches on behalf of a recorder and remembers their tokens from the first on."""

    def __init__(self) -> None:
        self._fed: dict[int, list[int]] = {}  # branch slot -> its tokens

    def extend(self, model: VLAModel, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]],
               ) -> tuple[torch.Tensor, list[tuple[int, list[int], torch.Tensor]]]:
        """Return the logits, and for every branch (frame slot, all its tokens so far, logits behind them)."""
        before = {slot: cache.branches[slot].length for slot in slots}
        logits = model.extend(cache, slots, tokens)
        rows = []
        for slot, new, values in zip(slots, tokens, logits):
            self._fed[slot] = [*(self._fed[slot] if before[slot] else []), *new]  # an empty branch is a new one
            rows.append((cache.branches[slot].frame, self._fed[slot], values))
        return logits, rows
