"""
Statistics of states and actions, and the maps between physical units and a model's own range.

Formulas as in openpi (`transforms.Normalize`, `Unnormalize`), which add `epsilon` to the width of the range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.errors import ConfigError

EPSILON = 1e-6
# Ranges narrower than this, in physical units, are rounding noise of a joint that never moved.
CONSTANT_WIDTH = 1e-6


class StatisticsMode(str, Enum):
    """Which pair of statistics spans the range; the value is the word used in configuration files."""

    QUANTILE = 'quantile'
    MEAN_STD = 'mean_std'
    MIN_MAX = 'min_max'

    @property
    def keys(self) -> tuple[str, str]:
        """Names of the two lists in a file of statistics."""
        return {'quantile': ('q01', 'q99'), 'mean_std': ('mean', 'std'), 'min_max': ('min', 'max')}[self.value]


@dataclass(frozen=True)
class Statistics:
    """
    Where the values of a vector lie, in the physical units of the model (rad or degrees).

    :param mode: quantile and min_max map [offset, offset + scale] to [-1, 1], mean_std to zero mean and unit deviation.
    :param offset: float64 [n]: q01, mean or min.
    :param scale: float64 [n], not negative: q99 - q01, standard deviation, or max - min. 0 is a constant dimension.
    """

    mode: StatisticsMode
    offset: np.ndarray
    scale: np.ndarray

    def __post_init__(self) -> None:
        if self.offset.ndim != 1 or self.offset.shape != self.scale.shape:
            raise ValueError(f'statistics of shapes {list(self.offset.shape)} and {list(self.scale.shape)}')
        if not (np.isfinite(self.offset).all() and np.isfinite(self.scale).all() and (self.scale >= 0).all()):
            raise ValueError('statistics must be finite, and the width of a range not negative')

    def __len__(self) -> int:
        return len(self.offset)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], mode: StatisticsMode | str, size: int, where: str) -> Statistics:
        """
        Check and convert statistics as they stand in a file.

        :param mapping: `{'q01': [...], 'q99': [...], 'mean': [...], ...}`. A number stands for a list of equal numbers.
            Lists may be longer than `size` if the tail is padding (zeros, or ones for std); the tail is dropped.
        :param size: numbers that are needed.
        :param where: names file and key in errors.
        :raises ConfigError: for missing, non-finite, reversed or wrongly sized statistics.
        """
        mode = StatisticsMode(mode)
        if not isinstance(mapping, Mapping):
            raise ConfigError(f'{where}: no statistics there: {mode.value} needs the lists {" and ".join(mode.keys)}')
        lengths = {key: len(value) for key, value in mapping.items() if isinstance(value, list)}
        if len(set(lengths.values())) > 1:
            raise ConfigError(f'{where}: lists of different lengths: {_lengths(lengths)}')
        first, second = (_vector(mapping, key, size, f'{where}.{key}') for key in mode.keys)
        if mode is StatisticsMode.MEAN_STD:
            scale, wrong = second, second < 0
        else:
            with np.errstate(over='ignore'):
                scale, wrong = second - first, second < first
        if wrong.any() or not np.isfinite(scale).all():
            bad = np.flatnonzero(wrong | ~np.isfinite(scale)).tolist()
            raise ConfigError(f'{where}: {" and ".join(mode.keys)} are no range at index {bad}: '
                              f'{first[bad].tolist()} and {second[bad].tolist()}')
        return cls(mode, first, scale)


class Normalizer:
    """
    Maps vectors between physical units and the model's range, in float64. Nothing is clipped; NaN stays NaN.

    A dimension that is constant in the statistics (width below `CONSTANT_WIDTH`) normalises to what its constant gives
    (-1, or 0 with mean_std) whatever the input, and unnormalises to its constant.

    :param epsilon: added to the width of the range; 1e-6 as in openpi.
    """

    def __init__(self, statistics: Statistics, epsilon: float = EPSILON) -> None:
        self.statistics = statistics
        self.epsilon = epsilon
        constant = statistics.scale < CONSTANT_WIDTH
        # Dividing by infinity gives 0 for every finite input, and NaN for those that are not.
        self._divisor = np.where(constant, np.inf, statistics.scale + epsilon)
        self._factor = np.where(constant, 0.0, statistics.scale + epsilon)
        self._symmetric = statistics.mode is not StatisticsMode.MEAN_STD

    def normalize(self, values: np.ndarray) -> np.ndarray:
        """
        Return what the model sees.

        :param values: [..., n] in physical units, n = len(statistics).
        :returns: float64 [..., n].
        """
        with np.errstate(invalid='ignore'):  # NaN in, NaN out
            values = (self._checked(values) - self.statistics.offset) / self._divisor
        return values * 2 - 1 if self._symmetric else values

    def unnormalize(self, values: np.ndarray) -> np.ndarray:
        """
        Return physical units from what the model said; the inverse of `normalize`.

        :param values: [..., n] as the model gives them.
        :returns: float64 [..., n].
        """
        values = self._checked(values)
        if self._symmetric:
            values = (values + 1) / 2
        with np.errstate(invalid='ignore'):
            return values * self._factor + self.statistics.offset

    def _checked(self, values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, dtype=np.float64)
        if values.ndim == 0 or values.shape[-1] != len(self.statistics):
            raise ValueError(f'values of shape {list(values.shape)} for statistics of {len(self.statistics)} numbers')
        return values


def load_statistics(path: str | Path, key: str, mode: StatisticsMode | str, size: int) -> Statistics:
    """
    Read statistics from a JSON file as openpi writes it (norm_stats.json), with or without the outer key `norm_stats`.

    :param key: 'state', 'action' or 'actions'; the two spellings of actions stand for each other.
    :param size: numbers that are needed, see `Statistics.from_mapping`.
    :raises ConfigError: names the file and the key.
    """
    try:
        content = json.loads(Path(path).read_text(encoding='utf-8'))
    except OSError as error:
        raise ConfigError(f'statistics {path}: {error.strerror}: give the norm_stats.json of the checkpoint') from error
    except ValueError as error:
        raise ConfigError(f'statistics {path}: not JSON ({error}): copy the file again from the checkpoint') from error
    content = content.get('norm_stats', content) if isinstance(content, dict) else {}
    other = {'action': 'actions', 'actions': 'action'}.get(key, key)
    found = key if key in content else other
    if found not in content:
        raise ConfigError(f'statistics {path}: no key {key!r}, only {sorted(content)}: '
                          'without it the output of the model has no physical meaning')
    return Statistics.from_mapping(content[found], mode, size, f'statistics {path}: {found}')


def _vector(mapping: Mapping[str, Any], key: str, size: int, where: str) -> np.ndarray:
    """Return `mapping[key]` as float64 [size], or raise ConfigError."""
    value = mapping.get(key)
    if value is None:
        raise ConfigError(f'{where} is missing')
    if _is_number(value):
        value = [value] * size
    if not isinstance(value, list) or not all(map(_is_number, value)):
        raise ConfigError(f'{where} must be a number or a list of numbers')
    vector = np.array(value, dtype=np.float64)
    if len(vector) < size:
        raise ConfigError(f'{where} has {len(vector)} numbers, but {size} are needed')
    if not np.isfinite(vector).all():
        raise ConfigError(f'{where} is not finite at index {np.flatnonzero(~np.isfinite(vector)).tolist()}')
    if not np.isin(vector[size:], (0, 1) if key == 'std' else (0,)).all():
        raise ConfigError(f'{where} has {len(vector)} numbers, but {size} are needed, and the rest is not padding')
    return vector[:size]


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, float) or isinstance(value, int) and abs(value) < 2**1023


def _lengths(lengths: Mapping[str, int]) -> str:
    return ', '.join(f'{key} {length}' for key, length in lengths.items())
