"""Work: bytes that have to be read and operations that have to be done for each stage of a frame, from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VisionSizes:
    """
    :param patches: tokens of a picture in the tower. :param pixels: numbers of a patch.
    :param outer: weights behind the layers (projector, mergers); each is used `outer_share` times per patch.
    """

    layers: int
    width: int
    mlp: int
    patches: int
    pixels: int
    outer: int
    outer_share: float = 1.0


@dataclass(frozen=True)
class DecoderSizes:
    """:param mlp_matrices: 3 with a gate, else 2."""

    layers: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    mlp_matrices: int = 3

    @property
    def layer_weights(self) -> int:
        """Weights of a layer."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + self.mlp_matrices * self.width * self.mlp

    @property
    def kv_numbers(self) -> int:
        """Numbers of K and V per token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class ActionSizes:
    """
    The action head.

    :param step_weights: that each flow step uses, for each token of the chunk. :param tokens: of the chunk.
    :param frame_weights: that are used once per frame, for each token of the prefix.
    :param attention: numbers of K that a query of a token meets per token it sees (layers x heads x head_dim).
    :param kv_numbers: of K and V that a step reads, per token of the prefix. :param fixed_weights: in memory, and used
        only before the first frame.
    """

    step_weights: int
    tokens: int
    attention: int
    kv_numbers: int
    steps: int
    frame_weights: int = 0
    fixed_weights: int = 0


@dataclass(frozen=True)
class ModelSizes:
    """
    Sizes of a model and of its usual frame.

    :param prompt: tokens of the prompt besides pictures. :param image_tokens: of a picture in the decoder.
    """

    name: str
    vision: VisionSizes
    decoder: DecoderSizes
    action: ActionSizes
    cameras: int
    image_tokens: int
    prompt: int
    source: str

    @property
    def prefix(self) -> int:
        """Tokens of the prefix."""
        return self.cameras * self.image_tokens + self.prompt

    @property
    def weights(self) -> int:
        """All weights in memory. (Norms and biases, less than a thousandth, are left out.)"""
        vision, decoder, action = self.vision, self.decoder, self.action
        tower = vision.layers * (4 * vision.width**2 + 2 * vision.width * vision.mlp) + vision.pixels * vision.width
        return (tower + vision.outer + decoder.layers * decoder.layer_weights + decoder.vocabulary * decoder.width
                + action.step_weights + action.frame_weights + action.fixed_weights)


@dataclass(frozen=True)
class Work:
    """
    Work of a stage.

    :param bytes: that have to come from memory at least: weights once, K and V once. :param flops: operations,
        a multiplication and an addition are two.
    """

    bytes: float
    flops: float

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)

    def __mul__(self, times: float) -> Work:
        return Work(times * self.bytes, times * self.flops)

    def seconds(self, flops: float, bandwidth: float) -> float:
        """Return the least time: neither bytes nor operations can be quicker than the device."""
        return max(self.bytes / bandwidth, self.flops / flops)


def vision_work(model: ModelSizes, cameras: int, size: int) -> Work:
    """Return the work of the vision tower, all pictures in one batch. :param size: bytes of a number."""
    v = model.vision
    if not cameras:
        return Work(0, 0)
    layer = 4 * v.width**2 + 2 * v.width * v.mlp
    tokens = cameras * v.patches
    weights = v.layers * layer + v.pixels * v.width + v.outer
    flops = 2 * tokens * (v.layers * layer + v.pixels * v.width + v.outer_share * v.outer)
    attention = 4 * tokens * v.patches * v.width * v.layers
    return Work(weights * size, flops + attention)


def prefill_work(model: ModelSizes, prefix: int, size: int) -> Work:
    """Return the work of the decoder on a prefix, vision not included. Its last layer gives K and V only."""
    d = model.decoder
    kv = 2 * d.width * d.kv_heads * d.head_dim
    used = (d.layers - 1) * d.layer_weights + kv
    attention = 4 * prefix * prefix * d.heads * d.head_dim * (d.layers - 1)
    return Work((used + prefix * d.kv_numbers) * size, 2 * prefix * used + attention)


def denoise_work(model: ModelSizes, prefix: int, steps: int, size: int) -> Work:
    """Return the work of a chunk of actions."""
    a = model.action
    once = Work(a.frame_weights * size, 2 * prefix * a.frame_weights)
    step = Work((a.step_weights + prefix * a.kv_numbers) * size,
                2 * a.tokens * a.step_weights + 4 * a.tokens * (prefix + a.tokens) * a.attention)
    return once + step * steps


def decode_work(model: ModelSizes, prefix: int, batch: float, frames: float, suffix: float, size: int) -> Work:
    """
    Return the work of a decode step.

    :param batch: texts. :param frames: on which they stand; the K and V of each is read once.
    :param suffix: tokens that each text has already, on average.
    """
    d = model.decoder
    weights = d.layers * d.layer_weights + d.vocabulary * d.width
    kv = (frames * prefix + batch * suffix) * d.kv_numbers
    attention = 4 * batch * (prefix + suffix) * d.heads * d.head_dim * d.layers
    return Work((weights + kv) * size, 2 * batch * weights + attention)
