"""What the adapters of the π0.5 family share: all that follows after the prefix is the network's own business."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.models.pi0_network import Pi0Network
from oxygen_ros.models.realtime_chunking import PreviousChunk


class Pi0Adapter:
    """The methods of `VLAModel` that read and extend a frame; prefixes and prompts are the families' own."""

    network: Pi0Network
    spec: ModelSpec

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int,
                previous: PreviousChunk | None = None) -> torch.Tensor:
        """Generate an action chunk, which continues the previous one if there is one; see `VLAModel.denoise`."""
        return self.network.expert.denoise(noise.to(self.spec.device), cache, frame, steps, previous).cpu()

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return the logits of the first token of a branch without a prompt: behind the last valid prefix token."""
        return self.network.prefix_logits(cache, frame)

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add tokens to branches; see `VLAModel.extend`."""
        return self.network.decoder.extend(cache, slots, tokens)
