"""A model file of the π0.5 family at sizes that run in milliseconds, for tests of the benchmark."""

from __future__ import annotations

from pathlib import Path

import yaml

from oxygen_ros.files import config_file

SIZES = {
    'name': 'bench_s', 'cameras': ['head', 'front'], 'horizon': 5, 'action_dim': 8, 'denoise_steps': 3,
    'prompt_tokens': 40, 'vocabulary': 300,
    'vision': {'image': 28, 'patch': 14, 'width': 32, 'layers': 1, 'heads': 2, 'mlp': 48},
    'decoder': {'width': 32, 'depth': 3, 'mlp': 48, 'heads': 4, 'kv_heads': 2, 'head_dim': 8},
    'expert': {'width': 24, 'depth': 3, 'mlp': 32, 'heads': 4, 'kv_heads': 2, 'head_dim': 8},
}


def small_model_file(folder: Path) -> Path:
    """Write bench_m with small sizes into a folder."""
    path = folder / 'bench_s.yaml'
    content = yaml.safe_load(config_file('models', 'bench_m').read_text(encoding='utf-8'))
    path.write_text(yaml.safe_dump({**content, **SIZES}), encoding='utf-8')
    return path
