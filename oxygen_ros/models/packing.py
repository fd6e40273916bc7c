"""
Puts the weights of a loaded network into the form in which this machine reads them fastest.

It is a step of its own, behind loading: names and shapes of parameters are those of the checkpoints until then, and
training never takes it. A packed network only computes. Each weight is replaced before the next is touched, so that
there are never two copies of more than one.

Measured on a Xeon with AMX, 8 layers of width 512, weights not in the cache, one thread; times of all layers in ms:

    rows of x              1      6     10    216
    float32   as loaded   12     26     34    109
              COLUMNS     11     20     25    107
              ONEDNN      13     15     19    110
    bfloat16  as loaded    9     10     11     26
              ONEDNN       7      7      7     20
"""

from __future__ import annotations

import enum

import torch
from torch import nn

from oxygen_ros.models.gemma import Head
from oxygen_ros.models.layers import Activation, GatedLinear, Linear

LEAST_NUMBERS = 1 << 14     # of a weight that is worth packing
MOST_HEAD_BYTES = 64 << 20  # of a copy of the embedding for the head; without it, it is read as it is

_linear = getattr(torch.ops.mkldnn, '_linear_pointwise', None)
_reorder = getattr(torch.ops.mkldnn, '_reorder_linear_weight', None)


class Packing(str, enum.Enum):
    """Form of the weights of linear layers."""

    AUTO = 'auto'        # what is best for the device and the dtype
    PLAIN = 'plain'      # as loaded
    COLUMNS = 'columns'  # the same numbers, column by column: matrix products with few rows read them in order
    ONEDNN = 'onednn'    # the blocks of oneDNN, which computes in bfloat16 by AMX; activations and sums are part of it


class PackedLinear(nn.Module):
    """As `Linear`, on a weight in oneDNN's form."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = _reorder(linear.weight.detach().contiguous(), None), linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        return _linear(x, self.weight, self.bias, 'none', [], '')

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.add_to`."""
        return _linear.binary(x, residual, self.weight, self.bias, 'add')

    def activated(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.activated`."""
        return _linear(x, self.weight, self.bias, 'gelu', [], 'tanh')


class PackedGatedLinear(nn.Module):
    """As `GatedLinear`, on two weights in oneDNN's form; the activation and the product are part of the projections."""

    def __init__(self, linear: GatedLinear) -> None:
        super().__init__()
        gate, up = linear.weight.detach().chunk(2)
        self.gate, self.up = _reorder(gate.contiguous(), None), _reorder(up.contiguous(), None)
        self.activation = linear.activation.value
        self._algorithm = 'tanh' if linear.activation is Activation.GELU else ''

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See `GatedLinear.forward`."""
        gate = _linear(x, self.gate, None, self.activation, [], self._algorithm)
        return _linear.binary(x, gate, self.up, None, 'mul')


class PackedHead(nn.Module):
    """
    As `Head`, on a copy of the embedding.

    In bfloat16 the copy is float32: what the head is read in decides how exact its logits are.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = _reorder(weight.detach().float(), None)

    def forward(self, normed: torch.Tensor) -> torch.Tensor:
        """float32 [..., width] -> float32 [..., vocabulary]."""
        return _linear(normed, self.weight, None, 'none', [], '')


def choose(dtype: torch.dtype, device: str) -> Packing:
    """
    Return the form that AUTO stands for.

    A rule, not a measurement at start: results are the same bit by bit from one start to the next.
    """
    if not device.startswith('cpu'):
        return Packing.PLAIN
    if dtype is torch.bfloat16 and _linear is not None and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return Packing.ONEDNN
    return Packing.COLUMNS if dtype is torch.float32 else Packing.PLAIN


@torch.inference_mode()
def pack(network: nn.Module, packing: Packing = Packing.AUTO) -> Packing:
    """
    Pack the weights of all linear layers of a network that are large enough; may be called again.

    Where a form hides the numbers, only `Linear` and `GatedLinear` take it: of other layers somebody may read them.

    :returns: the form that AUTO stood for, of the layers that matter (those of the most numbers).
    """
    layers = {name: module for name, module in network.named_modules()
              if type(module) in (nn.Linear, Linear, GatedLinear) and module.weight.numel() >= LEAST_NUMBERS}
    chosen = Packing.PLAIN
    for name in sorted(layers, key=lambda name: layers[name].weight.numel()):
        layer = layers.pop(name)  # so that its unpacked weight goes
        chosen = choose(layer.weight.dtype, str(layer.weight.device)) if packing is Packing.AUTO else packing
        if chosen is Packing.COLUMNS:
            # The parameter stays what it is, in shape and numbers.
            layer.weight.data = layer.weight.t().contiguous().t()  # no copy if it is so already
        elif chosen is Packing.ONEDNN and type(layer) is not nn.Linear:
            _replace(network, name, PackedGatedLinear(layer) if type(layer) is GatedLinear else PackedLinear(layer))
    _pack_heads(network, chosen)
    return chosen


def _pack_heads(network: nn.Module, chosen: Packing) -> None:
    if chosen is Packing.PLAIN or _linear is None:
        return
    for name, head in list(network.named_modules()):
        if isinstance(head, Head) and head.weight.numel() * torch.float32.itemsize <= MOST_HEAD_BYTES:
            _replace(network, name, PackedHead(head.weight))


def _replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition('.')
    setattr(network.get_submodule(parent), leaf, module)
