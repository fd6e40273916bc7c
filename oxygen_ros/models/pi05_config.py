"""Sizes of a π0.5 network: from the model file, and whether a checkpoint's own config.json agrees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import read_json
from oxygen_ros.models.gemma import GemmaConfig
from oxygen_ros.models.pi0_network import Pi0Config
from oxygen_ros.models.siglip import VisionConfig

# Sizes by the names that checkpoints use. A model file may also give the sizes themselves.
VARIANTS = {
    'gemma_2b': GemmaConfig(width=2048, depth=18, mlp=16384, heads=8, kv_heads=1, head_dim=256),
    'gemma_300m': GemmaConfig(width=1024, depth=18, mlp=4096, heads=8, kv_heads=1, head_dim=256),
}
BRANCH_POSITIONS = 4096  # longest branch that positions are prepared for


def network_config(config: Mapping) -> Pi0Config:
    """Return the sizes of the network that a model file asks for."""
    vision = VisionConfig(**config['vision'])
    positions = len(config['cameras']) * vision.tokens + config['prompt_tokens'] + BRANCH_POSITIONS
    return Pi0Config(vision, _gemma(config['decoder']), _gemma(config['expert']), config['vocabulary'],
                     config['horizon'], config['action_dim'], positions)


def check_config(checkpoint: Path, config: Mapping) -> int:
    """
    Compare the checkpoint's own config.json, of either format, with the model file.

    :returns: actions that its weights were trained to find fixed, of real-time chunking; 0: they were not.
    :raises ConfigError: they differ, or the checkpoint is of another kind.
    """
    path = checkpoint / 'config.json'
    if not path.is_file():
        return 0
    given = read_json(path, f'checkpoint file {path}')
    if given.get('type', 'pi05') != 'pi05':
        raise ConfigError(f'checkpoint {str(checkpoint)!r} is of type {given["type"]!r}, not pi05: choose another '
                          'model')
    if given.get('use_visual_memory'):
        raise ConfigError(f'checkpoint {str(checkpoint)!r} uses visual memory, which this version cannot run')
    side = config['vision']['image']
    wanted = {'action_horizon': config['horizon'], 'chunk_size': config['horizon'], 'action_dim': config['action_dim'],
              'max_action_dim': config['action_dim'], 'image_resolution': [side, side], 'min_period': 4e-3,
              'max_period': 4.0}
    for key, side_of in (('paligemma_variant', 'decoder'), ('action_expert_variant', 'expert')):
        if isinstance(config[side_of], str):
            wanted[key] = config[side_of]
    wrong = [f'{key} {given[key]} instead of {value}' for key, value in wanted.items()
             if given.get(key, value) != value]
    if wrong:
        raise ConfigError(f'checkpoint {str(checkpoint)!r} and the model file differ: config.json has '
                          f'{", ".join(wrong)}: choose the model file that fits, or correct a copy of it')
    return int(given.get('rtc_training_max_delay') or 0)


def _gemma(sizes: str | Mapping) -> GemmaConfig:
    if isinstance(sizes, Mapping):
        return GemmaConfig(**sizes)
    if sizes not in VARIANTS:
        raise ConfigError(f'unknown variant {sizes!r}: choose one of {sorted(VARIANTS)} or give the sizes')
    return VARIANTS[sizes]
