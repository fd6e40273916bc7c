"""Where the parts of a StarVLA checkpoint are: weights, files of the base model, units of the actions."""

from __future__ import annotations

import re
from pathlib import Path

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import CheckpointStatistics, read_json
from oxygen_ros.robot.normalization import StatisticsMode

STATISTICS = 'dataset_statistics.json'
BASE_FILES = ('config.json', 'tokenizer.json', 'preprocessor_config.json')
_WEIGHTS = re.compile(r'steps_(\d+)_(?:pytorch_model\.pt|model\.safetensors)')


def base_folder(checkpoint: Path, base: str, chosen: str | None) -> Path:
    """
    Return the directory with configuration, tokenizer and processor of the base model.

    :param base: path or hub id in the checkpoint's config. :param chosen: of the model file; None looks for `base`
        in the checkpoint, then beside its last part in `base_vlm`.
    :raises ConfigError: it is not there, or lacks a file.
    """
    name = Path(base).name
    places = [Path(chosen).expanduser()] if chosen else [checkpoint / base, checkpoint / 'base_vlm' / name]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise ConfigError(f'checkpoint {str(checkpoint)!r} stands on the base model {base!r}, which is not inside: '
                          f'copy {", ".join(BASE_FILES)} of that model to {str(places[-1])!r}, or set `base_vlm` in '
                          'the model file (its weights are not needed)')
    missing = [file for file in BASE_FILES if not (folder / file).is_file()]
    if missing:
        raise ConfigError(f'the base model in {str(folder)!r} lacks {", ".join(missing)}: copy that there')
    return folder


def weights_path(checkpoint: Path, chosen: str | None) -> Path:
    """
    Return the file with the weights: `final_model`, else that of the most steps.

    :param chosen: relative to the checkpoint, of the model file. :raises ConfigError: there is none.
    """
    if chosen:
        path = checkpoint / chosen
        if not path.is_file():
            raise ConfigError(f'checkpoint {str(checkpoint)!r} has no {chosen}: correct `weights` in the model file')
        return path
    for name in ('model.safetensors', 'pytorch_model.pt'):
        if (checkpoint / 'final_model' / name).is_file():
            return checkpoint / 'final_model' / name
    steps = {path: int(match[1]) for path in sorted((checkpoint / 'checkpoints').glob('steps_*'))
             if (match := _WEIGHTS.fullmatch(path.name))}
    if not steps:
        raise ConfigError(f'checkpoint {str(checkpoint)!r} has no weights: neither final_model/model.safetensors (or '
                          'pytorch_model.pt) nor checkpoints/steps_N_model.safetensors (or _pytorch_model.pt)')
    return max(steps, key=steps.get)


def read_units(checkpoint: Path, robot_type: str | None, mode: StatisticsMode, action_dim: int, with_state: bool,
               ) -> CheckpointStatistics:
    """
    Return the statistics that actions are in. Those that the checkpoint does not scale get the range -1..1.

    :param robot_type: whose; None: there is one. :param with_state: whether states are normalised too.
    :raises ConfigError: `robot_type` is none of the file's, or the lists are of the wrong size.
    """
    where = f'statistics {checkpoint / STATISTICS}'
    content = read_json(checkpoint / STATISTICS, where)
    chosen = robot_type or (next(iter(content)) if len(content) == 1 else None)
    if chosen not in content:
        raise ConfigError(f'robot_type is {chosen!r}, the checkpoint knows {sorted(content)}: choose one of these in '
                          'the model file')
    try:
        actions = dict(content[chosen]['action'])
        scaled = list(map(bool, actions.get('mask') or [True] * action_dim))
        lists = {key: list(map(float, actions[key])) for key in mode.keys}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f'{where}: {chosen}: action lacks what {mode.value} needs, or holds no lists of numbers '
                          f'({error!r})') from error
    if {len(scaled), *map(len, lists.values())} != {action_dim}:
        raise ConfigError(f'{where}: {chosen}: action needs lists of {action_dim} numbers')
    for key, value in zip(mode.keys, (0.0, 1.0) if mode is StatisticsMode.MEAN_STD else (-1.0, 1.0)):
        lists[key] = [number if scale else value for number, scale in zip(lists[key], scaled)]
    return CheckpointStatistics(f'{where}: {chosen}', content[chosen].get('state') or {}, lists,
                                mode if with_state else None, mode, 0.0)
