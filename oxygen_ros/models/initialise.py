"""Random weights: all the work of a real model, and no meaning."""

from __future__ import annotations

import math
import zlib

import torch
from torch import nn


def initialise(network: nn.Module, seed: int) -> None:
    """
    Fill a network with random weights that keep activations of order one, reproducibly from a seed.

    Every tensor has a generator of its own, so that a weight depends on its name, not on the order of construction.
    """
    for name, parameter in network.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(f'{seed} {name}'.encode()))
        values = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if 'norm' in name and parameter.ndim == 1 and 'modulation' not in name:
                parameter.copy_(values.mul_(0.05).add_(0.0 if name.endswith('bias') else 1.0))
            elif parameter.ndim == 1:
                parameter.copy_(values.mul_(0.02))
            elif name.endswith('embedding.weight') and parameter.ndim == 2:
                parameter.copy_(values.div_(math.sqrt(parameter.shape[1])))
            else:
                parameter.copy_(values.div_(math.sqrt(parameter[0].numel())))
