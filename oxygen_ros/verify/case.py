"""A case of the π0.5 family: inputs and expected values as files, and the model file that they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import read_json
from oxygen_ros.observation import Observation


class NumberTokenizer:
    """Token ids as text: '17 4' is the tokens 17 and 4. So a case's ids go the way that every text goes."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        """Return the ids that a text lists."""
        return [int(word) for word in text.split()]

    def token_bytes(self, token: int) -> bytes:
        """Return an id as text."""
        return f' {token}'.encode() if 0 <= token < self._vocabulary else b''


@dataclass(frozen=True)
class Case:
    """
    :param config: parsed config.json.
    :param inputs, expected: tensors by name; `expected` by file: 'oxygen', 'lerobot'.
    """

    folder: Path
    config: Mapping
    inputs: Mapping[str, torch.Tensor]
    expected: Mapping[str, Mapping[str, torch.Tensor]]

    @property
    def rows(self) -> int:
        """Number of observations."""
        return self.config['batch']

    @property
    def weights(self) -> list[Path]:
        """Files that hold the same weights, in different formats."""
        return sorted(self.folder.glob('model*.safetensors'))

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.config['vocab_size']

    def model_file(self) -> dict:
        """Return the content of a model file for this case."""
        config, vision = self.config, self.config['vision']
        return {
            'name': config['name'], 'cameras': config['cameras'], 'action_period': 0.1,
            'horizon': config['action_horizon'], 'action_dim': config['action_dim'], 'denoise_steps': 10,
            'vision': {'image': vision['image_size'], 'patch': vision['patch_size'], 'width': vision['hidden_size'],
                       'layers': vision['num_hidden_layers'], 'heads': vision['num_attention_heads'],
                       'mlp': vision['intermediate_size']},
            'decoder': _gemma(config['text']), 'expert': _gemma(config['expert']), 'vocabulary': self.vocabulary,
            'prompt': '{text}', 'prompt_tokens': config['max_token_len'], 'bos': [], 'stop_tokens': [],
            'tasks': {'speech': '', 'answer': '{text}', 'memory': ''}, 'text_head_trained': True, 'resize': 'pillow',
        }

    def observation(self, row: int, number: int) -> Observation:
        """Return an observation with the pictures of the cameras that are valid."""
        images = {name: np.ascontiguousarray(self.inputs['images_u8'][i, row].permute(1, 2, 0).numpy())
                  for i, name in enumerate(self.config['cameras']) if self.inputs['image_mask'][i, row]}
        return Observation(number, number, images)

    def prompt(self, row: int) -> str:
        """Return the valid tokens of a prompt, as `NumberTokenizer` reads them."""
        return ' '.join(map(str, self.inputs['tokens'][row][self.inputs['token_mask'][row]].tolist()))

    def valid(self, row: int) -> torch.Tensor:
        """Return which positions of the padded prefix are valid, bool [prefix]."""
        images = self.inputs['image_mask'][:, row].repeat_interleave(self.config['image_tokens_per_camera'])
        return torch.cat((images, self.inputs['token_mask'][row]))


def read_case(folder: Path) -> Case:
    """
    Read a case directory.

    :raises ConfigError: a file is missing or cannot be read.
    """
    config = read_json(folder / 'config.json', f'case file {folder / "config.json"}')
    try:
        inputs = load_file(folder / 'inputs.safetensors')
        expected = {file.stem.removeprefix('expected_'): load_file(file)
                    for file in sorted(folder.glob('expected_*.safetensors'))}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f'case {str(folder)!r} cannot be read: {error}') from error
    case = Case(folder, config, inputs, expected)
    for what, there in (('weights (model*.safetensors)', case.weights),
                        ('expected_oxygen.safetensors', 'oxygen' in expected)):
        if not there:
            raise ConfigError(f'case {str(folder)!r} has no {what}: copy it there')
    return case


def _gemma(sizes: Mapping) -> dict:
    return {'width': sizes['width'], 'depth': sizes['depth'], 'mlp': sizes['mlp_dim'], 'heads': sizes['num_heads'],
            'kv_heads': sizes['num_kv_heads'], 'head_dim': sizes['head_dim']}
