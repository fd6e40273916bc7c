"""Layers that the π0 family is made of. Formulas: Gemma (RMSNorm with 1 + w, half-split RoPE), openpi's adaRMS."""

from __future__ import annotations

import enum
import math

import torch
import torch.nn.functional as F
from torch import nn

RMS_EPSILON = 1e-6
# gelu in its tanh form is x * sigmoid(GELU_X * x + GELU_X3 * x^3).
GELU_X = 2 * math.sqrt(2 / math.pi)
GELU_X3 = 0.044715 * GELU_X
MANY = 1 << 15  # numbers


class Activation(enum.Enum):
    """Nonlinearity of an MLP; the values are oneDNN's names."""

    GELU = 'gelu'    # in its tanh form
    SILU = 'swish'


class Linear(nn.Linear):
    """A linear layer that models need with more than its plain output; `packing.pack` may put a faster one in place."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return residual + output, both [rows, out_features]."""
        if self.bias is None:
            return torch.addmm(residual, x, self.weight.t())
        return residual + self(x)

    def activated(self, x: torch.Tensor) -> torch.Tensor:
        """Return gelu (tanh form) of the output."""
        return gelu(self(x))


class GatedLinear(nn.Linear):
    """Gate and up projection of an MLP, fused: the first half of the rows is the gate."""

    def __init__(self, width: int, inner: int, activation: Activation) -> None:
        super().__init__(width, 2 * inner, bias=False)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] -> activation(gate) * up [..., inner]."""
        return self.activate(F.linear(x, self.weight))

    def activate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return activation(gate) * up of both in one, [..., 2 * inner]; a compiled one may be put in place."""
        return gated(*gate_up.chunk(2, dim=-1), self.activation)


def gated(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return activation(gate) * up, in their dtype."""
    return (F.silu(gate) if activation is Activation.SILU else gelu(gate)).mul_(up)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return gelu in its tanh form, in the dtype of x."""
    few = not torch.compiler.is_compiling() and x.numel() < MANY
    if x.dtype is not torch.float32 or x.device.type != 'cpu' or few:
        return F.gelu(x, approximate='tanh')
    # Of many numbers torch's own takes twice as long on CPUs, compiled too; of few, four operations take longer than
    # one, unless they are compiled.
    inner = torch.addcmul(x.new_full((), GELU_X), x, x, value=GELU_X3)
    return inner.mul_(x).sigmoid_().mul_(x)


def rms_norm(x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """
    Root-mean-square norm over the last axis, computed in float32, returned in the dtype of x.

    :param scale: [width], the factor itself (Gemma stores w and multiplies by 1 + w), or None.
    """
    return _normed(x, scale).to(x.dtype)


def modulated_norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return the adaptive RMSNorm `normed * scale + shift` (scale is 1 + the dense layer's output), in x's dtype."""
    return torch.addcmul(shift, _normed(x, None), scale).to(x.dtype)


def _normed(x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return what `rms_norm` does, in float32; on CPUs, where torch takes eleven small operations, by six or seven."""
    x = x.float()
    if x.device.type != 'cpu':
        return F.rms_norm(x, (x.shape[-1],), None if scale is None else scale.float(), RMS_EPSILON)
    squares = torch.linalg.vecdot(x, x).unsqueeze(-1)
    normed = x * torch.add(RMS_EPSILON, squares, alpha=1 / x.shape[-1]).rsqrt_()
    return normed if scale is None else normed * scale.float()


def rotary_table(positions: int, head_dim: int, theta: float = 10000.0) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return cos and sin, float32 [positions, head_dim / 2], of angle = position * theta^(-2j / head_dim).

    On the CPU, even when the network around is built on the meta device: no file holds these.
    """
    kind = {'dtype': torch.float32, 'device': 'cpu'}
    frequencies = theta ** (-torch.arange(0, head_dim, 2, **kind) / head_dim)
    angles = torch.arange(positions, **kind)[:, None] * frequencies[None, :]
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """
    Apply rotary embedding in the half-split form.

    :param x: [..., heads, head_dim]. :param cos: [..., 1, head_dim / 2] in the dtype of x; sin likewise.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def full_turn(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tables that `rotate_` takes, [..., head_dim], of those that `rotate` takes."""
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `rotate`, in place and in three operations; for tables of `full_turn`."""
    swapped = x.roll(x.shape[-1] // 2, -1)
    return x.mul_(cos).addcmul_(swapped, sin)


def time_embedding(t: float, width: int, min_period: float = 4e-3, max_period: float = 4.0) -> torch.Tensor:
    """
    Return the sinusoidal embedding of a flow time, float32 [width]: sines, then cosines.

    Periods are geometric from min_period to max_period (openpi, `posemb_sincos`); computed in float64 because the
    smallest period amplifies rounding of t.
    """
    count = width // 2
    exponent = torch.arange(count, dtype=torch.float64) / max(count - 1, 1)
    angles = 2 * math.pi * t / (min_period * (max_period / min_period) ** exponent)
    return torch.cat((angles.sin(), angles.cos())).float()
