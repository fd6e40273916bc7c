"""The built-in policy at sizes that are quick to run, and observations for it."""

from __future__ import annotations

import numpy as np
import torch
import yaml

from oxygen_ros.files import config_file
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.registry import LoadOptions
from oxygen_ros.models.tiny import TinyModel
from oxygen_ros.observation import Observation

SIZES = {
    'horizon': 5, 'action_dim': 6, 'denoise_steps': 3, 'prompt_tokens': 24,
    'vision': {'image': 28, 'patch': 14, 'width': 32, 'layers': 1, 'heads': 2, 'mlp': 48},
    'decoder': {'width': 32, 'depth': 3, 'mlp': 48, 'heads': 4, 'kv_heads': 2, 'head_dim': 8},
    'expert': {'width': 24, 'depth': 3, 'mlp': 32, 'heads': 4, 'kv_heads': 2, 'head_dim': 8},
}


def small_config(**changes) -> dict:
    """Return the shipped model file with small sizes."""
    return {**yaml.safe_load(config_file('models', 'tiny').read_text(encoding='utf-8')), **SIZES, **changes}


def small_policy(seed: int = 0, **options) -> TinyModel:
    """Return the policy with random weights, and more weight on attention: its text depends on what it sees."""
    model = TinyModel(small_config(), LoadOptions(seed=seed, **options))
    with torch.no_grad():
        for layer in model.network.decoder.layers:
            layer.qkv.weight.mul_(2)
            layer.out.weight.mul_(20)
    return model


def policy_input(number: int, stamp_ns: int = 0, picture: int | None = None, cameras=('head', 'front')) -> PolicyInput:
    """Return an observation with random pictures; `picture` is their seed, else the number is."""
    seed = number if picture is None else picture
    random = np.random.default_rng(seed)
    images = {name: random.integers(0, 256, (20, 30, 3), dtype=np.uint8) for name in cameras}
    return PolicyInput(Observation(number, stamp_ns, images), np.random.default_rng([seed, 1]).uniform(-1, 1, 4))
