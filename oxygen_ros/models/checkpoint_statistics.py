"""Statistics of states and actions that lie in a checkpoint directory, in openpi's and in LeRobot's format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from oxygen_ros.errors import ConfigError
from oxygen_ros.robot.normalization import EPSILON, Statistics, StatisticsMode

NORM_STATS = 'norm_stats.json'
PREPROCESSOR = 'policy_preprocessor.json'
_STATE, _ACTION = 'observation.state', 'action'  # LeRobot's names of the features
_MODES = {'QUANTILES': StatisticsMode.QUANTILE, 'MEAN_STD': StatisticsMode.MEAN_STD, 'MIN_MAX': StatisticsMode.MIN_MAX}


@dataclass(frozen=True)
class CheckpointStatistics:
    """
    What a checkpoint says about the numbers that it was trained with.

    :param where: names the file in errors.
    :param state, actions: lists by name ('q01', 'mean', ...), as in the file.
    :param state_mode, action_mode: which of them the model was normalised with; None: not at all.
    :param epsilon: added to the width of a range: 1e-6 in openpi; 0 in LeRobot with quantiles, 1e-8 else.
    """

    where: str
    state: Mapping[str, list[float]]
    actions: Mapping[str, list[float]]
    state_mode: StatisticsMode | None = StatisticsMode.QUANTILE
    action_mode: StatisticsMode | None = StatisticsMode.QUANTILE
    epsilon: float = EPSILON

    def of_state(self, size: int) -> Statistics | None:
        """Return the statistics of a state of `size` numbers; raises ConfigError if they are of another size."""
        return self.state_mode and Statistics.from_mapping(self.state, self.state_mode, size, f'{self.where}: state')

    def of_actions(self, size: int) -> Statistics | None:
        """Return the statistics of actions of `size` numbers; raises ConfigError if they are of another size."""
        return self.action_mode and Statistics.from_mapping(self.actions, self.action_mode, size,
                                                            f'{self.where}: actions')


def read_statistics(checkpoint: Path, asset: str = '') -> CheckpointStatistics | None:
    """
    Find and read the statistics of a checkpoint directory; None if it has no such file.

    :param asset: id of the asset whose statistics to take when an openpi checkpoint has several.
    :raises ConfigError: several assets and none chosen, or a file that cannot be read or lacks a key.
    """
    if (checkpoint / PREPROCESSOR).is_file():
        return _read_lerobot(checkpoint)
    files = {file.parent.relative_to(checkpoint / 'assets').as_posix(): file
             for file in sorted((checkpoint / 'assets').rglob(NORM_STATS))}
    if (checkpoint / NORM_STATS).is_file():
        files['.'] = checkpoint / NORM_STATS
    if asset and asset not in files:
        raise ConfigError(f'checkpoint {str(checkpoint)!r} has no assets/{asset}/{NORM_STATS}, only '
                          f'{sorted(files) or "none at all"}: correct `asset` in the model file')
    if len(files) > 1 and not asset:
        raise ConfigError(f'checkpoint {str(checkpoint)!r} has statistics for {sorted(files)}: choose one with '
                          '`asset` in the model file')
    return _read_openpi(files[asset] if asset else next(iter(files.values()))) if files else None


def _read_openpi(path: Path) -> CheckpointStatistics:
    where = f'statistics {path}'
    content = read_json(path, where)
    content = content.get('norm_stats', content)
    actions = content.get('actions', content.get('action'))
    if not isinstance(content.get('state'), dict) or not isinstance(actions, dict):
        raise ConfigError(f'{where}: needs the keys state and actions, has {sorted(content)}: without them the output '
                          'of the model has no physical meaning')
    return CheckpointStatistics(where, content['state'], actions)


def _read_lerobot(checkpoint: Path) -> CheckpointStatistics | None:
    path = checkpoint / PREPROCESSOR
    where = f'statistics {path}'
    steps = read_json(path, where).get('steps')
    steps = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    step = next((s for s in steps if s.get('registry_name') == 'normalizer_processor'), None)
    if step is None:
        raise ConfigError(f'{where}: has no step normalizer_processor: without it the output of the model has no '
                          'physical meaning')
    config = step.get('config') or {}
    names = config.get('norm_map') or {}
    unknown = {kind: names.get(kind) for kind in ('STATE', 'ACTION') if names.get(kind) not in (*_MODES, 'IDENTITY')}
    if unknown:
        raise ConfigError(f'{where}: norm_map has {unknown}: known are {[*_MODES, "IDENTITY"]}')
    state_mode, action_mode = _MODES.get(names['STATE']), _MODES.get(names['ACTION'])
    tensors = {}
    if state_mode or action_mode:
        file = checkpoint / str(step.get('state_file'))
        try:
            tensors = load_file(file)
        except (SafetensorError, OSError) as error:
            raise ConfigError(f'{where}: its state_file {str(file)!r} cannot be read: {error}') from error
    features = {feature: {name.rpartition('.')[2]: value.ravel().astype(float).tolist()
                          for name, value in tensors.items() if name.rpartition('.')[0] == feature}
                for feature in (_STATE, _ACTION)}
    quantile = StatisticsMode.QUANTILE in (state_mode, action_mode)
    return CheckpointStatistics(where, features[_STATE], features[_ACTION], state_mode, action_mode,
                                0.0 if quantile else float(config.get('eps', 1e-8)))


def read_json(path: Path, where: str) -> dict:
    """Return the object in a JSON file, or raise a ConfigError that begins with `where`."""
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise ConfigError(f'{where}: cannot be read ({error}): copy it again from the checkpoint') from error
    if not isinstance(content, dict):
        raise ConfigError(f'{where}: holds no JSON object: copy it again from the checkpoint')
    return content
