"""Where training starts: random weights from which a small network learns quickly."""

from __future__ import annotations

import math

import torch

from oxygen_ros.models.pi0_network import Pi0Network
from oxygen_ros.models.tiny import STATE_BINS
from oxygen_ros.models.tokenizer import WordTokenizer


@torch.no_grad()
def prepare(network: Pi0Network, tokenizer: WordTokenizer, seed: int) -> None:
    """
    Change random weights in three places.

    * Neighbouring bins of a state value get neighbouring embeddings (its sines and cosines, from coarse to fine): the
      value of a joint can be read from the start, bins need not be learned one by one.
    * The modulation of the action expert begins as none: scale 1, shift 0, gate 1.
    * Velocities begin near 0.
    """
    random = torch.Generator().manual_seed(seed)
    embedding = network.decoder.embedding.weight
    values = (torch.arange(STATE_BINS) + 0.5) * 2 / STATE_BINS - 1
    angles = math.pi * values[:, None] * 2.0 ** torch.arange(-1, 6)
    features = torch.cat((values[:, None], angles.sin(), angles.cos()), dim=1)
    smooth = features @ torch.randn((features.shape[1], embedding.shape[1]), generator=random)
    smooth /= smooth.std() * math.sqrt(embedding.shape[1])
    first = tokenizer.control('state0')
    embedding[first:first + STATE_BINS] = smooth
    embedding[tokenizer.control('state-1')] = smooth[0]
    expert = network.expert
    width = expert.config.width
    for linear in [m for layer in expert.layers for m in (layer.modulation1, layer.modulation2)] + [
            expert.norm_modulation]:
        linear.weight.zero_()
        linear.bias.zero_()
        linear.bias[2 * width:] = 1.0
    expert.action_out.weight.mul_(0.1)
    expert.action_out.bias.zero_()
