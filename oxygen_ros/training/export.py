"""Writes the checkpoint of a run for the ordinary loader: weights, sizes, tokenizer, statistics and a card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import NORM_STATS
from oxygen_ros.models.checkpoints import WEIGHTS
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file
from oxygen_ros.models.tiny import TOKENIZER
from oxygen_ros.training.config import TrainingConfig
from oxygen_ros.training.model_card import model_card
from oxygen_ros.training.run_folder import CURVES, RunFolder
from oxygen_ros.training.state import averaged_weights

LARGEST = 25_000_000  # bytes of a checkpoint that comes with the package


def export(run: RunFolder, target: Path, results: list[Path]) -> None:
    """
    Write the averaged weights of a run's newest state.

    :param target: folder, made if needed; files in it are overwritten.
    :param results: of `oxygen_ros evaluate --json`, for the model card.
    :raises ConfigError: the run has saved nothing yet, or the checkpoint would be larger than 25 MB.
    """
    config, newest = run.recipe(), run.newest()
    if config is None or newest is None:
        raise ConfigError(f'{run.path} holds no saved state: train first (oxygen_ros train --run ...)')
    step, weights = averaged_weights(newest)
    size = sum(tensor.nbytes for tensor in weights.values())
    if size > LARGEST:
        raise ConfigError(f'the checkpoint would have {size / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}: train a '
                          'smaller model')
    model_file = read_model_file(config.model)
    content = {key: value for key, value in model_file.content.items() if key not in ('words', 'checkpoint')}
    target.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, target / WEIGHTS, {'format': 'pt'})
    (target / WEIGHTS).chmod(0o644)  # it is written for its owner alone
    _write(target / TOKENIZER, {'words': model_file.content['words'].split()})
    _write(target / 'config.json', {**content, 'trained': {'steps': step, 'of': config.last_step}})
    shutil.copyfile(run.path / NORM_STATS, target / NORM_STATS)
    start = run.start.recipe() if run.start is not None else None
    _write_recipe(target / 'training.yaml', config)
    if start is not None:
        _write_recipe(target / 'training_start.yaml', start)
    run.draw()
    if (run.path / CURVES).is_file():
        shutil.copyfile(run.path / CURVES, target / CURVES)
    loaded = load_model(model_file, LoadOptions(target))  # what cannot be loaded must not be shipped
    for name, parameter in loaded.network.named_parameters():
        if not torch.equal(parameter, weights[name]):
            raise ConfigError(f'{target}: {name} is not what was written: another program writes there too')
    parameters = sum(tensor.numel() for tensor in weights.values())
    (target / 'README.md').write_text(model_card(config, step, parameters, run.lines(), [
        part for path in results for part in _parts(path)], start), encoding='utf-8')


def _parts(path: Path) -> list[dict]:
    """Return the parts of an evaluation that was written by `oxygen_ros evaluate --json`."""
    try:
        return json.loads(path.read_text(encoding='utf-8'))['parts']
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'{path} holds no evaluation ({error}): make it with `oxygen_ros evaluate --json`') from error


def _write_recipe(path: Path, config: TrainingConfig) -> None:
    path.write_text(yaml.safe_dump(config.to_mapping(), sort_keys=False), encoding='utf-8')


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')
