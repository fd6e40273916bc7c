"""Finds and loads a model by name. A new family is one new file with a `load` function, and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file, config_folder
from oxygen_ros.models.checkpoints import Progress
from oxygen_ros.models.interface import ModelSpec, VLAModel

# Family -> module with `load(config, options) -> VLAModel`. Imported only when used.
FAMILIES = {
    'pi05': 'oxygen_ros.models.pi05',
    'starvla': 'oxygen_ros.models.starvla',
    'tiny': 'oxygen_ros.models.tiny',
    'xiaomi': 'oxygen_ros.models.xiaomi_robotics',
}
DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}


@dataclass(frozen=True)
class LoadOptions:
    """
    :param checkpoint: directory with the weights; None means those that the model file names, else random weights,
        where a family allows that.
    :param seed: of random weights. :param progress: told how far loading is; None logs it.
    :param memory_budget_mib: most MiB for the weights; None is what the device has free.
    :param admit: called with the properties of the model before its weights are made, which takes long; may raise.
    """

    checkpoint: Path | None = None
    dtype: torch.dtype = torch.float32
    device: str = 'cpu'
    seed: int = 0
    progress: Progress | None = None
    memory_budget_mib: float | None = None
    admit: Callable[[ModelSpec], None] = field(default=lambda spec: None)


@dataclass(frozen=True)
class ModelFile:
    """
    A parsed `config/models/*.yaml`.

    `layout` names the layout of the robot file that fits the model. `checkpoint` in it, a folder relative to `config/`,
    is what is loaded when no checkpoint is given. `ensemble` in it is how its chunks are best averaged, see
    `robot.chunk_buffer`; 0 if it says nothing.
    """

    name: str
    family: str
    layout: str
    content: Mapping
    ensemble: float = 0.0


def read_model_file(name_or_path: str) -> ModelFile:
    """
    Read a model file.

    :raises ConfigError: it does not exist, is no YAML mapping, or names no known family or layout.
    """
    path = config_file('models', name_or_path)
    try:
        content = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f'model file {path} is not valid YAML: {" ".join(str(error).split())}') from error
    except OSError as error:
        raise ConfigError(f'model file {path} cannot be read: {error.strerror}') from error
    missing = [key for key in ('family', 'layout') if not isinstance(content, dict) or key not in content]
    if missing:
        raise ConfigError(f'model file {path} lacks {" and ".join(missing)}')
    if str(content['family']) not in FAMILIES:
        raise ConfigError(f'model file {path}: unknown family {content["family"]!r}: choose one of {sorted(FAMILIES)}')
    ensemble = content.get('ensemble', 0.0)
    if not isinstance(ensemble, (int, float)) or not 0 <= ensemble < 1:
        raise ConfigError(f'model file {path}: ensemble {ensemble!r} must be a number from 0 to below 1')
    return ModelFile(path.stem, content['family'], content['layout'], content, ensemble)


def load_model(file: ModelFile, options: LoadOptions) -> VLAModel:
    """
    Load the model that a file describes.

    :raises ConfigError: the checkpoint is missing or does not fit, or the file has a wrong key or value.
    """
    if options.checkpoint is None and file.content.get('checkpoint'):
        options = replace(options, checkpoint=config_folder(str(file.content['checkpoint'])))
    if options.checkpoint is not None and not options.checkpoint.is_dir():
        raise ConfigError(f'checkpoint {str(options.checkpoint)!r} is not a directory: give the one that holds the '
                          'weights, or leave it empty for those of the model file')
    require_device(options.device)
    try:
        return importlib.import_module(FAMILIES[file.family]).load(file.content, options)
    except KeyError as error:
        raise ConfigError(f'model file {file.name} lacks the key {error}') from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f'model file {file.name}: {error}') from error


def require_device(device: str) -> None:
    """
    Check that torch has a device.

    :raises ConfigError: it has not.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # what torch raises for unknown and for missing devices
        raise ConfigError(f'device {device!r} is not available here: use cpu, or install a torch build for '
                          'it') from error
