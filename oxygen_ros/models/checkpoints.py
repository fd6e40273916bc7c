"""Loads weights from safetensors files, strictly. Never from pickles: a checkpoint is data, not code."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from oxygen_ros.errors import ConfigError

WEIGHTS = 'model.safetensors'
LISTED = 5  # names per kind of mistake that an error lists


def load_strict(network: nn.Module, directory: Path) -> None:
    """
    Fill a network from `model.safetensors` of a checkpoint directory.

    :raises ConfigError: one message with every missing, extra or wrongly shaped tensor.
    """
    path = directory / WEIGHTS
    if not path.is_file():
        raise ConfigError(f'checkpoint {str(directory)!r} has no {WEIGHTS}: give the directory that holds it')
    try:
        given = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f'checkpoint file {str(path)!r} cannot be read: {error}') from error
    wanted = network.state_dict()
    problems = [(f'missing {name}') for name in wanted if name not in given]
    problems += [f'unknown {name}' for name in given if name not in wanted]
    problems += [f'{name} has shape {list(given[name].shape)}, not {list(wanted[name].shape)}'
                 for name in wanted if name in given and given[name].shape != wanted[name].shape]
    if problems:
        more = f' and {len(problems) - LISTED} more' if len(problems) > LISTED else ''
        raise ConfigError(f'checkpoint {str(path)!r} does not fit the model: {"; ".join(problems[:LISTED])}{more}')
    network.load_state_dict(given)
