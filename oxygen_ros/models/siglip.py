"""SigLIP vision tower (pre-norm ViT without pooling head) and the projector to the decoder's width."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.models.layers import Linear


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of the vision tower; `image` is the side of the square input in pixels."""

    image: int
    patch: int
    width: int
    layers: int
    heads: int
    mlp: int

    def __post_init__(self) -> None:
        if self.image % self.patch or self.width % self.heads:
            raise ValueError(f'image {self.image} must be a multiple of patch {self.patch}, '
                             f'width {self.width} of heads {self.heads}')

    @property
    def tokens(self) -> int:
        """Tokens per image."""
        return (self.image // self.patch) ** 2


class VisionLayer(nn.Module):
    """Self-attention and MLP, each behind a LayerNorm, with biases."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(config.width, eps=1e-6)
        self.qkv = Linear(config.width, 3 * config.width)
        self.out = Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width, eps=1e-6)
        self.fc1 = Linear(config.width, config.mlp)
        self.fc2 = Linear(config.mlp, config.width)

    def forward(self, x: torch.Tensor, images: int) -> torch.Tensor:
        """[images * tokens, width] -> the same."""
        qkv = self.qkv(self.norm1(x)).view(images, -1, 3, self.heads, x.shape[-1] // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = self.out.add_to(x, attended)
        return self.fc2.add_to(x, self.fc1.activated(self.norm2(x)))


class VisionTower(nn.Module):
    """All images of a frame in one batch -> tokens in the decoder's width."""

    def __init__(self, config: VisionConfig, out_width: int) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Conv2d(3, config.width, config.patch, config.patch)
        self.position_embedding = nn.Parameter(torch.zeros(config.tokens, config.width))
        self.layers = nn.ModuleList(VisionLayer(config) for _ in range(config.layers))
        self.post_norm = nn.LayerNorm(config.width, eps=1e-6)
        self.projector = Linear(config.width, out_width)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """
        Embed images.

        :param pixels: [images, 3, image, image] in [-1, 1].
        :returns: [images, tokens, out_width].
        """
        embedded = self.patch_embedding(pixels.to(self.patch_embedding.weight.dtype))
        x = embedded.flatten(2).transpose(1, 2) + self.position_embedding
        images = len(x)
        x = x.to(self.post_norm.weight.dtype).flatten(0, 1)  # the embeddings may be kept in float32
        for layer in self.layers:
            x = layer(x, images)
        return self.projector(self.post_norm(x)).unflatten(0, (images, -1))
