"""How single joints look to a model that knows them turned around, or in other units than the robot gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from oxygen_ros.errors import ConfigError


@dataclass(frozen=True)
class Linear:
    """scale * x + offset."""

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if self.scale == 0:
            raise ValueError('scale must not be 0')

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Map values."""
        return self.scale * values + self.offset

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Map back."""
        return (values - self.offset) / self.scale


@dataclass(frozen=True)
class Linkage:
    """
    The opening of a gripper that a motor drives through a horn and an arm, as the angle of the motor.

    The value 0..1 is the opening between `closed` and `open` (m); the angle, between `low` and `high` (rad), becomes
    0..1 again. Law of cosines on the triangle of horn, arm and opening, as in openpi's policy for ALOHA.

    :param arm, horn: lengths in m.
    """

    arm: float
    horn: float
    closed: float
    open: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (min(self.arm, self.horn, self.closed) > 0 and self.open > self.closed and self.high > self.low):
            raise ValueError(f'{self}: lengths must be positive, open beyond closed, high beyond low')

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Map openings in 0..1 to angles in 0..1; what no angle gives is taken as the nearest one that does."""
        opening = np.maximum(values * (self.open - self.closed) + self.closed, 1e-9)
        sine = (self.horn**2 + opening**2 - self.arm**2) / (2 * self.horn * opening)
        return (np.arcsin(np.clip(sine, -1.0, 1.0)) - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class JointMap:
    """
    Both directions of one joint; they need not be each other's inverse, for some models were trained so.

    :param state: joint position -> number in the model's state. :param action: number of the model -> joint position.
    """

    state: Callable[[np.ndarray], np.ndarray] = Linear()
    action: Linear = Linear()

    @classmethod
    def from_mapping(cls, item: object, where: str) -> JointMap:
        """
        Read `{state: {scale: -1}, action: {scale: -1}}`; state may have the keys of `Linkage` instead.

        :raises ConfigError: unknown keys or values that are no numbers.
        """
        if not isinstance(item, Mapping) or not set(item) <= {'state', 'action'}:
            raise ConfigError(f'{where} must be a mapping with the keys state and action')
        linkage = isinstance(item.get('state'), Mapping) and 'horn' in item['state']
        return cls(_read(Linkage if linkage else Linear, item.get('state', {}), f'{where}: state'),
                   _read(Linear, item.get('action', {}), f'{where}: action'))


def _read(kind: type, item: object, where: str) -> Linear | Linkage:
    names = [field.name for field in fields(kind)]
    numbers = isinstance(item, Mapping) and all(type(value) in (int, float) and np.isfinite(value)
                                                for value in item.values())
    if not numbers or not set(item) <= set(names):
        raise ConfigError(f'{where} must hold finite numbers with the keys {names}')
    try:
        return kind(**item)
    except (TypeError, ValueError) as error:
        raise ConfigError(f'{where}: {error}') from error
