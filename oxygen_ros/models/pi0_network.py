"""The network of the π0.5 family: vision tower, decoder and action expert on one KV cache. Sizes are data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from oxygen_ros.engine.kv_cache import ExtraSpec, UnifiedKVCache
from oxygen_ros.models.action_expert import ActionExpert
from oxygen_ros.models.gemma import GemmaConfig, GemmaDecoder
from oxygen_ros.models.siglip import VisionConfig, VisionTower

LAST_HIDDEN = 'last_hidden'  # name of the frame extra from which the first token without a prompt is read


@dataclass(frozen=True)
class Pi0Config:
    """Sizes of a π0.5-like network; `positions` bounds prefix + branch (or chunk) tokens."""

    vision: VisionConfig
    decoder: GemmaConfig
    expert: GemmaConfig
    vocabulary: int
    horizon: int
    action_dim: int
    positions: int

    def __post_init__(self) -> None:
        for name in ('depth', 'heads', 'kv_heads', 'head_dim'):
            decoder, expert = getattr(self.decoder, name), getattr(self.expert, name)
            if decoder != expert:
                raise ValueError(f'{name} of the decoder is {decoder}, of the action expert {expert}: they share the '
                                 'cache and must be equal')

    def frame_extras(self, dtype: torch.dtype) -> dict[str, ExtraSpec]:
        """Return what is kept with a frame besides K and V."""
        return {LAST_HIDDEN: ExtraSpec((self.decoder.width,), dtype)}


class Pi0Network(nn.Module):
    """Prefill, denoise and extend on the unified KV cache."""

    def __init__(self, config: Pi0Config) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionTower(config.vision, config.decoder.width)
        self.decoder = GemmaDecoder(config.decoder, config.vocabulary, config.positions)
        self.expert = ActionExpert(config.expert, config.horizon, config.action_dim, config.positions)

    def prefill(self, pixels: torch.Tensor, tokens: torch.Tensor, cache: UnifiedKVCache, frame: int,
                causal_text: bool = False) -> None:
        """
        Prefill images and text.

        Masked cameras and padding are simply not given: leaving them out is exact, since nothing sees them and they
        consume no position.

        :param pixels: [cameras, 3, image, image] in [-1, 1]; tokens: int64 [text tokens].
        :param causal_text: images see images only, and a text token what is before it (OxyGen's form); else all see
            each other (as openpi trains).
        """
        x, mask = self.prefix(pixels, tokens, causal_text)
        last = self.decoder.prefill(x, cache, frame, mask)
        cache.extras[LAST_HIDDEN][frame].copy_(last)
        cache.set_frame(frame, x.shape[0], x.shape[0])

    def prefix(self, pixels: torch.Tensor, tokens: torch.Tensor, causal_text: bool = False,
               ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the embedded prefix [tokens, width] and its mask for the decoder; parameters as for `prefill`."""
        embedded = self.decoder.embed(tokens)
        images = self.vision(pixels).flatten(0, 1) if len(pixels) else embedded[:0]
        x = torch.cat((images, embedded))
        if not causal_text:
            return x, None
        last_seen = torch.arange(len(x), device=x.device).clamp(min=len(images) - 1)
        hidden = torch.arange(len(x), device=x.device) > last_seen[:, None]
        return x, torch.zeros_like(hidden, dtype=x.dtype).masked_fill_(hidden, float('-inf')).unsqueeze(0)

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return logits float32 [vocabulary] behind the last valid prefix token."""
        return self.decoder.logits(cache.extras[LAST_HIDDEN][frame])
