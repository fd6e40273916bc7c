"""
The training forward: everything that one picture teaches, in one pass over the parameters of a `Pi0Network`.

The engine computes a frame once and lets several branches and a chunk stand on it. Training packs the same way, and
goes one step further: with the causal prefix (`prefix_mask: causal_language`) image tokens see image tokens only, so
that several instructions share the pictures of a frame. Per frame there are K *rows*, each of them

    [ prefix text | branch | branch | ... | padding ]

All tokens of a row see the image tokens of their frame; a prefix token what is before it, a branch token the prefix
text and what is before it in its own branch. Behind each row S noisy samples of the action chunk are denoised by one
step; they see the images, the prefix text of the row, and their own sample.

It must give what the engine gives, up to rounding: `test_packed_training.py` compares the two. The attention is written
out as matrix products for one key head: heads are rows of the query, no key is copied, and the backward pass of masked
scaled_dot_product_attention in bfloat16 is slow on CPUs (measured: 2.7 times slower in all).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.models.layers import RMS_EPSILON, rotate
from oxygen_ros.models.pi0_network import Pi0Network

PADDING = -1  # segment of a token that is no token
PREFIX = 0  # segment of the prefix text; branches count from 1
NO_TARGET = -100  # what cross_entropy ignores
HIDDEN = -30000.0  # added to the scores of what is not seen; infinity became NaN in compiled layers


@dataclass(frozen=True)
class PackedBatch:
    """
    B frames with K rows of R tokens, and S noise samples for each row.

    :param pixels: uint8 [B, cameras, side, side, 3].
    :param present: bool [B, cameras]; a camera that is not present is as if it had been left out.
    :param tokens: int64 [B, K, R]. :param segments: int64 [B, K, R], PREFIX first, then branches, then PADDING.
    :param places: int64 [B, K, R], index of each token within its segment.
    :param targets: int64 [B, K, R], the token that shall follow, or NO_TARGET.
    :param weights: float [B, K, R], of the targets in the loss.
    :param actions: float [B, K, horizon, action_dim], normalised. :param action_weights: float [B, K].
    :param noise: float [B, K, S, horizon, action_dim]. :param times: float [B, K, S], flow times.
    """

    pixels: torch.Tensor
    present: torch.Tensor
    tokens: torch.Tensor
    segments: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    actions: torch.Tensor
    action_weights: torch.Tensor
    noise: torch.Tensor
    times: torch.Tensor

    def __post_init__(self) -> None:
        frames, rows, _ = self.tokens.shape
        for field in fields(self):
            shape = getattr(self, field.name).shape
            if shape[0] != frames or (field.name not in ('pixels', 'present') and shape[1] != rows):
                raise ValueError(f'{field.name} has the shape {list(shape)} in a batch of {frames} x {rows} rows')


@dataclass(frozen=True)
class PackedOutput:
    """
    :param hidden: [B, K, R, width], row tokens before the final norm.
    :param image: [B, cameras * tokens, width], what the vision tower gives.
    :param velocity: float32 [B, K, S, horizon, action_dim].
    """

    hidden: torch.Tensor
    image: torch.Tensor
    velocity: torch.Tensor


class PackedForward(nn.Module):
    """
    The forward pass of training over the parameters of a network.

    :param network: of one key head. Its parameters are used by name; how it computes itself does not matter here.
    :param compiled: let torch.compile fuse the layers.
    """

    def __init__(self, network: Pi0Network, compiled: bool = False) -> None:
        super().__init__()
        if network.config.decoder.kv_heads != 1:
            raise ValueError(f'training needs a network with one key head, not {network.config.decoder.kv_heads}')
        self.network = network
        wrap = (lambda function: torch.compile(function, dynamic=False)) if compiled else (lambda function: function)
        self._vision_layer, self._decoder_layer, self._expert_layer = map(
            wrap, (_vision_layer, _decoder_layer, _expert_layer))
        self._last_layer = wrap(_last_decoder_layer)

    def forward(self, batch: PackedBatch) -> PackedOutput:
        """Run vision tower, decoder and action expert on a batch."""
        network = self.network
        image = self.vision(batch.pixels)
        dtype = image.dtype
        _, rows, length = batch.tokens.shape
        config = network.config
        per_camera = config.vision.tokens
        shown = batch.present.repeat_interleave(per_camera, dim=1)  # [B, N]
        image_count = shown.sum(1)
        hidden_images = None if bool(batch.present.all()) else _bias(shown, dtype).unsqueeze(1)
        prefix = (batch.segments == PREFIX).sum(2)  # [B, K]
        ahead = torch.where(batch.segments > PREFIX, prefix[..., None], 0)
        positions = image_count[:, None, None] + ahead + batch.places
        cos, sin = network.decoder.cos[:, 0].to(dtype), network.decoder.sin[:, 0].to(dtype)
        image_positions = (shown.cumsum(1) - 1).clamp(min=0)
        image_turn = cos[image_positions].unsqueeze(2), sin[image_positions].unsqueeze(2)
        row_turn = cos[positions].unsqueeze(3), sin[positions].unsqueeze(3)
        on_image = shown[:, None, None].expand(-1, rows, length, -1)
        row_bias = _bias(torch.cat((on_image, _row_mask(batch.segments)), dim=-1).flatten(0, 1), dtype)
        # The expert looks at the prefix text alone, which is short: the rest of the rows is not even offered.
        longest = min(length, self.longest_prefix or length)
        prefix_bias = _bias(torch.cat((on_image[:, :, 0], batch.segments[..., :longest] == PREFIX), dim=-1)
                            .flatten(0, 1).unsqueeze(1), dtype)
        steps = torch.arange(config.horizon)
        chunk_positions = (image_count[:, None] + prefix)[:, :, None] + steps  # [B, K, horizon]
        chunk_turn = cos[chunk_positions][:, :, None, :, None], sin[chunk_positions][:, :, None, :, None]

        x_image, x_row = image, network.decoder.embedding(batch.tokens).to(dtype) * config.decoder.width ** 0.5
        mixed = torch.lerp(batch.actions.unsqueeze(2), batch.noise, batch.times[..., None, None])
        expert = network.expert
        h = expert.action_in(mixed).to(dtype)
        condition = self._condition(batch.times)
        heads, head_dim = config.decoder.heads, config.decoder.head_dim
        for number, (layer, action_layer) in enumerate(zip(network.decoder.layers, expert.layers)):
            weights = (layer.norm1, layer.qkv.weight, layer.out.weight, layer.norm2, layer.gate_up.weight,
                       layer.down.weight)
            run = self._decoder_layer if number < config.decoder.depth - 1 else self._last_layer
            x_image, x_row, keys = run(x_image, x_row, image_turn, row_turn, hidden_images, row_bias, weights, heads,
                                       head_dim)
            ki, vi, kr, vr = keys
            action_weights = (action_layer.modulation1.weight, action_layer.modulation1.bias, action_layer.qkv.weight,
                              action_layer.out.weight, action_layer.modulation2.weight, action_layer.modulation2.bias,
                              action_layer.gate_up.weight, action_layer.down.weight)
            h = self._expert_layer(h, condition, ki, vi, kr[:, :, :longest], vr[:, :, :longest], prefix_bias,
                                   chunk_turn, action_weights, heads, head_dim)
        scale, shift, _ = expert.norm_modulation(condition).float()[:, :, :, None].chunk(3, dim=-1)
        h = _normed(h) * (1 + scale) + shift
        return PackedOutput(x_row, image, expert.action_out(h.to(dtype)).float())

    longest_prefix: int | None = None  # tokens that a prefix text has at most; the batches see to it

    def vision(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 [B, cameras, side, side, 3] -> image tokens [B, cameras * tokens, width]."""
        tower = self.network.vision
        frames, cameras = pixels.shape[:2]
        patch = tower.config.patch
        x = pixels.flatten(0, 1).float() / 127.5 - 1
        # A convolution whose stride is its size is one matrix product on patches cut out.
        side = x.shape[1] // patch
        x = x.view(-1, side, patch, side, patch, 3).permute(0, 1, 3, 5, 2, 4).reshape(len(x), side * side, -1)
        x = F.linear(x, tower.patch_embedding.weight.flatten(1), tower.patch_embedding.bias) + tower.position_embedding
        x = x.to(_working_dtype(x))
        for layer in tower.layers:
            weights = (layer.norm1.weight, layer.norm1.bias, layer.qkv.weight, layer.qkv.bias, layer.out.weight,
                       layer.out.bias, layer.norm2.weight, layer.norm2.bias, layer.fc1.weight, layer.fc1.bias,
                       layer.fc2.weight, layer.fc2.bias)
            x = self._vision_layer(x, weights, tower.config.heads)
        return tower.projector(tower.post_norm(x)).view(frames, -1, tower.projector.out_features)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [..., vocabulary] of hidden states [..., width]."""
        decoder = self.network.decoder
        return F.linear(_normed(hidden) * decoder.norm, decoder.embedding.weight).float()

    def _condition(self, times: torch.Tensor) -> torch.Tensor:
        """Flow times [B, K, S] -> their condition [B, K, S, width]; as `layers.time_embedding`, for many times."""
        expert = self.network.expert
        count = expert.config.width // 2
        exponent = torch.arange(count, dtype=torch.float64) / max(count - 1, 1)
        angles = 2 * math.pi * times.double()[..., None] / (4e-3 * (4.0 / 4e-3) ** exponent)
        embedded = torch.cat((angles.sin(), angles.cos()), dim=-1).float()
        return F.silu(expert.time_out(F.silu(expert.time_in(embedded))))


def _working_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype('cpu') if torch.is_autocast_enabled('cpu') else x.dtype


def _bias(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what is added to scores: 0 where something is seen, elsewhere so little that its share is exactly 0."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, HIDDEN)


def _row_mask(segments: torch.Tensor) -> torch.Tensor:
    """Return which token of a row sees which, bool [B, K, R, R]."""
    length = segments.shape[2]
    before = torch.ones(length, length, dtype=torch.bool).tril_()
    mine, its = segments.unsqueeze(3), segments.unsqueeze(2)
    return before & ((its == PREFIX) | (its == mine))


def _normed(x: torch.Tensor) -> torch.Tensor:
    """Return x over its root mean square, float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPSILON)


class _RmsNorm(torch.autograd.Function):
    """x over its root mean square, times scale, in the dtype of x; written out, since autograd keeps every step."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + RMS_EPSILON)
        ctx.save_for_backward(x, factor, scale)
        return (wide * factor).mul_(scale).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, factor, scale = ctx.saved_tensors
        normed = x.float() * factor
        gradient = gradient.float()
        product = gradient * normed
        of_scale = product.flatten(0, -2).sum(0)
        share = torch.matmul(product, scale.unsqueeze(-1)) / x.shape[-1]  # mean(gradient * scale * normed)
        return (gradient * scale).addcmul_(normed, share, value=-1).mul_(factor).to(x.dtype), of_scale


class _Rotate(torch.autograd.Function):
    """`layers.rotate`; the gradient is turned back."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(gradient, cos, -sin), None, None


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """
    Attend with one key head; q is scaled already.

    :param q: [batch, heads, rows, head_dim]. :param k, v: [batch, tokens, head_dim].
    :param bias: added to the scores, [batch, 1 or rows, tokens], or None.
    :returns: [batch, rows, heads * head_dim].
    """
    batch, heads, rows, head_dim = q.shape
    scores = torch.bmm(q.reshape(batch, heads * rows, head_dim), k.transpose(1, 2))
    if bias is not None:
        scores.view(batch, heads, rows, -1).add_(bias.unsqueeze(1))
    attended = torch.bmm(scores.softmax(-1), v)
    return attended.view(batch, heads, rows, head_dim).transpose(1, 2).flatten(2)


def _vision_layer(x: torch.Tensor, weights: tuple, heads: int) -> torch.Tensor:
    n1w, n1b, qkv_w, qkv_b, out_w, out_b, n2w, n2b, fc1_w, fc1_b, fc2_w, fc2_b = weights
    images, tokens, width = x.shape
    qkv = F.linear(F.layer_norm(x, (width,), n1w, n1b, 1e-6), qkv_w, qkv_b)
    q, k, v = qkv.view(images, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
    scores = torch.matmul(q * (width // heads) ** -0.5, k.transpose(-1, -2))
    attended = torch.matmul(scores.softmax(-1), v).transpose(1, 2).reshape(images, tokens, width)
    x = x + F.linear(attended, out_w, out_b)
    hidden = F.linear(F.layer_norm(x, (width,), n2w, n2b, 1e-6), fc1_w, fc1_b)
    return x + F.linear(F.gelu(hidden, approximate='tanh'), fc2_w, fc2_b)


def _decoder_layer(x_image, x_row, image_turn, row_turn, hidden_images, row_bias, weights, heads, head_dim,
                   last: bool = False):
    """
    One decoder layer for image tokens [B, N, width] and rows [B, K, R, width].

    :param hidden_images: [B, 1, N] or None. :param row_bias: [B * K, R, N + R].
    :returns: both, and the keys and values of both: [B, N, head_dim] and [B, K, R, head_dim].
    """
    qi, ki, vi = _project(x_image, image_turn, weights[0], weights[1], heads, head_dim)
    qr, kr, vr = _project(x_row, row_turn, weights[0], weights[1], heads, head_dim)
    rows = x_row.shape[1]
    if not last:
        x_image = _finish(x_image, _attend(qi.transpose(1, 2), ki, vi, hidden_images), weights)
    keys, values = (torch.cat((of_image.unsqueeze(1).expand(-1, rows, -1, -1), of_row), dim=2).flatten(0, 1)
                    for of_image, of_row in ((ki, kr), (vi, vr)))
    attended = _attend(qr.flatten(0, 1).transpose(1, 2), keys, values, row_bias)
    x_row = _finish(x_row, attended.view(*x_row.shape[:3], -1), weights)
    return x_image, x_row, (ki, vi, kr, vr)


def _last_decoder_layer(*arguments):
    """As `_decoder_layer`; nothing reads what the last layer makes of image tokens."""
    return _decoder_layer(*arguments, last=True)


def _project(x, turn, norm, qkv_w, heads, head_dim):
    """[..., width] -> scaled q [..., heads, head_dim], k and v [..., head_dim]."""
    qkv = F.linear(_RmsNorm.apply(x, norm), qkv_w).unflatten(-1, (heads + 2, head_dim))
    qk, v = qkv.split((heads + 1, 1), dim=-2)
    q, k = _Rotate.apply(qk, *turn).split((heads, 1), dim=-2)
    return q * head_dim ** -0.5, k.squeeze(-2), v.squeeze(-2)


def _finish(x, attended, weights):
    _, _, out_w, norm2, gate_up_w, down_w = weights
    x = x + F.linear(attended, out_w)
    gate, up = F.linear(_RmsNorm.apply(x, norm2), gate_up_w).chunk(2, dim=-1)
    return x + F.linear(F.gelu(gate, approximate='tanh') * up, down_w)


def _expert_layer(h, condition, ki, vi, kr, vr, prefix_bias, turn, weights, heads, head_dim):
    """
    One layer of the action expert for h [B, K, S, horizon, width] behind images and prefix texts.

    :param kr, vr: of the prefix texts alone, [B, K, P, head_dim]. :param prefix_bias: [B * K, 1, N + P].
    """
    m1w, m1b, qkv_w, out_w, m2w, m2b, gate_up_w, down_w = weights
    frames, rows, samples, horizon, _ = h.shape
    scale, shift, gate = F.linear(condition, m1w, m1b).float()[:, :, :, None].chunk(3, dim=-1)
    normed = (_normed(h) * (1 + scale) + shift).to(h.dtype)
    qk, v = F.linear(normed, qkv_w).unflatten(-1, (heads + 2, head_dim)).split((heads + 1, 1), dim=-2)
    q, k = _Rotate.apply(qk, *turn).split((heads, 1), dim=-2)
    q = (q * head_dim ** -0.5).transpose(3, 4)  # [B, K, S, heads, horizon, head_dim]
    keys, values = (torch.cat((of_image.unsqueeze(1).expand(-1, rows, -1, -1), of_text), dim=2).flatten(0, 1)
                    for of_image, of_text in ((ki, kr), (vi, vr)))
    flat, each = frames * rows * samples, heads * horizon
    on_prefix = torch.bmm(q.reshape(frames * rows, samples * each, head_dim), keys.transpose(1, 2)).add_(prefix_bias)
    on_own = torch.bmm(q.reshape(flat, each, head_dim), k.reshape(flat, horizon, head_dim).transpose(1, 2))
    tokens = keys.shape[1]
    shares = torch.cat((on_prefix.view(flat, each, tokens), on_own), dim=-1).softmax(-1)
    of_prefix, of_own = shares.split((tokens, horizon), dim=-1)
    attended = torch.bmm(of_prefix.reshape(frames * rows, samples * each, tokens), values).view(q.shape)
    attended = attended + torch.bmm(of_own, v.reshape(flat, horizon, head_dim)).view(q.shape)
    h = h + F.linear(attended.transpose(3, 4).flatten(4), out_w) * gate.to(h.dtype)
    scale, shift, gate = F.linear(condition, m2w, m2b).float()[:, :, :, None].chunk(3, dim=-1)
    normed = (_normed(h) * (1 + scale) + shift).to(h.dtype)
    gated, up = F.linear(normed, gate_up_w).chunk(2, dim=-1)
    return h + F.linear(F.gelu(gated, approximate='tanh') * up, down_w) * gate.to(h.dtype)
